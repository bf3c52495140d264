"""Mistakes of kernels that go over the keys block by block."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_each_size, with_zeros
from attncli.referee.convention import Apply, Convention, with_rule
from attncli.referee.options import with_first_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.recipe import Recipe

__all__ = ["BLOCKS"]

Array = npt.NDArray[Any]


def _without_keys(lost: Callable[[int], slice | None]) -> Apply:
    """Make an `apply` that leaves out some of so many keys."""

    def apply(recipe: Recipe) -> Recipe | None:
        keys = recipe.problem.shape[3]
        gone = lost(keys)
        if gone is None:
            return None
        kept = np.ones(keys, np.bool_)
        kept[gone] = False
        return with_rule(recipe, "block", kept[None, None, None])

    return apply


def _last(block: int) -> Apply:
    """Leave out the last block, be it whole or not."""
    return _without_keys(lambda n: slice((n - 1) // block * block, n) if n > block else None)


def _first(block: int) -> Apply:
    return _without_keys(lambda n: slice(0, block) if n > block else None)


def _zeros_counted(block: int) -> Apply:
    """Count the keys of zeros that fill the last block: each has the score 0."""

    def apply(recipe: Recipe) -> Recipe | None:
        extra = -recipe.problem.shape[3] % block
        return with_zeros(recipe, extra) if extra else None

    return apply


_block = partial(Convention, topic=topics.BLOCKS)
_of_each_size = partial(of_each_size, topic=topics.BLOCKS)

BLOCKS = (
    *_of_each_size(
        "last_block_of_{}_lost",
        "the last block of {} keys, which may be incomplete, is left out",
        _last,
        fix="go over all ⌈S/{}⌉ blocks, and mask the rest of the last one",
        shows="more than {} keys, another number of them in the last block of {}",
        option=lambda size: with_first_keys(lambda keys: (keys - 1) // size * size),
    ),
    *_of_each_size(
        "first_block_of_{}_lost",
        "the first block of {} keys is left out",
        _first,
        fix="begin with block 0",
        shows="more than {} keys",
    ),
    *_of_each_size(
        "zeros_to_{}_counted",
        "the keys are filled up with zeros to a multiple of {}, and the zeros get weight",
        _zeros_counted,
        fix="give the keys beyond the last the score −inf",
        shows="another number of zeros up to a multiple of {}",
        variant_of=("mask_as_zeros",),
    ),
    _block(
        "last_key_lost",
        "the last key is left out",
        _without_keys(lambda n: slice(n - 1, n) if n > 1 else None),
        fix="go over all S keys",
        shows="more than one key",
        option=with_first_keys(lambda keys: keys - 1),
    ),
    _block(
        "first_key_lost",
        "the first key is left out, or overwritten in the cache",
        _without_keys(lambda n: slice(0, 1) if n > 1 else None),
        fix="begin with key 0, and write a new token behind the others",
        shows="more than one key",
    ),
)
