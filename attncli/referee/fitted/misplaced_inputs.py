"""Keys, values, masks, terms and sinks of one head or batch entry that another one reads."""

from __future__ import annotations

import math
import time
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention, with_rule
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.places import Places, judged, told
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["misplaced_inputs"]

Array = npt.NDArray[Any]
# Evaluations of a problem: one for each way to move batch entries and heads.
_MOST_MOVES = 64


def misplaced_inputs(case: Case) -> Convention | None:
    """Return the convention that heads read keys, values, masks or terms of others."""
    name = judged(case)
    if name is None or case.canonical(name).shape != case.right[name].shape:
        return None
    for source in _sources(case.recipe):
        if time.monotonic() > case.deadline:
            break
        convention = _misplaced(case, name, source)
        if convention is not None:
            return convention
    return None


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
    read: Callable[[Recipe, Places], Recipe]

    def own(self, problem: Problem) -> Places:
        """Return what each head should read."""
        batches, heads = np.indices(problem.shape[:2])
        entries, groups = self.shape
        return Places(batches % entries, heads // (problem.shape[1] // groups))


def _sources(recipe: Recipe) -> Iterator[_Source]:
    problem = recipe.problem
    sides = (("key", "value"), ("key",), ("value",)) if problem.value is not None else (("key",),)
    given = [
        *(
            _Source(" and ".join(f"{n}s" for n in names), problem.key.shape[:2], _read_of(*names))
            for names in sides
        ),
        _Source("queries", problem.query.shape[:2], _read_queries),
        *(_Source(n, r.shape[:2], _read_rule(n)) for n, r in recipe.rules.items() if n == "mask"),
        *(
            _Source({"alibi": "slopes"}.get(n, n), term.shape[:2], _read_term(n))
            for n, term in recipe.terms.items()
        ),
    ]
    if problem.sinks is not None:
        given.append(_Source("sink", (1, len(problem.sinks)), _read_sinks))
    return (source for source in given if 1 < math.prod(source.shape) <= _MOST_MOVES)


def _misplaced(case: Case, name: str, source: _Source) -> Convention | None:
    problem, file = case.recipe.problem, case.canonical(name)
    own = source.own(problem)
    best = np.full(problem.shape[:2], np.inf)
    places = Places(own.batch.copy(), own.head.copy())
    entries, groups = source.shape
    for by, over in product(range(entries), range(groups)):
        if time.monotonic() > case.deadline:
            return None
        tried = Places((own.batch + by) % entries, (own.head + over) % groups)
        made = evaluate(source.read(case.recipe, tried))[name]
        with np.errstate(invalid="ignore"):
            apart = np.abs(made - file).max(axis=(2, 3))
        nearer = apart < best
        best = np.where(nearer, apart, best)
        for mine, other in zip(places, tried, strict=True):
            np.copyto(mine, other, where=nearer)
    sharing = problem.shape[1] // groups if groups > 1 else 1
    pairs = places.pairs(own)
    if sharing > 1:
        pairs = ((f"query {one}", f"key {other}") for one, other in pairs)
    words = told(pairs, f"reads the {source.name} of")
    if not words or (best > case.recipe.resolution).any():
        return None
    return Convention(
        "inputs_misplaced",
        f"heads or batch entries read what belongs to others: {words}"
        + (f" (to query head h belongs key head h // {sharing})" if sharing > 1 else ""),
        lambda recipe: source.read(recipe, places),
        topic=topics.HEADS,
        fix=f"let each head of each batch entry read its own {source.name}",
        shows="more than one batch entry or head",
        needs=frozenset({"batch", "heads"}),
    )


def _read_of(*sides: str) -> Callable[[Recipe, Places], Recipe]:
    """Make the recipe in which each head reads the keys or values of another."""

    def read(recipe: Recipe, places: Places) -> Recipe:
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


def _read_queries(recipe: Recipe, places: Places) -> Recipe:
    return vary(recipe, query=widen(recipe.problem.query, np.float64)[places])


def _each(problem: Problem, array: Array) -> Array:
    batch = problem.shape[0]
    each = shared(problem, array)
    return np.broadcast_to(each, (batch, *each.shape[1:]))


def _read_rule(name: str) -> Callable[[Recipe, Places], Recipe]:
    return lambda recipe, places: with_rule(recipe, name, recipe.rules[name][places])


def _read_sinks(recipe: Recipe, places: Places) -> Recipe:
    sinks = recipe.problem.sinks
    return recipe if sinks is None else vary(recipe, sinks=sinks[places.head[0]])


def _read_term(name: str) -> Callable[[Recipe, Places], Recipe]:
    return lambda recipe, places: replace(
        recipe, terms={**recipe.terms, name: recipe.terms[name][places]}
    )
