"""Put the diagnosis together: explanations, what distinguishes them, where the error is."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted
from attncli.referee.apart import told_apart_by
from attncli.referee.cases import Cases
from attncli.referee.fit import agrees
from attncli.referee.fitted.unwritten import rows_of_nan, rows_of_nothing
from attncli.referee.groups import follow, needs_of
from attncli.referee.like_dropout import like_dropout
from attncli.referee.locate import locate
from attncli.referee.nan_rows import beside_nan_rows, without_nan_rows
from attncli.referee.report import Cause, Diagnosis
from attncli.referee.search import Search, Searched, is_pattern
from attncli.referee.stored_wider import (
    SINGLE,
    computed_in_half,
    computed_in_single,
    in_single,
    may_be_mixed,
    narrowed,
)
from attncli.referee.verdict import Errors

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.convention import Need
    from attncli.referee.question import Question

__all__ = ["diagnose", "look_beneath"]

Array = npt.NDArray[Any]
_NOTHING = Searched((), 0, complete=True)
# Share of the time in which all is to be explained, where rows of NaN may be told by themselves.
_OF_ALL = 0.6
# So many more slices show enough of dropout.
_LIKE_DROPOUT = 3
# Of so many rows one or two are few.
_FEW_ROWS, _MANY_ROWS = 2, 16
# Errors of rounding: at most so many half units of what was rounded, and a quarter of them at least
# this share of the largest.
_ROUNDINGS, _TYPICAL, _ALIKE = 5, 0.75, 0.25


def diagnose(question: Question, deadline: float) -> Diagnosis:
    """Return why the files differ from the answers.

    Parameters
    ----------
    question : Question
    deadline : float
        On the clock of `time.monotonic`.
    """
    findings = locate(question)
    if all(_says_nothing(one.file.values, one.answer) for one in question.outputs.values()):
        return _of_nothing(question, findings, deadline)
    narrow = narrowed(question)
    stored = computed_in_half(question, narrow)
    if stored is not None:
        return Diagnosis(explanations=(stored,), findings=findings, tried=1)
    rest = without_nan_rows(narrow)
    now = time.monotonic()
    search = Search(narrow, deadline if rest is None else now + _OF_ALL * (deadline - now))
    nothing = rows_of_nothing(question)
    if nothing is not None and search.cases.sliced and not _may_be_padded(question.problem):
        return Diagnosis(explanations=(nothing,), findings=findings, tried=1)
    single = computed_in_single(question)
    if single is None:
        search, searched = _searched_by_part(search)
    else:  # two mistakes together are far less likely
        searched = search.run(pairs=False).or_else(single)
    nothing = nothing or rows_of_nan(question)
    if nothing is not None and all(cause.fails_at for cause in searched.causes):
        searched = replace(searched, causes=(nothing,))
    elif rest is not None and all(cause.fails_at for cause in searched.causes):
        part, found = _searched_by_part(Search(rest, deadline))
        if found.causes:
            causes = tuple(beside_nan_rows(cause, rest) for cause in found.causes)
            search, searched = part, replace(found, causes=causes)
    return Diagnosis(
        explanations=searched.causes,
        apart=told_apart_by(question, search.cases, searched.causes),
        findings=findings
        if searched.causes
        else (*findings, *_of_dropout(search), *_of_few_digits(question)),
        scope=search.scope,
        tried=searched.tried,
        complete=searched.complete,
        too_large=search.too_large,
        unexplained=_unexplained(narrow, searched.causes),
    )


def _of_dropout(search: Search) -> tuple[str, ...]:
    """Return a sentence where errors look as if weights had been dropped out; none elsewhere."""
    any_rows: frozenset[Need] = frozenset()
    others = itertools.islice(search.cases.elsewhere(any_rows), _LIKE_DROPOUT)
    found = like_dropout([*search.cases.of(any_rows), *others])
    if found is None:
        return ()
    about = f"the errors look like those of dropout with p about {round(found.share, 2):g}"
    if not found.divided:
        about += " whose other weights are not divided by 1 − p"
    about += ": was it left on? dropout_p=0, or eval(), switches it off"
    return (
        f"{about}; errors of each score by itself (a bias read wrong, rounded keys) look so, too",
    )


def _of_few_digits(question: Question) -> tuple[str, ...]:
    """Return a sentence where errors are as small as rounding on the way makes them by hand."""
    shown = min(one.file.digits.absolute for one in question.outputs.values())
    if not question.comparable or shown == 0:
        return ()
    errors = np.concatenate(
        [one.errors.error.ravel() for one in question.outputs.values() if one.errors]
    )
    largest = float(errors.max())
    # Rounding on the way is felt everywhere, and not by a few numbers alone.
    if not shown < largest < np.inf or np.quantile(errors, _TYPICAL) <= max(
        shown, _ALIKE * largest
    ):
        return ()
    # A few roundings of half a unit each, and what weights and values make of them.
    decimals = math.floor(math.log10(_ROUNDINGS * 0.5 / largest))
    if decimals < 1:
        return ()
    words = (
        f"the errors are as small as those of rounding to {counted(decimals, 'decimal')} on the "
        "way, by hand perhaps: go on with all digits, and round what is shown"
    )
    return (words,)


def _searched_by_part(search: Search) -> tuple[Search, Searched]:
    """Search for what explains all that is wrong, or else the part alone in which it is wrong.

    Single mistakes come first; what shows only which weights are 0, which much may explain, last.
    """
    if not _in_a_part(search):
        return search, _searched_by_output(search)
    part = Search(search.question, search.deadline, by_part=True)
    found: dict[Search, Searched] = {}

    def explains(one: Search, *, pairs: bool) -> bool:
        found[one] = _searched_by_output(one, pairs=pairs)
        return any(map(_is_whole, found[one].causes))

    steps = ((search, False), (part, False), (search, True))
    best = next((one for one, pairs in steps if explains(one, pairs=pairs)), search)
    if not found[best].causes:
        explains(part, pairs=True)
        best = part
    return best, replace(sum(found.values(), start=_NOTHING), causes=found[best].causes)


def _is_whole(cause: Cause) -> bool:
    """Return whether a cause is true of all that is wrong, and more than which weights are 0."""
    return not is_pattern(cause) and (not cause.fails_at or cause.right_there)


def _searched_by_output(search: Search, *, pairs: bool = True) -> Searched:
    """Search for what explains all outputs together, or else for what explains each wrong one."""
    question, together = search.question, _searched(search, pairs=pairs)
    if together.causes or len(question.files) == 1:
        return together
    each = (_searched_alone(n, question, search.deadline, pairs=pairs) for n in _wrong(question))
    return sum(each, start=together)


def _searched_alone(name: str, question: Question, deadline: float, *, pairs: bool) -> Searched:
    """Search for what explains one output, and does not spoil others that are right."""
    alone = question.about((name,))
    found = _searched(Search(alone, deadline), pairs=pairs)
    return replace(found, causes=_not_refuted(question, found.causes))


def _may_be_padded(problem: Problem) -> bool:
    """Return whether rows of zeros may be those of queries that a rule takes for padding."""
    visible = problem.visible
    rules = (visible.mask, visible.key_padding_mask, visible.kv_lengths, visible.query_lengths)
    return any(rule is not None for rule in rules)


def _in_a_part(search: Search) -> bool:
    """Return whether others are right beside the wrong heads, batch entries or queries.

    Heads and batch entries of a large problem were tried by themselves.
    """
    question = search.question
    places = [one.wrong for one in question.outputs.values()]
    wrong = [each for each in places if each is not None and each.any()]
    heads = [each.any(axis=(2, 3)) for each in wrong]
    if not search.cases.sliced and any(not each.all() for each in heads):
        return True
    # The first query of a causal problem sees one key, so that most mistakes leave it right.
    first = 1 if question.problem.visible.causal and question.problem.shape[2] > 1 else 0
    rows: list[Array] = [np.asarray(each.any(axis=(0, 1, 3))) for each in wrong]
    return any(not (each[first] and each[-1]) for each in rows)


def _unexplained(question: Question, causes: tuple[Cause, ...]) -> tuple[str, ...]:
    """Return the wrong outputs that no cause explains; none where there is no cause."""
    explained = {name for cause in causes for name in cause.outputs}
    return tuple(n for n in _wrong(question) if n not in explained) if causes else ()


def look_beneath(question: Question, deadline: float) -> Diagnosis | None:
    """Return which mistake explains errors that are tolerated but larger than they need to be.

    In a 16-bit format the textbook formula stores its scores; its rounding error hides small
    mistakes of kernels that do not store them: one lost key of many, a scale off by a hundredth.

    Parameters
    ----------
    question : Question
        With what such kernels earn as tolerances.
    deadline : float
        As in `diagnose`.

    Returns
    -------
    Diagnosis or None
        None where nothing explains them: then they are rounding errors.
    """
    if question.problem.shape[2] >= _MANY_ROWS and _few_rows(question):
        return None
    search = Search(question, deadline, beneath=True)
    searched = search.run(pairs=False)
    if not searched.causes:
        return None
    return Diagnosis(
        explanations=searched.causes,
        scope=search.scope,
        tried=searched.tried,
        complete=searched.complete,
        tolerated=True,
    )


def _few_rows(question: Question) -> bool:
    """Return whether the errors of one or two of many rows are all that is not tolerated.

    Where the largest scores of a row are nearly the same, to round one of them moves all of
    its numbers.
    """
    for output in question.outputs.values():
        errors = output.errors
        if errors is None:
            continue
        largest = np.square(errors.error).sum(axis=-1).ravel().argsort()[:-_FEW_ROWS]
        rows = [each.reshape(-1, each.shape[-1]) for each in (errors.error, errors.answer)]
        rest = Errors(rows[0][largest], rows[1][largest], errors.tolerance)
        if len(largest) < _MANY_ROWS or not errors.outside.any() or not rest.passed:
            return False
    return True


def _wrong(question: Question) -> list[str]:
    """Return the outputs in which a number or the shape is wrong."""
    places = {name: one.wrong for name, one in question.outputs.items()}
    return [name for name, wrong in places.items() if wrong is None or wrong.any()]


def _says_nothing(found: Array, answer: Array) -> bool:
    """Return whether all numbers of a file are the same where those of the answer are not."""
    if found.shape != answer.shape or found.size == 1:
        return False
    first = found.flat[0]
    same = np.isnan(found).all() if np.isnan(first) else (found == first).all()
    return bool(same and not (answer == answer.flat[0]).all())


def _of_nothing(question: Question, findings: tuple[str, ...], deadline: float) -> Diagnosis:
    """Diagnose files whose numbers are all the same: only NaN and infinities say anything."""
    if any(np.isfinite(found).any() for found in question.files.values()):
        return Diagnosis(findings=findings, tried=0)
    causes = Search(question, deadline).run(pairs=False).causes
    return Diagnosis(explanations=causes, findings=findings, tried=len(causes))


def _searched(search: Search, *, pairs: bool) -> Searched:
    """Search in the format of the files, or else in float32 where they may be made in both."""
    mixed = may_be_mixed(search.question)
    exact = search.run(pairs=pairs and not mixed)
    if exact.causes or not mixed:
        return exact
    rounder = Search(in_single(search.question), search.deadline).run(pairs=pairs)
    causes = tuple(_in_which(search, one) for one in rounder.causes)
    return exact + replace(rounder, causes=causes)


def _not_refuted(question: Question, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Drop explanations of one output that would spoil other outputs, which are right.

    What only changes how a file is written spoils no other. Where none would be left, keep all.
    """
    right = tuple(name for name in question.files if name not in _wrong(question))
    if not right:
        return found
    others = question.about(right)
    cases = Cases(others)
    kept = tuple(
        one
        for one in found
        if all(convention.late for convention in one.conventions) or _fits(one, others, cases)
    )
    return kept or tuple(replace(one, alone=True) for one in found)


def _fits(explanation: Cause, question: Question, cases: Cases) -> bool:
    """Return whether the files of a question are what an explanation makes."""
    group = explanation.conventions
    recipes = [(case, follow(case, group)) for case in cases.of(needs_of(group))]
    return all(recipe is not None and agrees(question, case, recipe) for case, recipe in recipes)


def _in_which(exact: Search, found: Cause) -> Cause:
    """Add to an explanation that only float32 is as exact, where it leaves such errors."""
    if _fits(found, exact.question, exact.cases):
        return found
    return replace(found, conventions=(*found.conventions, SINGLE))
