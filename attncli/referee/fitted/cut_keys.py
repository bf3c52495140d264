"""Keys that are cut off where no rule cuts them: padding, or a diagonal that lies elsewhere.

Where a row sees keys a to b, running sums over its keys give the context of any such span, also
behind an output projection. Of the few rows that are looked at, each length of a batch entry, or
each place of its queries, gives one span; the numbers of the file tell which it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee import topics
from attncli.referee.catalogue.helpers import lengths_of
from attncli.referee.convention import Convention, Need, with_rule, without
from attncli.referee.evaluation import evaluate, projected
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.fitted.places import told
from attncli.referee.fitted.spans import LOST, SLACK, TYPICAL, RunningSums, sinks_of
from attncli.referee.options import placed_at, stands_in_corner, with_lengths
from attncli.referee.recipe import band
from attncli.referee.stages import shared
from attncli.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = [
    "another_offset",
    "other_lengths",
    "padding_on_the_left_unasked",
    "prefix_unasked",
]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
# The spans of one row: where they begin and end, of the problem, its batch entry and its query.
Spans = tuple[Ints, Ints]

# Rows of a batch entry that are looked at, and columns of a projected context.
_ROWS = 4
_COLUMNS = 64
_WHOLE: frozenset[Need] = frozenset({"batch", "heads"})


@dataclass(frozen=True, eq=False)
class _Family:
    """What may have been another number than the right one.

    Attributes
    ----------
    numbers : ndarray of int (n,)
    instead_of : frozenset of str
        The rules in the place of which the spans stand.
    spans : callable
        The problem, a batch entry and a query, to the first key of each span and the one behind
        its last, (n,) each.
    right : tuple of int, of length B
        The right number of each batch entry.
    """

    numbers: Ints
    instead_of: frozenset[str]
    spans: Callable[[Problem, int, int], Spans]
    right: tuple[int, ...]


def other_lengths(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that batch entries have other lengths than the problem states.

    Parameters
    ----------
    cases : sequence of Case
        With all batch entries and heads.

    Returns
    -------
    Convention or None
        None where the files say nothing of the kind.
    """
    whole = cases[0].recipe.whole
    lengths = _lengths(cases)
    moved = lengths is None
    if lengths is None:
        lengths = _lengths_in_corner(cases)
    right = lengths_of(whole)
    # Rows of zeros have more likely not been written.
    if lengths is None or any(new == 0 < old for new, old in zip(lengths, right, strict=True)):
        return None
    steps = tuple(new - old for new, old in zip(lengths, right, strict=True))
    name, meaning, fix = _lengths_in_words(whole, lengths)
    return Convention(
        name,
        meaning,
        lambda recipe: _with_lengths(recipe, lengths, steps if moved else None),
        topic=topics.PADDING,
        fix=fix,
        shows="more keys than these lengths",
        option=lambda problem: with_lengths(lengths, problem, moved=moved),
        needs=_WHOLE,
    )


def _lengths(cases: Sequence[Case]) -> tuple[int, ...] | None:
    """Return the lengths that files show, while each query stands where it should."""
    whole = cases[0].recipe.whole
    numbers = np.arange(whole.shape[3] + 1)
    family = _Family(
        numbers,
        frozenset({"kv_lengths"}),
        lambda *_: (np.zeros_like(numbers), numbers),
        lengths_of(whole),
    )
    return _found(cases, family)


def _lengths_in_corner(cases: Sequence[Case]) -> tuple[int, ...] | None:
    """Return the lengths that files show if the last query stands at the last key of each."""
    whole = cases[0].recipe.whole
    visible, right = whole.visible, lengths_of(whole)
    ruled = visible.causal or visible.window is not None
    moves_more = whole.slopes is not None or whole.rope is not None
    if not (ruled and stands_in_corner(whole)) or moves_more:
        return None
    numbers = np.arange(whole.shape[3] + 1)

    def spans(problem: Problem, b: int, i: int) -> Spans:
        first, end = _ends(problem, i + problem.visible.offset(b) + numbers - right[b])
        return np.minimum(first, numbers), np.minimum(end, numbers)

    rules = frozenset({"kv_lengths", "causal", "window"})
    return _found(cases, _Family(numbers, rules, spans, right))


