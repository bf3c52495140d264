"""Heads and batch entries that are exchanged: in the output, or in the keys and values."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.recipe import vary
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.convention import Need
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["misplaced_inputs", "misplaced_outputs"]

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]
_WHOLE: frozenset[Need] = frozenset({"batch", "heads"})
# Of heads of all batch entries, and of numbers of each that are compared.
_MOST_HEADS, _MOST_NUMBERS = 128, 64
# Evaluations of a problem: one for each way to move batch entries and heads.
_MOST_MOVES = 64
_SIDES = (("key", "value"), ("key",), ("value",))
_NAMED = 4


class _Places(NamedTuple):
    """The batch entry and the head that each (b, h) has in the place of its own, (B, H) each."""

    batch: Indices
    head: Indices

    def pairs(self, own: _Places) -> Iterator[tuple[str, str]]:
        """Yield what stands where something else should, and what."""
        if (self.batch == own.batch).all() and (self.head == self.head[0]).all():
            moved = np.flatnonzero(self.head[0] != own.head[0])
            yield from ((f"head {h}", f"head {self.head[0, h]}") for h in moved)
        elif (self.head == own.head).all() and (self.batch == self.batch[:, :1]).all():
            moved = np.flatnonzero(self.batch[:, 0] != own.batch[:, 0])
            yield from ((f"batch entry {b}", f"batch entry {self.batch[b, 0]}") for b in moved)
        else:
            for b, h in np.argwhere((self.batch != own.batch) | (self.head != own.head)):
                there = f"head {self.head[b, h]} of entry {self.batch[b, h]}"
                yield f"head {h} of batch entry {b}", there


def _told(pairs: Iterator[tuple[str, str]], verb: str) -> str:
    words = [f"{one} {verb} {other}" for one, other in pairs]
    more = len(words) - _NAMED
    return "; ".join(words[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def misplaced_outputs(case: Case) -> Convention | None:
    """Return the convention that heads or batch entries of the output stand in others' places.

    Parameters
    ----------
    case : Case
        With all batch entries and heads.

    Returns
    -------
    Convention or None
        None where they stand in their own, or any is none of the answer's.
    """
    name = _judged(case)
    if name is None:
        return None
    file, right = canonical_file(case, name), case.right[name]
    batch, heads = right.shape[:2]
    if batch * heads > _MOST_HEADS or file.shape != right.shape:
        return None
    places = _nearest(file, right, case.recipe.resolution)
    if places is None:
        return None
    words = _told(places.pairs(_Places(*np.indices((batch, heads)))), "is")
    if not words:
        return None

    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        return {name: array[places.batch, places.head] for name, array in outputs.items()}

    return Convention(
        "outputs_misplaced",
        "the numbers are right, but heads or batch entries stand in the places of others: in the "
        f"file {words} of the answer",
        lambda recipe: replace(recipe, finish=(*recipe.finish, finish)),
        topic=topics.HEADS,
        fix="write each head of each batch entry in its own place",
        shows="more than one batch entry or head",
        needs=_WHOLE,
        late=True,
    )


def _nearest(file: Array, right: Array, error: float) -> _Places | None:
    """Return which of the answer's slices each slice of a file is."""
    batch, heads = right.shape[:2]
    files, answers = (array.reshape(batch * heads, -1) for array in (file, right))
    step = max(1, files.shape[1] // _MOST_NUMBERS)
    some, others = files[:, ::step], answers[:, ::step]
    with np.errstate(invalid="ignore"):
        apart = np.abs(some[:, None] - others[None]).max(axis=-1)
    apart[np.isnan(apart)] = np.inf
    nearest = apart.argmin(axis=1)
    if (apart.min(axis=1) > error).any():
        return None
    one, other = np.unravel_index(nearest.reshape(batch, heads), (batch, heads))
    return _Places(one, other)


def misplaced_inputs(case: Case) -> Convention | None:
    """Return the convention that heads read keys or values of others.

    Parameters
    ----------
    case : Case
        With all batch entries and heads, small enough to be evaluated.

    Returns
    -------
    Convention or None
        None where all read their own, or what one reads are no keys and values of the problem.
    """
    name, problem = _judged(case), case.recipe.problem
    moves = problem.key.shape[0] * problem.key.shape[1]
    if name is None or not 1 < moves <= _MOST_MOVES:
        return None
    for sides in _SIDES:
        if problem.value is None and "value" in sides:
            continue
        convention = _misplaced(case, name, sides)
        if convention is not None:
            return convention
    return None


def _misplaced(case: Case, name: str, sides: tuple[str, ...]) -> Convention | None:
    problem = case.recipe.problem
    file = canonical_file(case, name)
    if file.shape != case.right[name].shape:
        return None
    batch, heads = problem.shape[:2]
    own = _own(problem)
    best = np.full((batch, heads), np.inf)
    places = _Places(own.batch.copy(), own.head.copy())
    entries, groups = problem.key.shape[:2]
    for by, over in product(range(entries), range(groups)):
        tried = _Places((own.batch + by) % entries, (own.head + over) % groups)
        made = evaluate(_reading(case.recipe, tried, sides))[name]
        with np.errstate(invalid="ignore"):
            apart = np.abs(made - file).max(axis=(2, 3))
        nearer = apart < best
        best = np.where(nearer, apart, best)
        for mine, other in zip(places, tried, strict=True):
            np.copyto(mine, other, where=nearer)
    words = _told(places.pairs(own), f"reads the {' and '.join(f'{s}s' for s in sides)} of")
    if not words or (best > case.recipe.resolution).any():
        return None
    return Convention(
        "inputs_misplaced",
        f"heads or batch entries read what belongs to others: {words}"
        + (" (counted in heads of the keys)" if problem.key.shape[1] < heads else ""),
        lambda recipe: _reading(recipe, places, sides),
        topic=topics.HEADS,
        fix="give each batch entry its own keys and values, and each group of heads its own head "
        "of them",
        shows="more than one batch entry or head",
        needs=_WHOLE,
    )


def _own(problem: Problem) -> _Places:
    """Return the batch entry and the head of the keys that each head reads."""
    batches, heads = np.indices(problem.shape[:2])
    entries, groups = problem.key.shape[:2]
    return _Places(batches % entries, heads // (problem.shape[1] // groups))


def _reading(recipe: Recipe, places: _Places, sides: tuple[str, ...]) -> Recipe:
    """Return the recipe in which each head reads the keys or values of another."""
    problem = recipe.problem
    changed = {}
    for name, array in (("key", problem.key), ("value", problem.value)):
        if array is None:
            continue
        wide = widen(array, np.float64)
        # All heads have their own now.
        changed[name] = wide[places] if name in sides else _each(problem, wide)
    return vary(recipe, **changed)


def _each(problem: Problem, array: Array) -> Array:
    batch = problem.shape[0]
    each = shared(problem, array)
    return np.broadcast_to(each, (batch, *each.shape[1:]))


def _judged(case: Case) -> str | None:
    """Return an output that shows each head; None where there is none."""
    problem = case.recipe.problem
    names = ("weights", "context") if problem.output is None else ("weights",)
    several = problem.shape[0] * problem.shape[1] > 1
    if not several or not comparable(case):
        return None
    return next((name for name in names if name in case.files), None)
