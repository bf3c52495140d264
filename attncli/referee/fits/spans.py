"""Fit the spans of keys that queries see: other lengths, diagonals, windows, prefixes, chunks.

Each possible length or offset gives one span of keys for each row. A few rows of the file are
enough to tell which one was used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import counted
from attncli.referee.fits.rows import Rows, as_good, shown_by
from attncli.referee.fits.table import Fitting, by_entry, found, needs_of
from attncli.referee.formats import Array, Ints
from attncli.referee.options import placed_at, with_lengths
from attncli.referee.pipeline import Pipeline, lengths_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.run import Run

# One number for each batch entry.
Found = tuple[int, ...]
# The first keys of spans, and their ends (exclusive).
Spans = tuple[Ints | int, Ints | int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pattern:
    """A rule for the span of keys that a query sees, with one parameter for each batch entry."""

    name: str
    # The parameters of the right answer, one for each batch entry; None if they make no sense.
    right: Callable[[Problem], Found | None]
    numbers: Callable[[Problem], Ints]  # all possible parameters
    # From the problem, the positions of queries and parameters to the spans of keys.
    spans: Callable[[Problem, Ints, Ints], Spans]
    words: Callable[[Found, Problem], tuple[str, ...]]
    instead_of: tuple[str, ...] = ()  # the rules that the spans replace
    accepts: Callable[[Found, Problem], bool] = lambda *_: True  # whether no other name fits better
    shared: bool = False  # all batch entries have the same parameter
    option: Callable[[Found, Problem], str] = lambda *_: ""


def spanned(pattern: Pattern, cases: Sequence[Case]) -> Mistake | None:
    """Find the parameters of a pattern with which the rows of a file are right."""
    problem = cases[0].problem
    right = pattern.right(problem)
    if right is None or not all(map(shown_by, cases)):
        return None
    numbers = _found(pattern, cases, right)
    if numbers is None or numbers == right or not pattern.accepts(numbers, problem):
        return None

    def seen(run: Run) -> Array:
        position = run.i + run.by_entry(run.pipe.offsets)
        first, end = pattern.spans(problem, position, run.by_entry(numbers))
        return np.asarray((first <= run.j) & (run.j < end))

    def change(pipe: Pipeline) -> Pipeline:
        kept = {name: rule for name, rule in pipe.rules.items() if name not in pattern.instead_of}
        return pipe.but(rules=kept | {pattern.name: seen})

    return found(
        pattern.name,
        change,
        *pattern.words(numbers, problem),
        option=lambda problem: pattern.option(numbers, problem),
    )


def _found(pattern: Pattern, cases: Sequence[Case], right: Found) -> Found | None:
    """Return the parameter of each batch entry; None if none fits."""
    problem, work = cases[0].problem, cases[0].question.work
    keys, numbers = problem.shape[3], pattern.numbers(problem)
    rows = [Rows(case, pattern.instead_of) for case in cases]

    def errors_of(look: Rows, b: int, i: int) -> Array:
        position = np.array(look.first_query + i + problem.visible.offset(b))
        first, end = pattern.spans(problem, position, numbers)
        spans = (np.broadcast_to(np.clip(side, 0, keys), numbers.shape) for side in (first, end))
        return look.errors_of(b, i, *spans)

    each: list[list[Array]] = []
    for b in range(len(right)):
        each.append([errors_of(look, b, i) for look in rows for i in look.some_wrong(b)])
        if work.over:
            return None
    if pattern.shared:
        each = [[error for own in each for error in own]] * len(each)
    best = (_nearest(own, numbers, at) for own, at in zip(each, right, strict=True))
    known = tuple(number for number in best if number is not None)
    return known if len(known) == len(right) else None


def _nearest(errors: list[Array], numbers: Ints, right: int) -> int | None:
    """Return the parameter with the smallest error; among equals, the nearest to the right one."""
    if not errors:
        return right
    good = numbers[as_good(np.mean(errors, axis=0))]
    return int(good[np.argmin(np.abs(good - right))]) if good.size else None


# The parameters that problems state, and the spans that other parameters give.


def _lengths(problem: Problem) -> Ints:
    return np.arange(1, problem.shape[3] + 1)


def _steps(problem: Problem) -> Ints:
    most = max(problem.shape[2:])
    return np.arange(-most, most + 1)


def _each(problem: Problem, number: int, *, of: bool = True) -> Found | None:
    return (number,) * problem.shape[0] if of else None


def _has_band(problem: Problem) -> bool:
    return problem.visible.causal or problem.visible.window is not None


def _without_band(problem: Problem) -> bool:
    return not _has_band(problem) and problem.shape[2] > 1


def _diagonal(problem: Problem, position: Ints, numbers: Ints) -> Spans:
    """Return the spans of a causal rule or window whose queries are moved."""
    visible = problem.visible
    left, right = visible.window or (None, None)
    if visible.causal or visible.window is None:
        right = 0
    there = position + numbers
    first = 0 if left is None else there - left
    return first, problem.shape[3] if right is None else there + right + 1


def _windowed(problem: Problem, position: Ints, numbers: Ints) -> Spans:
    left, right = problem.visible.window or (None, None)
    reach = numbers if left == right else problem.shape[3] if right is None else right
    return position - numbers, position + reach + 1


def _in_reach(steps: Found, problem: Problem) -> bool:
    """Return whether the moved diagonals still hide some keys and show others."""
    _, _, queries, keys = problem.shape
    end = keys - 1 if problem.visible.window is None else max(queries, keys)
    offsets = [problem.visible.offset(b) + step for b, step in enumerate(steps) if step]
    return all(-queries < offset < end for offset in offsets)


def _reach(problem: Problem) -> int:
    """Return how far the window reaches to the left; −1 without a limit."""
    left, _ = problem.visible.window or (None, None)
    return -1 if left is None else left


def _offsets(steps: Found, problem: Problem) -> Found:
    return tuple(problem.visible.offset(b) + step for b, step in enumerate(steps))


# Words.


def _count_told(numbers: Found, problem: Problem) -> tuple[str, ...]:
    return (by_entry([f"{n} of {problem.shape[3]} keys seen" for n in numbers]),)


def _stands(steps: Found, problem: Problem) -> tuple[str, ...]:
    there = [f"query i at key i {'−' if n < 0 else '+'} {abs(n)}" for n in _offsets(steps, problem)]
    return (by_entry(there),)


LENGTHS = Pattern(
    name="other_lengths",
    right=lambda p: None if p.visible.kv_lengths is None else lengths_of(p),
    numbers=_lengths,
    instead_of=("kv_lengths",),
    spans=lambda _, __, numbers: (0, numbers),
    words=_count_told,
    option=with_lengths,
)
OFFSET = Pattern(
    name="another_offset",
    right=lambda p: _each(p, 0, of=_has_band(p)),
    numbers=_steps,
    instead_of=("causal", "window"),
    spans=_diagonal,
    words=_stands,
    accepts=_in_reach,
    option=lambda steps, problem: placed_at(_offsets(steps, problem), problem),
)
WINDOW = Pattern(
    name="another_window",
    right=lambda p: _each(p, _reach(p), of=p.visible.window is not None and _reach(p) >= 0),
    numbers=lambda problem: np.arange(problem.shape[3] + 1),
    instead_of=("window",),
    spans=_windowed,
    words=lambda numbers, problem: (str(numbers[0]), str(_reach(problem))),
    shared=True,
)
PATTERNS = (
    LENGTHS,
    replace(
        LENGTHS,
        name="padding_unasked",
        right=lambda p: lengths_of(p) if p.visible.kv_lengths is None else None,
    ),
    Pattern(
        name="causal_and_padding_unasked",
        right=lambda p: (
            lengths_of(p) if _without_band(p) and p.visible.kv_lengths is None else None
        ),
        numbers=_lengths,
        spans=lambda _, position, numbers: (0, np.minimum(numbers, position + 1)),
        words=_count_told,
    ),
    Pattern(
        name="padding_on_the_left_unasked",
        right=lambda problem: _each(problem, 0),
        numbers=lambda problem: np.arange(problem.shape[3]),
        spans=lambda problem, _, numbers: (numbers, problem.shape[3]),
        words=lambda counts, _: (by_entry([f"first {counted(n, 'key')} hidden" for n in counts]),),
        accepts=lambda counts, p: bool((np.array(counts) < lengths_of(p)).all()),
    ),
    OFFSET,
    replace(
        OFFSET,
        name="causal_unasked_at_another_offset",
        right=lambda p: _each(p, max(p.shape[2:]), of=_without_band(p)),
        option=lambda steps, p: placed_at(_offsets(steps, p), p, causal=True),
    ),
    Pattern(
        name="prefix_unasked",
        right=lambda p: _each(
            p, 0, of=p.visible.causal and p.visible.window is None and p.shape[2] > 1
        ),
        numbers=lambda problem: np.arange(problem.shape[3]),
        instead_of=("causal",),
        spans=lambda _, position, numbers: (0, np.maximum(numbers, position + 1)),
        words=lambda prefixes, _: (by_entry([counted(n, "key") for n in prefixes]),),
    ),
    Pattern(
        name="chunks_unasked",
        # Without chunks, one chunk holds all keys. Beside a window, no chunk size is right.
        right=lambda p: _each(p, 0 if p.visible.window else p.shape[3], of=p.visible.causal),
        numbers=_lengths,
        instead_of=("window",),
        spans=lambda _, position, numbers: (position // numbers * numbers, position + 1),
        words=lambda sizes, _: (str(sizes[0]),),
        # Two chunks at least must be whole, or any cut into two parts would be a chunk.
        accepts=lambda sizes, p: 1 < sizes[0] <= p.shape[3] // 2 and p.shape[2] > 1,
        shared=True,
    ),
    WINDOW,
    replace(
        WINDOW,
        name="window_unasked",
        # For a single query at the first key, a window is the same as padding.
        right=lambda p: _each(
            p, p.shape[3], of=_reach(p) < 0 and (p.shape[2] > 1 or any(p.visible.offsets))
        ),
        option=lambda numbers, _: f"--window {numbers[0]}",
    ),
)
FITTINGS = tuple(Fitting(partial(spanned, pattern), needs_of(pattern.name)) for pattern in PATTERNS)
