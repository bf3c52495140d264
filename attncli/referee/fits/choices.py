"""What is found by trying a few dozen values: components, positions, orders of memory, top-k.

Of each kind the value that comes nearest to the files is told, where it leaves far less than the
right one does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attncli.errors.text import counted
from attncli.referee.fits.numbers import distance_of
from attncli.referee.fits.table import at_first, found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.referee.formats import Array
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.run import Run

__all__ = ["FITTINGS"]

# The best value leaves at most this share of the error.
_MOST_LEFT = 0.5
# Components of a head that one part or one block may hold.
_PARTS, _BLOCKS = 32, (16, 64)
# Positions that queries are off.
_NEAR_STEPS = 64
# Of argmax, and of top-k.
_COUNTS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256)


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """A mistake with one of a few values.

    Attributes
    ----------
    values : callable
        Those that a case may have, likely ones first; none where the mistake makes no sense.
    put : callable
        The pipeline with a value, or None.
    words : callable
        From a value and the problem's pipeline to what stands in the mistake's meaning.
    """

    name: str
    values: Callable[[Case], Iterable[Any]]
    put: Callable[[Pipeline, Any], Pipeline | None]
    words: Callable[[Any, Pipeline], tuple[str, ...]]


def chosen(choice: Choice, case: Case) -> Mistake | None:
    """Return the mistake with the value that comes nearest to the files of a case."""
    values = list(choice.values(case)) if case.comparable else []
    if not values or case.question.work.left < len(values) * case.cells:
        return None
    pipes = (choice.put(case.pipe, value) for value in values)
    distances = [math.inf if pipe is None else distance_of(case, pipe) for pipe in pipes]
    nearest = int(np.argmin(distances))
    if not distances[nearest] < _MOST_LEFT * distance_of(case, case.pipe):
        return None
    value = values[nearest]
    return found(
        choice.name,
        lambda pipe: choice.put(pipe, value),
        *choice.words(value, case.pipe),
        choice=math.log2(len(values)),
    )


# Scores of only some components of query and key, at the stated scale or at that of their number.


def _components(case: Case) -> Iterable[tuple[slice, bool]]:
    width = case.pipe.width
    if case.pipe.score not in ("dot", "cosine"):
        return ()
    counts = {width - 1, *range(0, width, max(1, width // _PARTS))}
    counts |= {count for block in _BLOCKS for count in range(block, width, block)}
    ends = [part for n in sorted(counts - {0}) for part in (slice(0, n), slice(width - n, width))]
    usual = case.pipe.score == "dot" and math.isclose(case.problem.scale, width**-0.5)
    return product(ends, (False, True) if usual else (False,))


def _of_components(pipe: Pipeline, value: tuple[slice, bool]) -> Pipeline:
    """Return the pipeline with some components of query and key, which keep their rotation."""
    part, with_scale = value

    def cut(_: Run, rows: Array) -> Array:
        return rows[..., part]

    made = pipe.then("operands", ("query", cut)).then("operands", ("key", cut))
    return made.but(scale=float((part.stop - part.start) ** -0.5)) if with_scale else made


def _components_told(value: tuple[slice, bool], pipe: Pipeline) -> tuple[str, ...]:
    part, with_scale = value
    count = part.stop - part.start
    which = f"{'first' if part.start == 0 else 'last'} {count}"
    return which, str(pipe.width), f", and scaled by 1/√{count}" if with_scale else ""


# Positions of the rotary embedding that are a few off.


def _steps(case: Case) -> Iterable[int]:
    if case.pipe.rope is None:
        return ()
    _, _, queries, keys = case.problem.shape
    far = {queries, keys, abs(keys - queries), *(2**n for n in range(6, keys.bit_length()))}
    steps = sorted({*range(1, _NEAR_STEPS), *far} - {0})
    return (sign * step for step in steps for sign in (-1, 1))


# An input that is written row by row and read column by column, or the other way round.

Order = Literal["C", "F"]
_WAYS = "column by column", "row by row"


def _read_otherwise(pipe: Pipeline, order: Order, name: str) -> Pipeline | None:
    array, layout = getattr(pipe, name), pipe.problem.layout
    if array is None or (array.shape[0] != pipe.shape[0] and "b" in layout.axes):
        return None
    joined = layout.join(array)
    poured = joined.ravel(order=order).reshape(joined.shape, order="C" if order == "F" else "F")
    return pipe.but(**{name: layout.split(poured, array.shape[1], name)})


# Only the keys that score highest.


def _with_strongest(pipe: Pipeline, count: int) -> Pipeline:
    """Return the pipeline that hides all but the keys with the highest scores of their query."""

    def step(_: Run, scores: Array) -> Array:
        if count >= scores.shape[-1]:
            return scores
        least = np.partition(scores, -count, axis=-1)[..., -count, None]
        return np.where(scores >= least, scores, -np.inf)

    return pipe.with_step("strongest", step, before=None)


CHOICES = (
    Choice(
        name="some_components",
        values=_components,
        put=_of_components,
        words=_components_told,
    ),
    Choice(
        name="rope_queries_moved",
        values=_steps,
        put=lambda pipe, step: pipe.but(query_positions=pipe.query_positions + step),
        words=lambda step, _: (counted(abs(step), "position"), "late" if step > 0 else "early"),
    ),
    Choice(
        name="strongest_keys",
        values=lambda case: [count for count in _COUNTS if count < case.problem.shape[3]],
        put=_with_strongest,
        words=lambda count, _: ("key" if count == 1 else f"{count} keys",),
    ),
    *(
        Choice(
            name=f"{name}_memory_order",
            values=lambda case: ("F", "C") if case.whole else (),
            put=partial(_read_otherwise, name=name),
            words=lambda order, _: _WAYS if order == "F" else _WAYS[::-1],
        )
        for name in ("value", "key", "query")
    ),
)
FITTINGS = tuple(at_first(partial(chosen, choice), choice.name) for choice in CHOICES)
