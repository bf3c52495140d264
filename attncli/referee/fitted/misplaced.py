"""Heads and batch entries that are exchanged: in the output, or in the keys and values."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention, with_rule
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.recipe import vary
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
                there = f"batch entry {self.batch[b, h]}"
                if own.head.any():
                    there = f"head {self.head[b, h]} of {there}"
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
    """Return the convention that heads read keys, values, masks or terms of others.

    Parameters
    ----------
    case : Case
        With all batch entries and heads, small enough to be evaluated.

    Returns
    -------
    Convention or None
        None where all read their own, or what one reads is nothing of the problem.
    """
    name = _judged(case)
    if name is None or canonical_file(case, name).shape != case.right[name].shape:
        return None
    found = (_misplaced(case, name, source) for source in _sources(case.recipe))
    return next((convention for convention in found if convention is not None), None)


class _Source(NamedTuple):
    """Something that each head of each batch entry reads.

    Attributes
    ----------
    name : str
    shape : (int, int)
        Of how many batch entries and heads there is one.
    read : callable
        The recipe in which each reads that of another.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[Recipe, _Places], Recipe]

    def own(self, problem: Problem) -> _Places:
        """Return what each head should read."""
        batches, heads = np.indices(problem.shape[:2])
        entries, groups = self.shape
        return _Places(batches % entries, heads // (problem.shape[1] // groups))


def _sources(recipe: Recipe) -> Iterator[_Source]:
    problem = recipe.problem
    sides = (("key", "value"), ("key",), ("value",)) if problem.value is not None else (("key",),)
    given = [
        *(
            _Source(" and ".join(f"{n}s" for n in names), problem.key.shape[:2], _read_of(*names))
            for names in sides
        ),
        *(_Source(n, r.shape[:2], _read_rule(n)) for n, r in recipe.rules.items() if n == "mask"),
        *(
            _Source({"alibi": "slopes"}.get(n, n), term.shape[:2], _read_term(n))
            for n, term in recipe.terms.items()
        ),
    ]
    return (source for source in given if 1 < math.prod(source.shape) <= _MOST_MOVES)


def _misplaced(case: Case, name: str, source: _Source) -> Convention | None:
    problem, file = case.recipe.problem, canonical_file(case, name)
    own = source.own(problem)
    best = np.full(problem.shape[:2], np.inf)
    places = _Places(own.batch.copy(), own.head.copy())
    entries, groups = source.shape
    for by, over in product(range(entries), range(groups)):
        tried = _Places((own.batch + by) % entries, (own.head + over) % groups)
        made = evaluate(source.read(case.recipe, tried))[name]
        with np.errstate(invalid="ignore"):
            apart = np.abs(made - file).max(axis=(2, 3))
        nearer = apart < best
        best = np.where(nearer, apart, best)
        for mine, other in zip(places, tried, strict=True):
            np.copyto(mine, other, where=nearer)
    words = _told(places.pairs(own), f"reads the {source.name} of")
    if not words or (best > case.recipe.resolution).any():
        return None
    shared_by_heads = 1 < groups < problem.shape[1]
    return Convention(
        "inputs_misplaced",
        f"heads or batch entries read what belongs to others: {words}"
        + (" (counted in heads of the keys)" if shared_by_heads else ""),
        lambda recipe: source.read(recipe, places),
        topic=topics.HEADS,
        fix=f"let each head of each batch entry read its own {source.name}",
        shows="more than one batch entry or head",
        needs=_WHOLE,
    )


def _read_of(*sides: str) -> Callable[[Recipe, _Places], Recipe]:
    """Make the recipe in which each head reads the keys or values of another."""

    def read(recipe: Recipe, places: _Places) -> Recipe:
        problem = recipe.problem
        changed = {}
        for name, array in (("key", problem.key), ("value", problem.value)):
            if array is None:
                continue
            wide = widen(array, np.float64)
            # All heads have their own now.
            changed[name] = wide[places] if name in sides else _each(problem, wide)
        return vary(recipe, **changed)

    return read


def _each(problem: Problem, array: Array) -> Array:
    batch = problem.shape[0]
    each = shared(problem, array)
    return np.broadcast_to(each, (batch, *each.shape[1:]))


def _read_rule(name: str) -> Callable[[Recipe, _Places], Recipe]:
    return lambda recipe, places: with_rule(recipe, name, recipe.rules[name][places])


def _read_term(name: str) -> Callable[[Recipe, _Places], Recipe]:
    return lambda recipe, places: replace(
        recipe, terms={**recipe.terms, name: recipe.terms[name][places]}
    )


def _judged(case: Case) -> str | None:
    """Return an output that shows each head; None where there is none."""
    problem = case.recipe.problem
    names = ("weights", "context") if problem.output is None else ("weights",)
    several = problem.shape[0] * problem.shape[1] > 1
    if not several or not comparable(case):
        return None
    return next((name for name in names if name in case.files), None)