def _lengths_in_words(whole: Problem, lengths: tuple[int, ...]) -> tuple[str, str, str]:
    """Return name, meaning and fix of the convention that batch entries have these lengths."""
    keys, right = whole.shape[3], lengths_of(whole)
    if whole.visible.kv_lengths is not None:
        pairs = [
            (f"batch entry {b}", f"{counted(new, 'key')} where {old} are right")
            for b, (new, old) in enumerate(zip(lengths, right, strict=True))
            if new != old
        ]
        return (
            "other_lengths",
            f"batch entries take other lengths: {told(pairs, 'takes')}",
            "give each batch entry the length that the problem states",
        )
    seen = f"only {_first_keys(lengths[0])} of {keys} count"
    if len(set(lengths)) > 1:
        pairs = [(f"batch entry {b}", f"{n} of {keys} keys") for b, n in enumerate(lengths)]
        seen = told(pairs, "has")
    return (
        "padding_unasked",
        f"the last keys do not count, like padding, {_beyond_padding(whole)}: {seen}",
        "let every key count, or state the padding: kv_lengths (--kv-lengths)",
    )


def _beyond_padding(whole: Problem) -> str:
    if whole.visible.key_padding is None:
        return "which the problem does not state"
    return "beside that which the problem states"


def _first_keys(count: int) -> str:
    return "the first" if count == 1 else f"the first {count}"


