"""Batch entries that are packed one behind the other, with no boundaries between them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of, groups_of, lengths_of
from attncli.referee.convention import Convention
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = ["PACKED"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# Scores, of which there are as many times more as there are batch entries, and numbers of keys.
_MOST_NUMBERS = 2**23


def _packed(recipe: Recipe) -> Recipe | None:
    """Let the queries of an entry see all real keys, or under the causal rule all earlier ones."""
    whole, (batch, head, _) = recipe.whole, recipe.part
    lengths = lengths_of(whole)
    if not _is_tried(recipe, sum(lengths)):
        return None
    own = factors_of(_of_head(whole, head))
    packed = {
        name: np.concatenate([own[name][e, :, :length] for e, length in enumerate(lengths)], 1)[
            None
        ]
        for name in ("key", "value")
        if name in own
    }
    rules = {}
    if "causal" in recipe.rules:
        entries = range(len(lengths)) if batch is None else [batch]
        rules["causal"] = _behind_earlier_entries(recipe.rules["causal"], lengths, entries)
    if "query_lengths" in recipe.rules:
        rules["query_lengths"] = recipe.rules["query_lengths"][..., :1]
    query = factors_of(recipe.problem)["query"]
    return replace(vary(recipe, rope=None, query=query, **packed), rules=rules)


def _is_tried(recipe: Recipe, keys: int) -> bool:
    batch, heads, queries, _ = recipe.problem.shape
    others = set(recipe.rules) - {"causal", "kv_lengths", "query_lengths"}
    several = recipe.whole.key.shape[0] > 1
    few = max(batch * heads * queries, recipe.problem.key[0, :, 0].size) * keys <= _MOST_NUMBERS
    return several and few and not others and not recipe.terms and recipe.problem.score == "dot"


def _of_head(whole: Problem, head: int | None) -> Problem:
    """Return the problem with what one head reads, or with all."""
    if head is None:
        return whole
    groups = groups_of(whole, head)
    value = None if whole.value is None else whole.value[:, groups]
    query = whole.query[:, head : head + 1]
    return replace(whole, query=query, key=whole.key[:, groups], value=value)


def _behind_earlier_entries(
    causal: Bools, lengths: tuple[int, ...], entries: range | list[int]
) -> Bools:
    """Return the causal rule (B, 1, L, all keys), with all keys of earlier entries before it."""
    starts = (0, *accumulate(lengths))
    seen = np.zeros((len(entries), 1, causal.shape[2], starts[-1]), np.bool_)
    own = np.broadcast_to(causal, (len(entries), *causal.shape[1:]))
    for row, entry in enumerate(entries):
        seen[row, :, :, : starts[entry]] = True
        seen[row, :, :, starts[entry] : starts[entry + 1]] = own[row, :, :, : lengths[entry]]
    return seen


PACKED = (
    Convention(
        name="packed_without_boundaries",
        topic=topics.STRIDES,
        meaning="the batch entries are packed one behind the other without boundaries: queries "
        "see the keys of other entries too, under the causal rule those of earlier ones",
        fix="keep packed sequences apart: by cu_seqlens, a block-diagonal mask or document ids",
        shows="more than one batch entry",
        apply=_packed,
    ),
)
