"""Which keys are cut off where no rule cuts them: lengths, diagonals, windows, prefixes, chunks.

Each possible length, or offset of the queries, gives one span of keys for each row. A few rows of
the file are enough to tell which length or offset was used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import counted
from attncli.referee.fits.rows import Rows, shown_by
from attncli.referee.fits.table import Fitting, found, needs_of, told
from attncli.referee.formats import Array, Ints
from attncli.referee.mistakes.masks import placed
from attncli.referee.options import placed_at, with_lengths
from attncli.referee.pipeline import Pipeline, band, causal, keys_of, lengths_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.run import Run

__all__ = ["FITTINGS", "as_good"]

# A number of each batch entry.
Found = tuple[int, ...]
# Where spans begin and the key behind their end, one for each number.
Spans = tuple[Ints | int, Ints | int]
# Numbers that come so much nearer differ only by keys with next to no weight.
_AS_GOOD = 1.05


@dataclass(frozen=True, eq=False, kw_only=True)
class Pattern:
    """A rule with a number for each batch entry, in the place of what the problem states.

    Attributes
    ----------
    right : callable
        The number of each batch entry that makes the right answer; None where it makes no sense.
    numbers : callable
        All that the number may be.
    instead_of : tuple of str
        The rules in the place of which the spans stand.
    spans : callable
        The problem, the position of a query and the numbers in, a span for each number out.
    put : callable
        The pipeline with the numbers that were found, or None.
    words : callable
        From these and the problem to what stands in the mistake's meaning.
    accepts : callable
        Whether such numbers are no other mistake.
    shared : bool
        It is one number for all batch entries.
    option : callable
    """

    name: str
    right: Callable[[Problem], Found | None]
    numbers: Callable[[Problem], Ints]
    spans: Callable[[Problem, int, Ints], Spans]
    put: Callable[[Pipeline, Found], Pipeline | None]
    words: Callable[[Found, Problem], tuple[str, ...]]
    instead_of: tuple[str, ...] = ()
    accepts: Callable[[Found, Problem], bool] = lambda *_: True
    shared: bool = False
    option: Callable[[Found, Problem], str] = lambda *_: ""


def spanned(pattern: Pattern, cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake of the numbers that the rows of cases show."""
    problem = cases[0].problem
    right = pattern.right(problem)
    if right is None or not all(map(shown_by, cases)):
        return None
    numbers = _found(pattern, cases, right)
    if numbers is None or numbers == right or not pattern.accepts(numbers, problem):
        return None
    return found(
        pattern.name,
        lambda pipe: pattern.put(pipe, numbers),
        *pattern.words(numbers, problem),
        option=lambda problem: pattern.option(numbers, problem),
    )


def _found(pattern: Pattern, cases: Sequence[Case], right: Found) -> Found | None:
    """Return the number of each batch entry; None where no number makes what the files hold."""
    problem, work = cases[0].problem, cases[0].question.work
    keys, numbers = problem.shape[3], pattern.numbers(problem)
    rows = [Rows(case, pattern.instead_of) for case in cases]

    def errors_of(look: Rows, b: int, i: int) -> Array:
        position = look.first_query + i + problem.visible.offset(b)
        first, end = pattern.spans(problem, position, numbers)
        work.spend(numbers.size)
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
    """Return the number that rows show, or the one most like the right one; None if none is."""
    if not errors:
        return right
    good = numbers[as_good(np.mean(errors, axis=0))]
    return int(good[np.argmin(np.abs(good - right))]) if good.size else None


def as_good(errors: Array) -> Ints:
    """Return the places of the least error and of those about as small; of none if all is off."""
    least = float(errors.min(initial=np.inf))
    good = errors <= _AS_GOOD * least if np.isfinite(least) else np.zeros(0, np.bool_)
    return np.flatnonzero(good)


# What problems state, and the spans that other numbers give.


def _lengths(problem: Problem) -> Ints:
    return np.arange(1, problem.shape[3] + 1)


def _steps(problem: Problem) -> Ints:
    most = max(problem.shape[2:])
    return np.arange(-most, most + 1)


def _each(problem: Problem, number: int, *, of: bool = True) -> Found | None:
    """Return a number for each batch entry, of problems for which it makes sense."""
    return (number,) * problem.shape[0] if of else None


def _has_band(problem: Problem) -> bool:
    return problem.visible.causal or problem.visible.window is not None


def _without_band(problem: Problem) -> bool:
    """Return whether no causal rule and no window is stated, and there are rows to show one."""
    return not _has_band(problem) and problem.shape[2] > 1


def _diagonal(problem: Problem, position: int, numbers: Ints) -> Spans:
    """Return the keys that a query sees at another position; causal where no rule is stated."""
    visible = problem.visible
    left, right = visible.window or (None, None)
    if visible.causal or visible.window is None:
        right = 0
    there = position + numbers
    first = 0 if left is None else there - left
    return first, problem.shape[3] if right is None else there + right + 1


def _windowed(problem: Problem, position: int, numbers: Ints) -> Spans:
    """Return the keys in windows that reach so far to the left, or to both sides."""
    left, right = problem.visible.window or (None, None)
    reach = numbers if left == right else problem.shape[3] if right is None else right
    return position - numbers, position + reach + 1


def _with_window(pipe: Pipeline, numbers: Found) -> Pipeline:
    left, right = pipe.problem.visible.window or (None, None)
    reach = 0 if pipe.problem.visible.causal else numbers[0]
    return pipe.with_rule(
        "window", band(numbers[0], reach if left == right else right, pipe.offsets)
    )


