"""Mistakes with the mask: which keys it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import changed, dropped
from attncli.referee.convention import Apply, Convention, Need
from attncli.referee.options import inverted, without_mask

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["MASKS"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


def _both_inverted(recipe: Recipe) -> Recipe | None:
    first = changed("mask", np.logical_not)(recipe)
    return first and changed("key_padding_mask", np.logical_not)(first)


def _transposed(mask: Bools) -> Bools | None:
    rows, columns = mask.shape[2:]
    return mask.swapaxes(2, 3) if rows == columns and rows > 1 else None


def _batch_for_head(mask: Bools) -> Bools | None:
    batch, heads = mask.shape[:2]
    return mask.swapaxes(0, 1) if max(batch, heads) > 1 else None


def _swapped(recipe: Recipe) -> Recipe | None:
    batch, heads, _, _ = recipe.problem.shape
    return changed("mask", _batch_for_head)(recipe) if batch == heads else None


_BATCH: frozenset[Need] = frozenset({"batch"})
_ROWS: frozenset[Need] = frozenset({"rows"})


def _mask(name: str, meaning: str, apply: Apply, *, fix: str = "", **more: Any) -> Convention:
    fix = fix or "hide a key by setting its score to −inf where the mask is false"
    shows = more.pop("shows", "a mask that hides some keys")
    return Convention(
        name=name, topic=topics.MASK, meaning=meaning, fix=fix, shows=shows, apply=apply, **more
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
        changed("mask", _transposed),
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
)
