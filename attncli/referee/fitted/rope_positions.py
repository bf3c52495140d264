"""Wrong positions of rotated queries and keys, read off rows: a few off, or from 0 again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import rotate
from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of, turned_at
from attncli.referee.convention import Convention
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.other_causal import output_of_rows, some_of, wrong_rows
from attncli.referee.fitted.spans import SLACK
from attncli.referee.recipe import vary

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["rope_positions_restart", "rope_queries_moved", "rope_query_positions_restart"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
# The case, an output, one of its rows and some numbers in; how far the row is off with each out.
Errors = Callable[["Case", str, int, Ints], Array]
# In which the numbers that are left are tried.
_ROWS = 8
# Of a query at all positions that are tried.
_MOST_SCORES = 2**22
_MOST_CHUNKS = 64
_restart = partial(
    Convention,
    topic=topics.ROPE_PLACE,
    fix="add to the position of a token where its chunk, or the part that its rank holds, begins "
    "in the sequence",
    shows="more than one chunk",
)


def rope_queries_moved(case: Case) -> Convention | None:
    """Return the convention that queries are rotated as if they stood some positions further."""
    _, heads, queries, keys = case.recipe.problem.shape
    most = min(max(queries, keys), _MOST_SCORES // (2 * heads * keys))
    steps = np.arange(-most, most + 1)
    step = _number(case, steps[steps != 0], partial(_errors_of_query, lambda own, step: own + step))
    if step is None:
        return None
    return Convention(
        "rope_queries_moved",
        f"the rotary embedding takes the queries {counted(abs(step), 'position')} too "
        f"{'late' if step > 0 else 'early'}",
        lambda recipe: turned_at(recipe, [own + step for own in _positions(recipe)]),
        topic=topics.ROPE_PLACE,
        fix="rotate query i by the angle of position i + offset, and count padding and a cache for "
        "queries as for keys",
        shows="any query",
        choice=math.log2(2 * most),
    )


def rope_query_positions_restart(case: Case) -> Convention | None:
    """Return the convention that the positions of queries, not of keys, begin anew after some."""
    sizes = _sizes(case)
    size = _number(case, sizes, partial(_errors_of_query, lambda own, size: own % size))
    if size is None:
        return None
    return _restart(
        "rope_query_positions_restart",
        f"the rotary embedding counts the queries from 0 again after every {size:,} tokens, and "
        "the keys through to the last",
        lambda recipe: turned_at(recipe, [own % size for own in _positions(recipe)]),
        choice=math.log2(len(sizes)),
        # Of queries of one chunk it is the same.
        variant_of=("rope_queries_moved",),
    )


def rope_positions_restart(case: Case) -> Convention | None:
    """Return the convention that the positions of queries and keys begin anew after some."""
    sizes = _sizes(case)
    size = _number(case, sizes, _errors_of_size)
    if size is None:
        return None
    return _restart(
        "rope_positions_restart",
        f"the rotary embedding counts queries and keys from 0 again after every {size:,} tokens",
        lambda recipe: _restarted(recipe, size),
        choice=math.log2(len(sizes)),
    )


def _sizes(case: Case) -> Ints:
    """Return how many tokens a chunk may have: powers of two, and even parts of the sequence.

    The largest stands first: where a slice shows only the first rows that are wrong, the others
    that divide it make the same.
    """
    keys = case.recipe.problem.shape[3]
    most = min(_MOST_CHUNKS, keys // 2)
    parts = {keys // n for n in range(2, most + 1) if keys % n == 0}
    powers = {2**n for n in range(1, keys.bit_length()) if 2**n < keys}
    return np.array(sorted(parts | powers, reverse=True), np.int64)


def _positions(recipe: Recipe) -> list[Ints]:
    """Return where the queries of each batch entry stand, (L,) each."""
    batch, _, queries, _ = recipe.problem.shape
    return [np.arange(queries) + recipe.problem.visible.offset(b) for b in range(batch)]


def _restarted(recipe: Recipe, size: int) -> Recipe | None:
    batch, _, _, keys = recipe.problem.shape
    there = [np.arange(keys) % size] * min(batch, len(recipe.problem.key))
    return turned_at(recipe, [own % size for own in _positions(recipe)], there)


def _number(case: Case, numbers: Ints, errors_of: Errors) -> int | None:
    """Return the number that comes nearest to all rows tried; None where none comes near."""
    name = None if case.recipe.problem.rope is None else output_of_rows(case)
    if name is None:
        return None
    wrong = wrong_rows(case, name) & np.isfinite(case.canonical(name)[0]).all(axis=(0, 2))
    total = np.zeros(len(numbers))
    for row in some_of(wrong, _ROWS):
        if not numbers.size or time.monotonic() > case.deadline:
            return None
        errors = errors_of(case, name, row, numbers)
        near = errors <= SLACK * case.recipe.resolution
        total, numbers = (total + errors)[near], numbers[near]
    return int(numbers[int(np.argmin(total))]) if numbers.size and wrong.any() else None


def _errors_of_query(
    moved: Callable[[int, Ints], Ints], case: Case, name: str, row: int, numbers: Ints
) -> Array:
    """Return how far a row is from what its query makes at the position that each number gives."""
    own = case.row(0, row).recipe
    problem, rope = own.problem, own.problem.rope
    if rope is None:
        return np.full(len(numbers), np.inf)
    places, which = np.unique(moved(problem.visible.offset(0), numbers), return_inverse=True)
    query = rotate(
        np.repeat(widen(problem.query, np.float64), len(places), axis=2),
        places,
        pairing=rope.pairing,
        frequencies=rope.of_width(problem.query.shape[3]),
    )
    made = evaluate(vary(own, **{**factors_of(problem), "query": query}, rope=None))
    return _apart(case, name, row, made[name])[which]


def _errors_of_size(case: Case, name: str, row: int, sizes: Ints) -> Array:
    """Return how far a row is from what positions that restart after each size make."""
    own = case.row(0, row).recipe
    made = (_restarted(own, size) for size in sizes.tolist())
    return np.concatenate(
        [_apart(case, name, row, evaluate(recipe)[name]) for recipe in made if recipe is not None]
    )


def _apart(case: Case, name: str, row: int, made: Array) -> Array:
    """Return how far a row of the first batch entry is from each of those made, (n,)."""
    file = case.canonical(name)[0, :, row, None]
    with np.errstate(invalid="ignore"):
        apart = np.where(made[0] == file, 0, np.abs(made[0] - file)).max(axis=(0, 2))
    return np.where(np.isnan(apart), np.inf, apart)