def padding_on_the_left_unasked(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that the first keys are padding, which the problem does not state.

    Parameters
    ----------
    cases : sequence of Case
        With all batch entries and heads.

    Returns
    -------
    Convention or None
        None where the files say nothing of the kind.
    """
    whole = cases[0].recipe.whole
    keys = whole.shape[3]
    numbers = np.arange(keys)
    family = _Family(
        numbers,
        frozenset(),
        lambda *_: (numbers, np.full_like(numbers, keys)),
        (0,) * whole.shape[0],
    )
    counts = _found(cases, family)
    if counts is None or (np.array(counts) >= lengths_of(whole)).any():
        return None
    real = np.arange(keys) >= np.array(counts)[:, None, None, None]
    pairs = [(f"batch entry {b}", f"its first {n}") for b, n in enumerate(counts) if n]
    words = told(pairs, "loses") if len(set(counts)) > 1 else _keys_before(counts[0])
    return Convention(
        "padding_on_the_left_unasked",
        f"the first keys do not count, like padding, {_beyond_padding(whole)}: {words}",
        lambda recipe: with_rule(recipe, "padding on the left", real),
        topic=topics.PADDING,
        fix="let every key count, or state the padding: key_padding_mask (--key-padding-mask)",
        shows="as many keys",
        needs=_WHOLE,
    )


def _keys_before(count: int) -> str:
    return "key 0" if count == 1 else f"keys 0 to {count - 1}"


def another_offset(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that causal rule and window lie at another diagonal.

    Parameters
    ----------
    cases : sequence of Case
        With all batch entries and heads.

    Returns
    -------
    Convention or None
        None where the files say nothing of the kind.
    """
    whole = cases[0].recipe.whole
    visible, most = whole.visible, max(whole.shape[2:])
    unasked = not visible.causal and visible.window is None
    numbers = np.arange(-most, most + 1)
    family = _Family(
        numbers,
        frozenset({"causal", "window"}),
        lambda problem, b, i: _ends(problem, i + problem.visible.offset(b) + numbers),
        (most if unasked else 0,) * whole.shape[0],
    )
    steps = _found(cases, family)
    if steps is None:
        return None
    offsets = tuple(visible.offset(b) + step for b, step in enumerate(steps))
    # No rule at all, or one that leaves nothing, is something else.
    end = whole.shape[3] - 1 if visible.window is None else most
    if not all(-whole.shape[2] < o < end for o, step in zip(offsets, steps, strict=True) if step):
        return None
    moved = [b for b, step in enumerate(steps) if step]
    make = partial(
        Convention,
        apply=lambda recipe: _at(recipe, steps, causal=unasked or visible.causal),
        topic=topics.CAUSAL,
        shows="more than one key",
        needs=_WHOLE,
    )
    if unasked:
        return make(
            "causal_unasked_at_another_offset",
            "a causal mask is applied, but the problem is not causal: "
            f"{_stands(offsets, range(len(offsets)))}",
            fix="leave the causal mask out, or state that the problem is causal, and where its "
            "queries stand",
            option=lambda problem: placed_at(offsets, problem, causal=True),
        )
    return make(
        "another_offset",
        f"queries stand at other keys than the problem states: {_stands(offsets, moved)}",
        fix="add the offset that the problem states to the index of a query: the number of keys "
        "that come before query 0",
        option=lambda problem: placed_at(offsets, problem),
    )


def _stands(offsets: tuple[int, ...], entries: Sequence[int]) -> str:
    """Say where the queries of some batch entries stand."""
    there = [f"i + {o}" if o > 0 else f"i − {-o}" if o else "i" for o in offsets]
    if len(set(offsets)) == 1:
        return f"query i at key {there[0]}"
    return told(((f"query i of batch entry {b}", f"key {there[b]}") for b in entries), "at")


def _ends(problem: Problem, positions: Ints) -> Spans:
    """Return the keys that a query sees at each position; causal where no rule is stated."""
    visible, keys = problem.visible, problem.shape[3]
    left, right = visible.window or (None, None)
    if visible.causal or visible.window is None:
        right = 0
    first = np.zeros_like(positions) if left is None else positions - left
    end = np.full_like(positions, keys) if right is None else positions + right + 1
    return np.clip(first, 0, keys), np.clip(end, 0, keys)


def prefix_unasked(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that every query sees the first keys, beside those before it.

    Parameters
    ----------
    cases : sequence of Case
        With all batch entries and heads.

    Returns
    -------
    Convention or None
        None where the files say nothing of the kind.

    References
    ----------
    Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", section 3.2.1, for causal masks with a prefix.
    """
    whole = cases[0].recipe.whole
    visible, keys = whole.visible, whole.shape[3]
    if not visible.causal or visible.window is not None:
        return None
    numbers = np.arange(keys)
    family = _Family(
        numbers,
        frozenset({"causal"}),
        lambda problem, b, i: (
            np.zeros_like(numbers),
            np.maximum(numbers, min(max(i + problem.visible.offset(b) + 1, 0), keys)),
        ),
        (0,) * whole.shape[0],
    )
    prefixes = _found(cases, family)
    if prefixes is None:
        return None
    seen = np.arange(keys) < np.array(prefixes)[:, None, None, None]
    pairs = [(f"batch entry {b}", counted(n, "key")) for b, n in enumerate(prefixes)]
    words = f"{_first_keys(prefixes[0])} {'key' if prefixes[0] == 1 else 'keys'}"
    if len(set(prefixes)) > 1:
        words = f"the first keys ({told(pairs, 'has')})"
    return Convention(
        "prefix_unasked",
        f"every query sees {words}, also those that stand before their end: a prefix, which the "
        "problem does not state",
        lambda recipe: with_rule(recipe, "causal", recipe.rules["causal"] | seen),
        topic=topics.CAUSAL,
        fix="hide later keys from the queries of the prefix, too; or state a mask in the place of "
        "the causal rule",
        shows="more than one key",
        needs=_WHOLE,
    )


def _found(cases: Sequence[Case], family: _Family) -> tuple[int, ...] | None:
    """Return the number of each batch entry that its rows show; None where they show none."""
    problem = cases[0].recipe.problem
    if problem.value is None or any("context" not in case.files for case in cases):
        return None
    if not all(map(comparable, cases)):
        return None
    looked_at = [_Look(case, family) for case in cases]
    numbers = []
    for b, right in enumerate(family.right):
        if time.monotonic() > cases[0].deadline:
            return None
        errors = [error for look in looked_at for error in look.errors(b)]
        number = _best(np.max(errors, axis=0), family.numbers, right) if errors else right
        if number is None:
            return None
        numbers.append(number)
    found = tuple(numbers)
    return None if found == family.right else found


def _best(errors: Array, numbers: Ints, right: int) -> int | None:
    """Return the number with the least error; of those about as good the nearest to the right."""
    least = float(errors.min())
    if least > SLACK:
        return None
    good = numbers[errors <= max(2 * least, TYPICAL)]
    return int(good[np.argmin(np.abs(good - right))])


class _Look:
    """A case, and what the rows of its file would be for each number of a family."""

    def __init__(self, case: Case, family: _Family) -> None:
        recipe = case.recipe
        self._problem = problem = recipe.problem
        self._family = family
        self._file = canonical_file(case, "context")
        self._right = case.right["context"]
        lost = LOST * float(np.abs(self._right).max(initial=0.0))
        self._error = max(recipe.resolution + lost, float(np.finfo(np.float64).tiny))
        self._scores = evaluate(without(recipe, *family.instead_of), products=case.products)[
            "scores"
        ]
        value = shared(problem, widen(np.asarray(problem.value), np.float64))
        self._value = np.broadcast_to(value, (*problem.shape[:2], *value.shape[2:]))
        self._sinks = sinks_of(problem)
        count = self._file.shape[-1]
        columns = np.unique(np.linspace(0, count - 1, min(count, _COLUMNS)).astype(int))
        self._columns = slice(None) if problem.output is None else columns

    def errors(self, b: int) -> list[Array]:
        """Return the largest error of each number in some wrong rows of a batch entry."""
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(self._file[b] - self._right[b]) <= TYPICAL * self._error)
        rows = np.flatnonzero(wrong.any(axis=(0, 2)))
        some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(int))
        return [self._errors_of(b, i) for i in map(int, rows[some])]

    def _errors_of(self, b: int, i: int) -> Array:
        first, end = self._family.spans(self._problem, b, i)
        contexts = np.stack(
            [
                RunningSums.of(self._scores[b, h, i], self._value[b, h], sink).contexts(first, end)
                for h, sink in enumerate(self._sinks)
            ]
        )
        made = projected(self._problem.output, contexts[None])[0]
        error = np.abs(made - self._file[b, :, i, None])[..., self._columns].max(axis=(0, 2))
        return np.where(np.isnan(error), np.inf, error) / self._error


def _with_lengths(
    recipe: Recipe, lengths: tuple[int, ...], steps: tuple[int, ...] | None
) -> Recipe:
    """Return the recipe with other lengths, and the queries so many keys further."""
    cut = with_rule(recipe, "kv_lengths", band(recipe.problem, kv_lengths=lengths))
    return cut if steps is None else _at(cut, steps, causal=recipe.problem.visible.causal)


def _at(recipe: Recipe, steps: tuple[int, ...], *, causal: bool) -> Recipe:
    """Return the recipe with causal rule and window so many keys further."""
    visible = recipe.problem.visible
    there = tuple(visible.offset(b) + step for b, step in enumerate(steps))
    if causal:
        recipe = with_rule(recipe, "causal", band(recipe.problem, causal=True, offsets=there))
    if visible.window is not None:
        moved = band(recipe.problem, window=visible.window, offsets=there)
        recipe = with_rule(recipe, "window", moved)
    return recipe
