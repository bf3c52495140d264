"""Put the diagnosis together: explanations, how to tell them apart, where the error is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.evidence import agrees, free_numbers
from attncli.referee.fits.shapes import nan_rows_told
from attncli.referee.formats import PRECISIONS, Array, Bools, Digits, Precision, narrowest
from attncli.referee.locate import locate
from attncli.referee.mistakes.table import PRECISION, Mistake
from attncli.referee.parts import Cases, Question
from attncli.referee.report import Cause, Diagnosis
from attncli.referee.search import Search, follow, needs_of
from attncli.referee.tolerance import earned, plain_errors_of
from attncli.referee.verdict import Errors, canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

_SINGLE = PRECISIONS["float32"]
# Rounding to float32 leaves an error of at least this share of its eps.
_ALIKE = 0.02
# A tolerance above this share of the largest answer proves nothing.
_SAYS_NOTHING = 0.25


def diagnose(question: Question) -> Diagnosis:
    """Return why the files differ from the answers."""
    findings = locate(question)
    if all(_says_nothing(one.file.values, one.answer) for one in question.outputs.values()):
        return _of_nothing(question, findings)
    shown = {n: narrowest(file, question.precisions[n]) for n, file in question.files.items()}
    narrow = question if shown == question.precisions else _judged_in(question, shown)
    stored = None if narrow is question else _stored_wider(narrow, _in_half(narrow))
    if stored is not None:
        return Diagnosis(explanations=(stored,), findings=findings, tried=1)
    single = None
    if _may_be_single(question):
        single = _stored_wider(_judged_in_single(question), SINGLE, _ALIKE * _SINGLE.eps)
    search = Search(narrow)
    if single is None:
        search, searched = _searched_by_part(search)
    else:  # float32 explains all: two mistakes together are far less likely
        searched = search.run(pairs=False)
        searched = replace(searched, explanations=searched.explanations or (single,))
    search, searched = _beside_nan(narrow, search, searched)
    causes = searched.explanations
    explained = {name for cause in causes for name in cause.outputs}
    whole = search.cases.whole  # a mistake has one parameter at least
    few = not causes and whole.comparable and free_numbers(whole, whole.pipe) <= 1
    return replace(
        searched,
        apart=_told_apart(causes),
        findings=findings,
        scope="slices" if search.cases.sliced else "all",
        too_large=search.too_large,
        unexplained=tuple(n for n in narrow.wrong if n not in explained) if causes else (),
        tells=bool(causes) or (search.tells and not few),
    )


def _says_nothing(found: Array, answer: Array) -> bool:
    """Return whether a file holds one number everywhere, but the answer does not."""
    if found.shape != answer.shape or found.size == 1:
        return False
    first = found.flat[0]
    same = np.isnan(found).all() if np.isnan(first) else (found == first).all()
    return bool(same and not (answer == answer.flat[0]).all())


def _of_nothing(question: Question, findings: tuple[str, ...]) -> Diagnosis:
    """Diagnose files that hold one number everywhere: only single mistakes are tried."""
    searched = Search(question).run(pairs=False)
    finite = any(np.isfinite(found).any() for found in question.files.values())
    tried = 0 if finite and not searched.explanations else max(searched.tried, 1)
    return replace(searched, findings=findings, tried=tried, complete=True)


# Rows of NaN, and mistakes in the other rows.


def _beside_nan(
    question: Question, search: Search, searched: Diagnosis
) -> tuple[Search, Diagnosis]:
    """If nothing explains all errors, explain those outside the rows of NaN."""
    rows = _nan_rows(question)
    if not rows or not all(cause.fails_at for cause in searched.explanations):
        return search, searched
    rest = _without_rows(question, rows)
    told = nan_rows_told(rows.values(), alone=not rest.wrong)
    if not rest.wrong:
        cause = Cause(conventions=(told,), outputs=tuple(question.outputs), error=0.0)
        return search, replace(searched, explanations=(cause,))
    part, found = _searched_by_part(Search(rest))
    if not found.explanations:
        return search, searched
    causes = (replace(one, conventions=(*one.conventions, told)) for one in found.explanations)
    return part, replace(found, explanations=tuple(causes))


def _without_rows(question: Question, rows: dict[str, Bools]) -> Question:
    """Return the question in which some rows of NaN count as right."""
    outputs = dict(question.outputs)
    for name, own in rows.items():
        if (errors := outputs[name].errors) is not None:
            errors = replace(errors, found=np.where(own[..., None], errors.answer, errors.found))
            outputs[name] = replace(outputs[name], errors=errors)
    return replace(question, outputs=outputs, nan_rows=rows)


def _nan_rows(question: Question) -> dict[str, Bools]:
    """Return the rows (B, H, L) that are NaN by mistake; none if single numbers are NaN, too."""
    found: dict[str, Bools] = {}
    for name, file in question.comparable.items():
        answer = canonical(question.problem, name, question.outputs[name].answer)
        odd = np.asarray(np.isnan(file) & np.isfinite(answer))
        rows = np.asarray(odd.all(axis=-1))
        if (odd & ~rows[..., None]).any():
            return {}
        if rows.any():
            found[name] = rows
    return found


# Files whose format is wider than the precision of their numbers.


def _judged_in(question: Question, formats: Mapping[str, Precision]) -> Question:
    """Return the question with other formats for the files, and their tolerances."""
    plain = plain_errors_of(question.problem, formats, question.doubtful, question.inputs)
    outputs = {}
    for name, old in question.outputs.items():
        file = replace(old.file, precision=formats[name])
        own = earned(plain[name], file.precision, file.digits)
        tolerance = own if old.tolerance.earned else old.tolerance
        outputs[name] = replace(old, file=file, tolerance=tolerance)
    return replace(question, outputs=outputs)


def _judged_in_single(question: Question) -> Question:
    return _judged_in(question, dict.fromkeys(question.files, _SINGLE))


def _in_half(narrow: Question) -> Mistake:
    formats = " and ".join(sorted({p.name for p in narrow.precisions.values() if p.short}))
    return Mistake(
        "computed_in_half",
        f"every number is a {formats} number, stored in a wider format",
        lambda pipe: pipe,
        PRECISION,
        "compute in float32; or give check query, key and value rounded to "
        f"{formats}, so that the file is judged in that format",
    )


SINGLE = Mistake(
    "computed_in_float32",
    "the numbers are only as exact as float32, but stored as float64",
    lambda pipe: pipe,
    PRECISION,
    "convert query, key and value to float64 first (a softmax may be hard-coded to float32), or "
    "save the output as float32",
)


def _may_be_single(question: Question) -> bool:
    """Return whether float64 files may have been computed in float32; printed ones never."""
    return question.earned and all(
        one.file.precision.name == "float64" and one.file.digits == Digits()
        for one in question.outputs.values()
    )


def _stored_wider(question: Question, mistake: Mistake, least: float = 0.0) -> Cause | None:
    """Return the explanation that all files are right in a narrower format."""
    largest = most = 0.0
    for one in question.outputs.values():
        if one.errors is None or not one.tolerance.earned:
            return None
        errors = Errors(one.errors.found, one.errors.answer, one.tolerance)
        size = float(np.abs(one.answer[np.isfinite(one.answer)]).max(initial=0))
        # A tolerance as large as the numbers would let any numbers pass.
        if one.tolerance.absolute > _SAYS_NOTHING * size or not errors.passed:
            return None
        largest, most = max(largest, float(errors.error.max())), max(most, size)
    if largest < least * most:  # the error has another cause
        return None
    return Cause(conventions=(mistake,), outputs=tuple(question.files), error=largest)


# All that is wrong, a part of it, or one output.


def _searched_by_part(search: Search) -> tuple[Search, Diagnosis]:
    """Explain all errors, or else only the wrong part; try single mistakes first."""
    attempts = [(search, True)]
    if _in_a_part(search):
        part = Search(search.question, by_part=True)
        attempts = [(search, False), (part, False), (search, True), (part, True)]
    found: dict[Search, Diagnosis] = {}
    for one, pairs in attempts:
        found[one] = _searched_by_output(one, pairs=pairs)
        causes = found[one].explanations
        if any(map(_is_whole, causes)) or (pairs and causes):
            break
    return one, replace(sum(found.values(), start=Diagnosis()), explanations=causes)


def _is_whole(cause: Cause) -> bool:
    """Return whether a cause explains all errors, and says more than which weights are 0."""
    pattern = all(mistake.pattern for mistake in cause.conventions)
    return not pattern and (not cause.fails_at or cause.right_there)


def _in_a_part(search: Search) -> bool:
    """Return whether some heads, batch entries or queries are right, and others wrong."""
    question = search.question
    places = [one.wrong for one in question.outputs.values()]
    wrong = [each for each in places if each is not None and each.any()]
    heads = [each.any(axis=(2, 3)) for each in wrong]
    # In a large problem, single heads and batch entries were tried already.
    if not search.cases.sliced and any(not each.all() for each in heads):
        return True
    # The first causal query sees one key, so most mistakes leave its row right.
    first = 1 if question.problem.visible.causal and question.problem.shape[2] > 1 else 0
    rows = [np.asarray(each.any(axis=(0, 1, 3))) for each in wrong]
    return any(not (each[first] and each[-1]) for each in rows)


def _searched_by_output(search: Search, *, pairs: bool) -> Diagnosis:
    """Explain all outputs together, or else each wrong one by itself."""
    question, together = search.question, _searched(search, pairs=pairs)
    if together.explanations or len(question.files) == 1:
        return together
    each = (_searched_alone(n, question, pairs=pairs) for n in question.wrong)
    return sum(each, start=together)


def _searched_alone(name: str, question: Question, *, pairs: bool) -> Diagnosis:
    """Explain one output, if possible by causes that keep the right outputs right."""
    found = _searched(Search(question.about((name,))), pairs=pairs)
    right = tuple(n for n in question.files if n not in question.wrong)
    if not right:
        return found
    others = question.about(right)
    cases = Cases(others)
    # A mistake in how one file is written does not change the other files.
    kept = tuple(
        one
        for one in found.explanations
        if all(mistake.writes for mistake in one.conventions) or _fits(one, others, cases)
    )
    return replace(
        found, explanations=kept or tuple(replace(one, alone=True) for one in found.explanations)
    )


def _fits(cause: Cause, question: Question, cases: Cases) -> bool:
    pipe = follow(question.pipe, cause.conventions)
    return pipe is not None and all(
        agrees(case, pipe) for case in cases.of(needs_of(cause.conventions))
    )


def _searched(search: Search, *, pairs: bool) -> Diagnosis:
    """Search in the format of the files, then in float32: a softmax may have run in it."""
    mixed = _may_be_single(search.question)
    exact = search.run(pairs=pairs and not mixed)
    if exact.explanations or not mixed:
        return exact
    narrow = Search(_judged_in_single(search.question), by_part=search.cases.by_part)
    rounder = narrow.run(pairs=pairs)
    causes = tuple(
        one
        if _fits(one, search.question, search.cases)
        else replace(one, conventions=(*one.conventions, SINGLE))
        for one in rounder.explanations
    )
    return exact + replace(rounder, explanations=causes)


def _told_apart(causes: tuple[Cause, ...]) -> str:
    if len(causes) < 2:
        return ""
    shows = dict.fromkeys(one.shows for cause in causes for one in cause.conventions)
    return f"they give the same numbers here; to tell them apart, try {' or '.join(shows)}"