def _in_reach(steps: Found, problem: Problem) -> bool:
    """Return whether diagonals leave some keys, and not all: else something else is wrong."""
    _, _, queries, keys = problem.shape
    end = keys - 1 if problem.visible.window is None else max(queries, keys)
    offsets = [problem.visible.offset(b) + step for b, step in enumerate(steps) if step]
    return all(-queries < offset < end for offset in offsets)


def _reach(problem: Problem) -> int:
    """Return how far the window reaches to the left; −1 where it has no end there."""
    left, _ = problem.visible.window or (None, None)
    return -1 if left is None else left


def _offsets(steps: Found, problem: Problem) -> Found:
    return tuple(problem.visible.offset(b) + step for b, step in enumerate(steps))


def _with_prefix(pipe: Pipeline, prefixes: Found) -> Pipeline | None:
    own = pipe.rules.get("causal")
    if own is None:
        return None
    return pipe.with_rule("causal", lambda run: run.called(own) | (run.j < run.by_entry(prefixes)))


def _with_chunks(pipe: Pipeline, sizes: Found) -> Pipeline:
    def same(run: Run) -> Array:
        return np.asarray(run.j // sizes[0] == (run.i + run.by_entry(pipe.offsets)) // sizes[0])

    return pipe.with_rule("window", same)


# Words.


def _by_entry(numbers: Found, say: Callable[[int], str], verb: str) -> str:
    """Say the number of each batch entry; once where it is the same in all."""
    if len(set(numbers)) == 1:
        return say(numbers[0])
    return told(((f"batch entry {b}", say(n)) for b, n in enumerate(numbers)), verb)


def _count_told(numbers: Found, problem: Problem) -> tuple[str, ...]:
    return (_by_entry(numbers, lambda n: f"{n} of {problem.shape[3]} keys", "has"),)


def _stands(steps: Found, problem: Problem) -> tuple[str, ...]:
    """Say where the queries of batch entries stand."""
    there = _by_entry(
        _offsets(steps, problem), lambda n: f"key i {'−' if n < 0 else '+'} {abs(n)}", "at"
    )
    return (there,)


LENGTHS = Pattern(
    name="other_lengths",
    right=lambda p: None if p.visible.kv_lengths is None else lengths_of(p),
    numbers=_lengths,
    instead_of=("kv_lengths",),
    spans=lambda _, __, numbers: (0, numbers),
    put=lambda pipe, lengths: pipe.with_rule("kv_lengths", keys_of(lengths)),
    words=_count_told,
    option=partial(with_lengths, moved=False),
)
OFFSET = Pattern(
    name="another_offset",
    right=lambda p: _each(p, 0, of=_has_band(p)),
    numbers=_steps,
    instead_of=("causal", "window"),
    spans=_diagonal,
    put=lambda pipe, steps: placed(pipe, _offsets(steps, pipe.problem)),
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
    put=_with_window,
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
        put=lambda pipe, lengths: pipe.with_rule("kv_lengths", keys_of(lengths)).with_rule(
            "causal", causal(pipe.offsets)
        ),
        words=_count_told,
    ),
    Pattern(
        name="padding_on_the_left_unasked",
        right=lambda problem: _each(problem, 0),
        numbers=lambda problem: np.arange(problem.shape[3]),
        spans=lambda problem, _, numbers: (numbers, problem.shape[3]),
        put=lambda pipe, counts: pipe.with_rule("left", lambda run: run.j >= run.by_entry(counts)),
        words=lambda counts, _: (_by_entry(counts, lambda n: f"the first {n}", "loses"),),
        accepts=lambda counts, p: bool((np.array(counts) < lengths_of(p)).all()),
    ),
    OFFSET,
    replace(
        OFFSET,
        name="causal_unasked_at_another_offset",
        right=lambda p: _each(p, max(p.shape[2:]), of=_without_band(p)),
        put=lambda pipe, steps: placed(pipe, _offsets(steps, pipe.problem), unasked=True),
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
        put=_with_prefix,
        words=lambda prefixes, _: (_by_entry(prefixes, lambda n: counted(n, "key"), "has"),),
    ),
    Pattern(
        name="chunks_unasked",
        # A chunk of all keys is none; beside a window, none is right.
        right=lambda p: _each(p, 0 if p.visible.window else p.shape[3], of=p.visible.causal),
        numbers=_lengths,
        instead_of=("window",),
        spans=lambda _, position, numbers: (position // numbers * numbers, position + 1),
        put=_with_chunks,
        words=lambda sizes, _: (str(sizes[0]),),
        # A boundary that no other follows as far behind it is that of two parts of any length.
        accepts=lambda sizes, p: 1 < sizes[0] <= p.shape[3] // 2 and p.shape[2] > 1,
        shared=True,
    ),
    WINDOW,
    replace(
        WINDOW,
        name="window_unasked",
        # Of a single query at the first key, a window is padding by another name.
        right=lambda p: _each(
            p, p.shape[3], of=_reach(p) < 0 and (p.shape[2] > 1 or any(p.visible.offsets))
        ),
        option=lambda numbers, _: f"--window {numbers[0]}",
    ),
)
FITTINGS = tuple(Fitting(partial(spanned, pattern), needs_of(pattern.name)) for pattern in PATTERNS)
