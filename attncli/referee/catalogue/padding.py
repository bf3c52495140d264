"""Mistakes with padding, and with fully masked rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SIZES, changed, dropped, of_each_size, read_as_zeros
from attncli.referee.convention import Apply, Convention, with_rule
from attncli.referee.options import inverted, padded_queries, without_lengths, without_mask
from attncli.referee.recipe import Recipe, band

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem

__all__ = ["PADDING"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


_padding = partial(
    Convention,
    topic=topics.PADDING,
    fix="hide the padded keys from every query",
    shows="a batch entry with padding",
)


def _on_queries(rule: str, *, too: bool) -> Apply:
    """Make an `apply` that reads a rule on keys as one on queries."""

    def apply(recipe: Recipe) -> Recipe | None:
        _, _, queries, keys = recipe.whole.shape
        if rule not in recipe.rules or queries != keys:
            return None
        keys_rule = recipe.rules[rule]
        rows = slice(recipe.start, recipe.start + recipe.problem.shape[2])
        query_rule = keys_rule[:, :, :1].swapaxes(2, 3)[:, :, rows]
        return with_rule(recipe, rule, keys_rule & query_rule if too else query_rule)

    return apply


def _up(size: int, length: int) -> int:
    return -(-length // size) * size


def _down(size: int, length: int) -> int:
    return length // size * size


def _lengths(change: Callable[[int], int]) -> Apply:
    """Make an `apply` that changes the length of each batch entry."""

    def apply(recipe: Recipe) -> Recipe | None:
        visible = recipe.problem.visible
        if visible.kv_lengths is None:
            return None
        lengths = tuple(min(max(change(n), 0), visible.keys) for n in visible.kv_lengths)
        if any(new == 0 < old for new, old in zip(lengths, visible.kv_lengths, strict=True)):
            return None  # rows of zeros have more likely not been written
        return with_rule(recipe, "kv_lengths", band(recipe.problem, kv_lengths=lengths))

    return apply


def _of_entry(rule: str, other: Callable[[int, int], int]) -> Apply:
    """Make an `apply` in which a batch entry takes the padding of another: of how many, which."""

    def apply(recipe: Recipe) -> Recipe | None:
        visible, batch = recipe.whole.visible, recipe.part[0]
        lengths, mask = visible.kv_lengths, visible.key_padding_mask
        count = recipe.whole.shape[0]
        others = [other(entry, count) for entry in (range(count) if batch is None else [batch])]
        if rule == "kv_lengths" and lengths is not None and len(set(lengths)) > 1:
            new = band(recipe.problem, kv_lengths=tuple(lengths[entry] for entry in others))
        elif rule == "key_padding_mask" and mask is not None and len(mask) > 1:
            new = mask[others][:, None, None, :]
        else:
            return None
        return with_rule(recipe, rule, new)

    return apply


def _mirrored(mask: Bools) -> Bools | None:
    """Return a padding mask from the other side; None where it is no padding of one side."""
    one_side = all(
        np.array_equal(row, np.sort(row)[:: -1 if row[0] else 1]) for row in mask[:, 0, 0]
    )
    return mask[..., ::-1] if one_side else None


def _of_longest(recipe: Recipe) -> Recipe | None:
    visible = recipe.whole.visible
    longest = max(visible.kv_lengths or (visible.keys,))
    if longest == visible.keys or longest == min(visible.kv_lengths or ()):
        return None
    return with_rule(recipe, "kv_lengths", band(recipe.problem, kv_lengths=(longest,)))


def _on_the_left(recipe: Recipe) -> Recipe | None:
    visible = recipe.problem.visible
    if visible.kv_lengths is None:
        return None
    first = visible.keys - np.array(visible.kv_lengths)[:, None, None, None]
    return with_rule(recipe, "kv_lengths", np.arange(visible.keys) >= first)


def _tiled_over_heads(recipe: Recipe) -> Recipe | None:
    """Take the padding of entry (b · H + h) % B for head h of entry b."""
    batch, heads, _, _ = recipe.whole.shape
    mask = recipe.whole.visible.key_padding_mask
    if mask is None or len(mask) == 1 or heads == 1:
        return None
    picked = mask[np.arange(batch * heads).reshape(batch, heads) % batch][:, :, None]
    entry, head, _ = recipe.part
    part = picked[
        slice(None) if entry is None else slice(entry, entry + 1),
        slice(None) if head is None else slice(head, head + 1),
    ]
    return with_rule(recipe, "key_padding_mask", part)


_LEFT_OUT: dict[str, Callable[[Problem], str]] = {
    "key_padding_mask": without_mask("key_padding_mask"),
    "kv_lengths": without_lengths,
}

PADDING = (
    *(
        convention
        for rule, left_out in _LEFT_OUT.items()
        for convention in (
            _padding(
                f"{rule}_ignored",
                f"{rule} is ignored: padded keys get weight",
                dropped(rule),
                option=left_out,
            ),
            _padding(
                f"{rule}_on_queries",
                f"{rule} hides queries instead of keys",
                _on_queries(rule, too=False),
                topic=topics.PADDING_ON_QUERIES,
            ),
            _padding(
                f"{rule}_on_queries_too",
                f"{rule} hides the padded queries as well as the keys",
                _on_queries(rule, too=True),
                topic=topics.PADDING_ON_QUERIES,
                fix="hide only keys, or state the lengths of the queries as well (query_lengths)",
                option=padded_queries,
            ),
            _padding(
                f"{rule}_as_zeros",
                f"keys and values that {rule} hides are read as zeros, and get the weight of the "
                "score 0",
                read_as_zeros(rule, dropped(rule)),
                fix="give hidden keys the score −inf: to load zeros in their place is not enough",
            ),
            _padding(
                f"{rule}_of_first_entry",
                f"every batch entry takes the {rule} of the first",
                _of_entry(rule, lambda _, __: 0),
                fix="give each batch entry its own padding",
                shows="batch entries that are padded differently",
            ),
            _padding(
                f"{rule}_of_next_entry",
                f"each batch entry takes the {rule} of the next one, and the last that of the "
                "first",
                _of_entry(rule, lambda entry, count: (entry + 1) % count),
                fix="give each batch entry its own padding",
                shows="batch entries that are padded differently",
            ),
        )
    ),
    _padding(
        "key_padding_mask_inverted",
        "key_padding_mask is inverted: the real keys are hidden",
        changed("key_padding_mask", np.logical_not),
        topic=topics.PADDING_INVERTED,
        fix="invert the mask (in nn.MultiheadAttention true means padding)",
        option=inverted("key_padding_mask"),
    ),
    _padding(
        "key_padding_mask_tiled_over_heads",
        "key_padding_mask is repeated as a whole (repeat, tile) over B·H, so that heads get the "
        "padding of another entry",
        _tiled_over_heads,
        fix="repeat each row H times in a row: repeat_interleave(H, dim=0)",
        shows="batch entries that are padded differently, and several heads",
        needs=frozenset({"batch", "heads"}),
    ),
    _padding(
        "kv_lengths_inverted",
        "the mask made of kv_lengths is inverted: the real keys are hidden",
        changed("kv_lengths", np.logical_not),
        topic=topics.PADDING_INVERTED,
    ),
    _padding(
        "key_padding_mask_mirrored",
        "as many keys are taken for padding at the other end of each batch entry",
        changed("key_padding_mask", _mirrored),
        fix="hide the padded keys where they stand: at the end, or with padding on the left at "
        "the beginning",
    ),
    _padding(
        "lengths_one_short",
        "the last real key of each batch entry is hidden",
        _lengths(lambda length: length - 1),
    ),
    _padding(
        "lengths_one_long", "the first padded key is seen", _lengths(lambda length: length + 1)
    ),
    *(
        _padding(
            f"lengths_{way}_to_{size}",
            f"the length of each batch entry is rounded {way} to a multiple of {size}, the size of "
            "a block or of a page",
            _lengths(partial(to_multiple, size)),
            topic=topics.ROUNDED_LENGTHS,
            fix="hide the keys beyond the length within the last block, and no others",
            shows=f"lengths that are no multiples of {size}",
            variant_of=(
                "kv_lengths_ignored",
                *(f"lengths_{way}_to_{smaller}" for smaller in SIZES[:place]),
            ),
        )
        for place, size in enumerate(SIZES)
        for way, to_multiple in (("up", _up), ("down", _down))
    ),
    *of_each_size(
        "zeros_in_last_block_of_{}",
        "the last block of {} keys of each batch entry is filled with zeros, which get the weight "
        "of the score 0",
        lambda size: read_as_zeros("kv_lengths", _lengths(partial(_up, size))),
        topic=topics.ROUNDED_LENGTHS,
        fix="give keys beyond the length the score −inf, in the last block too",
        shows="lengths that are no multiples of {}",
        variant_of=("kv_lengths_as_zeros",),
    ),
    _padding(
        "lengths_of_longest",
        "every batch entry has the length of the longest one",
        _of_longest,
        fix="give each batch entry its own length",
        shows="batch entries of different lengths, all with padding",
    ),
    _padding(
        "padding_on_the_left",
        "the first keys are taken for padding, instead of the last",
        _on_the_left,
        fix="let queries see the first kv_length keys; if the real keys stand last, use a mask",
    ),
    Convention(
        name="query_lengths_ignored",
        topic=topics.QUERY_PADDING,
        meaning="padded queries are computed like real ones",
        fix="set the rows of padded queries to zero",
        shows="a batch entry with padded queries",
        apply=dropped("query_lengths"),
        option=lambda _: "leave --query-lengths out",
    ),
)
