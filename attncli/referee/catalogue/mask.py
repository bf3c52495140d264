"""Mistakes with the mask: which keys it leaves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import (
    changed,
    dropped,
    off_by_one,
    read_as_zeros,
    transposed,
)
from attncli.referee.convention import Convention, Need, with_rule
from attncli.referee.options import inverted, without_mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.recipe import Recipe

__all__ = ["MASKS"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


def _both_inverted(recipe: Recipe) -> Recipe | None:
    first = changed("mask", np.logical_not)(recipe)
    return first and changed("key_padding_mask", np.logical_not)(first)


def _batch_for_head(mask: Bools) -> Bools | None:
    batch, heads = mask.shape[:2]
    return mask.swapaxes(0, 1) if max(batch, heads) > 1 else None


def _tiled(recipe: Recipe) -> Recipe | None:
    """Take the mask of entry (b · H + h) % B for head h of entry b."""
    batch, heads, _, _ = recipe.whole.shape
    mask = recipe.whole.visible.mask
    if mask is None or len(mask) == 1 or mask.shape[1] > 1 or heads == 1:
        return None
    places = np.arange(batch * heads).reshape(batch, heads) % batch
    picked = mask[places, 0]
    entry, head, rows = recipe.part
    part = picked[
        slice(None) if entry is None else slice(entry, entry + 1),
        slice(None) if head is None else slice(head, head + 1),
        slice(None) if rows is None or picked.shape[2] == 1 else slice(*rows),
    ]
    return with_rule(recipe, "mask", part)


def _swapped(recipe: Recipe) -> Recipe | None:
    batch, heads, _, _ = recipe.problem.shape
    return changed("mask", _batch_for_head)(recipe) if batch == heads else None


def _bits_reversed(*, by_row: bool) -> Callable[[Bools], Bools | None]:
    """Make a change of masks packed into bytes from the lowest bit on, read from the highest on.

    Parameters
    ----------
    by_row : bool
        Each row begins with a byte of its own.
    """

    def change(mask: Bools) -> Bools | None:
        keys = mask.shape[3]
        if keys == 1 or (by_row and keys % 8 == 0):  # the same either way
            return None
        flat = mask.reshape(*mask.shape[: 3 if by_row else 2], -1)
        count = flat.shape[-1]
        ends = [(0, 0)] * (flat.ndim - 1) + [(0, -count % 8)]
        by_byte = np.pad(flat, ends).reshape(*flat.shape[:-1], -1, 8)
        read: Bools = by_byte[..., ::-1].reshape(*flat.shape[:-1], -1)[..., :count]
        return read.reshape(mask.shape)

    return change


_BATCH: frozenset[Need] = frozenset({"batch"})
_ROWS: frozenset[Need] = frozenset({"rows"})


_mask = partial(
    Convention,
    topic=topics.MASK,
    fix="hide a key by setting its score to −inf where the mask is false",
    shows="a mask that hides some keys",
)


MASKS = (
    _mask(
        "mask_ignored",
        "the mask is ignored",
        dropped("mask"),
        option=without_mask("mask"),
    ),
    _mask(
        "mask_inverted",
        "the mask is inverted: it hides the keys that it should keep",
        changed("mask", np.logical_not),
        fix="invert the mask (in nn.MultiheadAttention true means hidden)",
        option=inverted("mask"),
    ),
    _mask(
        "masks_inverted",
        "mask and key_padding_mask are both inverted: they hide the keys that they should keep",
        _both_inverted,
        fix="invert the masks (in nn.MultiheadAttention true means hidden)",
        option=inverted("mask", "key_padding_mask"),
    ),
    _mask(
        "mask_transposed",
        "the mask is transposed: its rows are taken for keys",
        changed("mask", transposed),
        fix="index the mask as (query, key)",
        shows="a mask that is not symmetric",
        needs=_ROWS,
    ),
    _mask(
        "mask_batch_for_head",
        "the mask's batch axis and head axis are exchanged",
        _swapped,
        fix="give the mask all four axes, (B, H, L, S)",
        shows="batch entries or heads with different masks",
        needs=frozenset({"batch", "heads"}),
    ),
    _mask(
        "mask_tiled_over_heads",
        "the masks of the batch entries are repeated as a whole (repeat, tile) over B·H, so that "
        "heads get the mask of another entry",
        _tiled,
        fix="repeat each mask H times in a row: repeat_interleave(H, dim=0)",
        shows="batch entries with different masks, and several heads",
        needs=frozenset({"batch", "heads"}),
    ),
    _mask(
        "mask_of_first_batch",
        "the mask of the first batch entry is used for all of them",
        changed("mask", lambda mask: mask[:1] if len(mask) > 1 else None),
        fix="index the mask by batch entry",
        shows="batch entries with different masks",
        needs=_BATCH,
    ),
    _mask(
        "mask_of_first_head",
        "the mask of the first head is used for all of them",
        changed("mask", lambda mask: mask[:, :1] if mask.shape[1] > 1 else None),
        fix="index the mask by head",
        shows="heads with different masks",
        needs=frozenset({"heads"}),
    ),
    _mask(
        "mask_of_first_query",
        "the first row of the mask is used for all queries",
        changed("mask", lambda mask: mask[:, :, :1] if mask.shape[2] > 1 else None),
        fix="index the mask as (query, key)",
        shows="queries with different masks",
        needs=_ROWS,
    ),
    _mask(
        "mask_as_zeros",
        "the mask is multiplied with keys and values: hidden ones are zeros, and get the weight of "
        "the score 0",
        read_as_zeros("mask", dropped("mask")),
        fix="give hidden keys the score −inf: to make them zeros is not enough",
    ),
    *(
        _mask(
            f"mask_{name}",
            f"each score gets the mask {words}",
            changed("mask", change),
            topic=topics.MASK_PLACES,
            fix="index the mask as (query, key), both from 0",
            shows="a mask that is not the same everywhere",
            needs=_ROWS,
        )
        for name, words, change in off_by_one()
    ),
    *(
        _mask(
            f"mask_bits_reversed{name}",
            f"the mask is packed into bytes{where}, and the bits of each are read in the other "
            "order",
            changed("mask", _bits_reversed(by_row=by_row)),
            topic=topics.MASK_BITS,
            fix="pack with the order that the kernel reads: np.packbits begins with the highest "
            'bit of a byte, bitorder="little" with the lowest',
            shows="a mask without symmetry",
            needs=_ROWS,
            variant_of=("mask_inverted",),
        )
        for name, where, by_row in (("", "", False), ("_by_row", ", row by row", True))
    ),
)
