"""Blocks on the diagonal that a causal mask gets wrong beside others that are right.

A block of queries that is wrong is wrong in all of its rows, but for the last one where it sees the
block of keys on the diagonal to its end. So the rows of a file tell the size of the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors.text import first_few
from attncli.referee import topics
from attncli.referee.convention import Convention, with_rule
from attncli.referee.fitted.other_causal import (
    causal_output,
    errors_of_rules,
    some_of,
    wrong_rows,
)

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["diagonal_blocks"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
_SIZES = (*range(2, 16), *range(16, 1025, 8))
# Of the rows that should be wrong, that many are where a block is.
_MOST = 0.5
# Rows that are right or wrong against expectation, as a share of those that are wrong.
_STRAY = 0.25
# Ways that come nearest by which rows are wrong, and rows in which they are tried.
_TRIED, _ROWS = 16, 4


def diagonal_blocks(case: Case) -> Convention | None:
    """Return the convention that a causal mask is wrong in some blocks on the diagonal."""
    name = causal_output(case)
    if name is None:
        return None
    wrong = wrong_rows(case, name)
    ways = _ways(wrong)
    rows = some_of(wrong & np.isfinite(case.canonical(name)[0]).all(axis=(0, 2)), _ROWS)
    if not ways or not rows:
        return None
    errors: Array = np.zeros(len(ways))
    for row in rows:
        rules = np.concatenate([way.seen(case.recipe, np.array([row])) for way in ways])
        errors += errors_of_rules(case, name, row, rules)
    return _convention(ways[int(np.argmin(errors))])


class _Way(NamedTuple):
    """Which blocks are wrong, and how.

    Attributes
    ----------
    size : int
        How many queries and keys a block has.
    blocks : ndarray of int
        The numbers of those that are wrong.
    queries : int
        How many there are in all.
    to_the_end : bool
        The keys on the diagonal are all seen; else none of them is.
    """

    size: int
    blocks: Indices
    queries: int
    to_the_end: bool

    def seen(self, recipe: Recipe, queries: Indices) -> Bools:
        """Return which keys some queries of the whole problem see, (L, S)."""
        block = queries // self.size
        end = (block + self.to_the_end) * self.size
        ends = np.where(np.isin(block, self.blocks), end, queries + 1)
        return np.asarray(np.arange(recipe.problem.shape[3]) < ends[:, None])

    @property
    def where(self) -> str:
        """Which blocks are wrong; of one alone its queries, as it may be cut off at the end."""
        wrong, every = self.blocks.tolist(), list(range(-(-self.queries // self.size)))
        if len(wrong) == 1:
            start = wrong[0] * self.size
            return f"the block of queries {start} to {min(start + self.size, self.queries) - 1}"
        named = {
            "every odd block": every[1::2],
            "every even block": every[::2],
            "every block but the first": every[1:],
            "every block but the last": every[:-1],
        }
        others = f"blocks {first_few([str(block) for block in wrong])}"
        which = next((words for words, blocks in named.items() if blocks == wrong), others)
        return f"{which} of {self.size} queries"


def _ways(wrong: Bools) -> list[_Way]:
    """Return the ways in which blocks may be wrong where just these rows (L,) are, likely first."""
    found = [
        way
        for size in _SIZES
        if size < len(wrong)
        for to_the_end in (True, False)
        if (way := _way(wrong, size, to_the_end=to_the_end)) is not None
    ]
    return [way for _, way in sorted(found, key=lambda item: item[0])[:_TRIED]]


def _way(wrong: Bools, size: int, *, to_the_end: bool) -> tuple[int, _Way] | None:
    """Return how many rows are wrong or right against expectation, and the way."""
    rows = np.arange(len(wrong))
    starts = rows[::size]
    expected = (rows % size != size - 1) if to_the_end else np.ones(len(rows), np.bool_)
    shares = np.add.reduceat(wrong & expected, starts) / np.add.reduceat(expected, starts)
    in_block = np.repeat(shares > _MOST, size)[: len(rows)]
    stray = int(np.count_nonzero(wrong != (in_block & expected)))
    blocks = np.flatnonzero(shares > _MOST)
    if not 0 < len(blocks) < len(starts) or stray > _STRAY * np.count_nonzero(wrong):
        return None
    return stray, _Way(size, blocks, len(rows), to_the_end)


def _convention(way: _Way) -> Convention:
    if way.to_the_end:
        name, how = "some_diagonal_blocks_unmasked", "is seen to its end"
        fix = "mask every block of keys that ends behind the first query of the block"
    else:
        name, how = "some_diagonal_blocks_lost", "is not seen at all"
        fix = (
            "let the loop over the blocks of keys end behind the diagonal, for every block of them"
        )
    return Convention(
        name,
        f"in {way.where} the block of keys on the diagonal {how}; in the others the causal mask is "
        "right",
        lambda recipe: _with_blocks(recipe, way),
        topic=topics.CAUSAL_BLOCKS,
        fix=fix,
        shows=f"more keys than {way.size}",
        variant_of=("prefix_unasked",),
    )


def _with_blocks(recipe: Recipe, way: _Way) -> Recipe:
    queries = recipe.start + np.arange(recipe.problem.shape[2])
    return with_rule(recipe, "causal", way.seen(recipe, queries)[None, None])
