"""What becomes of queries that see no key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Apply, Convention, without
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.recipe import Recipe

__all__ = ["BLIND_ROWS", "unmasked"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


def _blind(recipe: Recipe, shape: tuple[int, ...]) -> Bools:
    """Return which queries see no key, (B, H, L, 1)."""
    blind: Bools = ~np.any(np.broadcast_to(recipe.seen, shape), axis=-1, keepdims=True)
    return blind


def _nan(recipe: Recipe) -> Recipe | None:
    # A sink keeps the denominator above zero.
    if recipe.problem.sinks is not None:
        return None

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        weights, lse = inner(recipe, scores)
        return np.where(_blind(recipe, scores.shape), np.nan, weights), lse

    inner = recipe.softmax
    return replace(recipe, softmax=softmax)


def _finite(recipe: Recipe) -> Recipe:
    return replace(recipe, fill=recipe.file_fill)


def unmasked(recipe: Recipe) -> Recipe:
    """Compute the rows that see nothing as if every key were seen; padded queries stay away."""
    real = without(recipe, "query_lengths")
    blind = ~real.seen.any(axis=-1, keepdims=True)
    rules = {n: rule | blind for n, rule in real.rules.items()}
    return replace(recipe, rules={**recipe.rules, **rules})


def _averaging(left: Callable[[Recipe], Bools | None]) -> Apply:
    """Make an `apply` in which rows that see nothing average the values of the keys left to them.

    Beside a large negative number a score has no digits, so all of these keys are equal.
    """

    def apply(recipe: Recipe) -> Recipe | None:
        real = without(recipe, "query_lengths")
        blind, seen = ~real.seen.any(axis=-1, keepdims=True), left(real)
        if not blind.any() or seen is None or recipe.problem.sinks is not None:
            return None
        kept = blind & seen
        if "query_lengths" in recipe.rules:  # padded queries stay away
            kept = kept & recipe.rules["query_lengths"]

        def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
            return inner(recipe, np.where(kept, 0.0, scores))

        inner = recipe.softmax
        return replace(recipe, softmax=softmax)

    return apply


def _left_by_position(recipe: Recipe) -> Bools | None:
    """Return what causal rule, window and segments leave to each query; None without any."""
    others = set(recipe.rules) - {"causal", "window", "segment_ids"}
    return without(recipe, *others).seen if len(others) < len(recipe.rules) else None


def _hidden_least(recipe: Recipe) -> Bools | None:
    """Return the keys of each query that the fewest rules hide; None of a single rule."""
    if len(recipe.rules) == 1:
        return None
    hidden = sum((~rule).astype(np.int64) for rule in recipe.rules.values())
    return np.asarray(hidden == np.min(hidden, axis=-1, keepdims=True))


_row = partial(
    Convention,
    topic=topics.BLIND_ROWS,
    fix="write zeros where a query sees no key",
    shows="a query that sees no key",
)


BLIND_ROWS = (
    _row(
        "blind_rows_nan",
        "the NaN rows are queries that see no key: the softmax of only −inf is NaN",
        _nan,
    ),
    _row(
        "hidden_finite",
        "hidden scores are a large negative number like −1e9, not −inf: a query that sees no key "
        "then gives the mean of all values",
        _finite,
        fix="write −inf into scores, and zeros where a query sees no key",
    ),
    _row(
        "blind_rows_average_by_position",
        "a query that sees no key gives the mean of the values that the causal rule, the window "
        "and the segments leave to it: the other masks are large negative numbers like −1e9, not "
        "−inf",
        _averaging(_left_by_position),
        shows="a query all of whose keys are padding",
        variant_of=("hidden_finite", "blind_rows_unmasked"),
    ),
    _row(
        "blind_rows_average_least_hidden",
        "a query that sees no key gives the mean of the values that the fewest rules hide: each "
        "rule adds a large negative number like −1e9, not −inf",
        _averaging(_hidden_least),
        shows="a query all of whose keys are padding",
        variant_of=("hidden_finite", "blind_rows_unmasked", "blind_rows_average_by_position"),
    ),
    _row(
        "blind_rows_unmasked",
        "a query that sees no key is computed as if nothing were hidden (−1e9 added to every "
        "score cancels)",
        unmasked,
    ),
)
