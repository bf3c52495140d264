"""Mistakes of kernels in a causal mask that they apply block by block."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SIZES
from attncli.referee.convention import Apply, Convention, moved, with_rule
from attncli.referee.recipe import Recipe, distance

__all__ = ["CAUSAL_BLOCKS"]


def _by_blocks(size: int) -> Apply:
    """Make an `apply` in which a block of queries sees whole blocks of keys."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not problem.visible.causal or problem.shape[3] <= size:
            return None
        keys = np.arange(problem.shape[3])
        ends = (distance(problem) + keys) // size * size + size
        return with_rule(recipe, "causal", keys < ends)

    return apply


def _zeros_in_blocks(size: int) -> Apply:
    """Make an `apply` in which the hidden keys of the block on the diagonal have the score 0."""
    by_blocks = _by_blocks(size)

    def apply(recipe: Recipe) -> Recipe | None:
        made = by_blocks(recipe)
        if made is None:
            return None
        terms = {**made.terms, "times_mask": recipe.rules["causal"].astype(np.float64)}
        return moved(replace(made, terms=terms), "times_mask", before="hide")

    return apply


def _diagonal_twice(size: int) -> Apply:
    """Make an `apply` in which the keys of the block on the diagonal count twice."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not problem.visible.causal or problem.shape[3] <= size:
            return None
        keys = np.arange(problem.shape[3])
        same = (distance(problem) + keys) // size == keys // size
        terms = {**recipe.terms, "again": math.log(2) * same}
        return moved(replace(recipe, terms=terms), "again", before="hide")

    return apply


def _within_blocks(size: int) -> Apply:
    """Make an `apply` whose causal rule compares places within blocks of queries and of keys."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not problem.visible.causal or problem.shape[3] <= size:
            return None
        keys = np.arange(problem.shape[3])
        return with_rule(recipe, "causal", keys % size <= (distance(problem) + keys) % size)

    return apply


def _first_block_only(size: int) -> Apply:
    """Make an `apply` whose causal rule hides keys of the first block only."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not problem.visible.causal or problem.shape[3] <= size:
            return None
        keys = np.arange(problem.shape[3])
        return with_rule(recipe, "causal", (distance(problem) >= 0) | (keys >= size))

    return apply


_causal = partial(Convention, topic=topics.CAUSAL_BLOCKS)

CAUSAL_BLOCKS = (
    *(
        _causal(
            f"causal_by_blocks_of_{size}",
            f"the causal mask goes by whole blocks of {size} keys: the block on the diagonal is "
            "seen to its end",
            _by_blocks(size),
            fix="mask the keys of the block on the diagonal one by one",
            topic=topics.CAUSAL,
            shows=f"more keys than {size}, and more than one query in a block of them",
            variant_of=("causal_missing",),
        )
        for size in SIZES
    ),
    *(
        _causal(
            f"zeros_in_causal_blocks_of_{size}",
            f"hidden keys in the block of {size} on the diagonal get the score 0, and so weight",
            _zeros_in_blocks(size),
            fix="give hidden keys the score −inf, before the softmax",
            shows=f"more keys than {size}",
        )
        for size in SIZES
    ),
    *(
        _causal(
            f"diagonal_block_of_{size}_twice",
            f"the block of {size} keys on the diagonal counts twice",
            _diagonal_twice(size),
            fix="let the loop over the blocks before the diagonal end before it",
            shows=f"more keys than {size}",
        )
        for size in SIZES
    ),
    *(
        _causal(
            f"causal_within_blocks_of_{size}",
            f"the causal mask compares places within blocks of {size} queries and keys, not in "
            "the sequence",
            _within_blocks(size),
            fix="add where the block begins to the index of the query, and of the key",
            shows=f"more keys than {size}",
        )
        for size in SIZES
    ),
    *(
        _causal(
            f"causal_in_first_block_of_{size}",
            f"the causal mask is applied to the first {size} keys only",
            _first_block_only(size),
            fix="apply the mask to every block of keys that ends behind the query",
            shows=f"more keys than {size}",
        )
        for size in SIZES
    ),
)
