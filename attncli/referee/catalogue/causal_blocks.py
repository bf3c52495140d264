"""Mistakes of kernels in a causal mask that they apply block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_each_size
from attncli.referee.convention import Apply, Convention, moved, with_rule
from attncli.referee.recipe import Recipe, distance
from attncli.referee.replacing import replace

__all__ = ["CAUSAL_BLOCKS"]

Array = npt.NDArray[Any]
# Blocks of one kind and of the other, as kernels have them.
_TWO_SIZES = ((256, 128), (256, 64), (128, 64), (128, 32), (64, 32), (64, 16), (32, 16))
# The recipe, where queries and keys stand, and the size of a block in.
Change = Callable[[Recipe, Array, Array, int], Recipe | None]


def _in_blocks(change: Change, size: int) -> Apply:
    """Make an `apply` that changes a causal problem of more keys than a block has."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not problem.visible.causal or problem.shape[3] <= size:
            return None
        keys = np.arange(problem.shape[3])
        return change(recipe, distance(problem) + keys, keys, size)

    return apply


def _to_the_end(recipe: Recipe, queries: Array, keys: Array, size: int) -> Recipe:
    """Let a block of queries see whole blocks of keys."""
    return with_rule(recipe, "causal", keys < queries // size * size + size)


def _before_the_diagonal(recipe: Recipe, queries: Array, keys: Array, size: int) -> Recipe | None:
    """Let a block of queries see the blocks of keys before its own."""
    if recipe.whole.shape[2] == 1:  # the last block of all is lost, rather
        return None
    return with_rule(recipe, "causal", keys < queries // size * size)


def _zeros_to_the_end(recipe: Recipe, queries: Array, keys: Array, size: int) -> Recipe:
    """Give the hidden keys of the block on the diagonal the score 0."""
    made = _to_the_end(recipe, queries, keys, size)
    terms = {**made.terms, "times_mask": recipe.rules["causal"].astype(np.float64)}
    return moved(replace(made, terms=terms), "times_mask", before="hide")


def _diagonal_twice(recipe: Recipe, queries: Array, keys: Array, size: int) -> Recipe:
    """Count the keys of the block on the diagonal twice."""
    terms = {**recipe.terms, "again": math.log(2) * (queries // size == keys // size)}
    return moved(replace(recipe, terms=terms), "again", before="hide")


def _within(recipe: Recipe, queries: Array, keys: Array, size: int) -> Recipe:
    """Compare places within blocks of queries and of keys."""
    return with_rule(recipe, "causal", keys % size <= queries % size)


def _within_blocks_before(recipe: Recipe, queries: Array, keys: Array, size: int) -> Recipe:
    """Compare places within blocks, of the blocks that the query's own follows."""
    before = keys // size <= queries // size
    return with_rule(recipe, "causal", before & (keys % size <= queries % size))


def _last_only(size: int, recipe: Recipe, queries: Array, keys: Array, larger: int) -> Recipe:
    """Mask only the last of the smaller blocks of keys on a block of queries' diagonal."""
    masked = (queries // larger + 1) * larger - size
    return with_rule(recipe, "causal", (keys <= queries) | (keys < masked))


def _whole_blocks_only(
    size: int, recipe: Recipe, queries: Array, keys: Array, larger: int
) -> Recipe | None:
    """End the loop over larger blocks of keys before one that a block of queries does not fill."""
    if recipe.whole.shape[2] == 1:  # the last block of all is lost, rather
        return None
    end = (queries // size + 1) * size // larger * larger
    return with_rule(recipe, "causal", (keys <= queries) & (keys < end))


def _in_the_first(recipe: Recipe, queries: Array, keys: Array, size: int) -> Recipe:
    """Hide keys of the first block only."""
    return with_rule(recipe, "causal", (keys <= queries) | (keys >= size))


def _of_two_sizes(
    name: str, meaning: str, change: Callable[..., Recipe | None], fix: str
) -> Iterator[Convention]:
    """Yield a mistake of kernels whose blocks of queries and keys have different sizes."""
    for larger, size in _TWO_SIZES:
        yield Convention(
            name.format(larger, size),
            meaning.format(larger, size),
            _in_blocks(partial(change, size), larger),
            topic=topics.CAUSAL_BLOCKS,
            fix=fix,
            shows=f"more keys than {larger}",
            variant_of=("causal_missing",),
        )


_of_each_size = partial(of_each_size, topic=topics.CAUSAL_BLOCKS, shows="more keys than {}")

CAUSAL_BLOCKS = (
    *of_each_size(
        "causal_by_blocks_of_{}",
        "the causal mask goes by whole blocks of {} keys: the block on the diagonal is seen to its "
        "end",
        partial(_in_blocks, _to_the_end),
        topic=topics.CAUSAL,
        fix="mask the keys of the block on the diagonal one by one",
        shows="more keys than {}, and more than one query in a block of them",
        variant_of=("causal_missing",),
    ),
    *_of_each_size(
        "diagonal_block_of_{}_lost",
        "queries see the blocks of {} keys before their own, and none of the block on the diagonal",
        partial(_in_blocks, _before_the_diagonal),
        fix="let the loop over the blocks of keys end behind the diagonal, not before it",
    ),
    *_of_each_size(
        "zeros_in_causal_blocks_of_{}",
        "hidden keys in the block of {} on the diagonal get the score 0, and so weight",
        partial(_in_blocks, _zeros_to_the_end),
        fix="give hidden keys the score −inf, before the softmax",
    ),
    *_of_each_size(
        "diagonal_block_of_{}_twice",
        "the block of {} keys on the diagonal counts twice",
        partial(_in_blocks, _diagonal_twice),
        fix="let the loop over the blocks before the diagonal end before it",
    ),
    *_of_each_size(
        "causal_within_blocks_of_{}",
        "the causal mask compares places within blocks of {} queries and keys, not in the sequence",
        partial(_in_blocks, _within),
        fix="add where the block begins to the index of the query, and of the key",
        variant_of=("chunks_unasked",),
    ),
    *_of_each_size(
        "causal_within_each_block_of_{}",
        "the causal mask of the block of {} keys on the diagonal is laid on the blocks before it, "
        "too",
        partial(_in_blocks, _within_blocks_before),
        fix="mask the block on the diagonal alone: all keys of the blocks before it are seen",
        variant_of=("chunks_unasked",),
    ),
    *_of_each_size(
        "causal_in_first_block_of_{}",
        "the causal mask is applied to the first {} keys only",
        partial(_in_blocks, _in_the_first),
        fix="apply the mask to every block of keys that ends behind the query",
        variant_of=("causal_missing",),
    ),
    *_of_two_sizes(
        "only_last_{1}_masked_of_{0}",
        "of the {0} keys on the diagonal of a block of {0} queries only the last {1} are masked",
        _last_only,
        "mask every block of keys that ends behind the first query of the block",
    ),
    *_of_two_sizes(
        "blocks_of_{0}_cut_at_{1}",
        "the loop over blocks of {0} keys ends before the one on the diagonal where a block of "
        "{1} queries does not reach its end",
        _whole_blocks_only,
        "round the number of blocks of keys up, not down",
    ),
)
