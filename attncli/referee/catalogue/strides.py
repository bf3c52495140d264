"""Mistakes of strides: all heads or batch entries read what belongs to the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee import topics
from attncli.referee.convention import Apply, Convention, Need, with_term
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["SHARED", "SHARED_BIAS", "SHARED_SINKS", "SHARED_SLOPES"]

_FIRST = slice(0, 1)


def _keys_of_first(pick: tuple[slice, ...], axis: int) -> Apply:
    """Make an `apply` in which all read the keys and values of the first along an axis."""

    def first(array: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        return None if array is None else array[pick]

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if problem.key.shape[axis] == 1:
            return None
        return vary(recipe, key=first(problem.key), value=first(problem.value))

    return apply


def _strides_of_query(recipe: Recipe) -> Recipe | None:
    """Let the keys and values of a head begin where its queries would."""
    problem = recipe.problem
    queries, keys = recipe.whole.shape[2:]
    inputs = {n: a for n, a in (("key", problem.key), ("value", problem.value)) if a is not None}
    whole = problem.key.shape[:2] == recipe.whole.shape[:2] == problem.shape[:2]
    if not whole or queries >= keys or len({array.shape[3] for array in inputs.values()}) > 1:
        return None
    batch, heads = problem.shape[:2]
    rows = np.arange(batch * heads)[:, None] * queries + np.arange(keys)
    read = {
        name: array.reshape(-1, array.shape[3])[rows].reshape(array.shape)
        for name, array in inputs.items()
    }
    return vary(recipe, **read)


def _bias_of_first(pick: tuple[slice, ...], axis: int) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        bias = recipe.terms.get("bias")
        if bias is None or bias.shape[axis] == 1:
            return None
        return with_term(recipe, "bias", bias[pick])

    return apply


def _slope_of_first_head(recipe: Recipe) -> Recipe | None:
    slopes = recipe.problem.alibi_slopes
    if slopes is None or not slopes.all():  # of a slope of 0 no factor makes another
        return None
    factors = (slopes[0] / slopes)[:, None, None]
    return with_term(recipe, "alibi", recipe.terms["alibi"] * factors)


def _sink_of_first_head(recipe: Recipe) -> Recipe | None:
    sinks = recipe.problem.sinks
    return None if sinks is None else vary(recipe, sinks=np.full_like(sinks, sinks[0]))


def _shared(name: str, meaning: str, apply: Apply, need: Need, shows: str) -> Convention:
    return Convention(
        name=name,
        topic=topics.STRIDES,
        meaning=meaning,
        fix="advance by the stride of that axis too",
        shows=shows,
        apply=apply,
        needs=frozenset({need}),
    )


SHARED = (
    _shared(
        "keys_of_first_head",
        "every head reads the keys and values of the first",
        _keys_of_first((slice(None), _FIRST), 1),
        "heads",
        "more than one key/value head",
    ),
    _shared(
        "keys_of_first_batch_entry",
        "every batch entry reads the keys and values of the first",
        _keys_of_first((_FIRST,), 0),
        "batch",
        "more than one batch entry",
    ),
    Convention(
        name="strides_of_query",
        topic=topics.STRIDES,
        meaning="keys and values of a head are read with the strides of the queries, whose rows "
        "are fewer: each head begins in the rows of one before it",
        fix="advance by the strides of key and value: S·D from head to head, not L·D",
        shows="more keys than queries, and more than one head or batch entry",
        apply=_strides_of_query,
        needs=frozenset({"batch", "heads"}),
    ),
)

SHARED_BIAS = (
    _shared(
        "bias_of_first_head",
        "the bias of the first head is added to all heads",
        _bias_of_first((slice(None), _FIRST), 1),
        "heads",
        "a bias that differs from head to head",
    ),
    _shared(
        "bias_of_first_query",
        "the first row of the bias is added to the scores of all queries",
        _bias_of_first((slice(None), slice(None), _FIRST), 2),
        "rows",
        "a bias that differs from query to query",
    ),
)

SHARED_SLOPES = (
    _shared(
        "alibi_slope_of_first_head",
        "every head takes the ALiBi slope of the first",
        _slope_of_first_head,
        "heads",
        "more than one head",
    ),
)

SHARED_SINKS = (
    _shared(
        "sink_of_first_head",
        "every head takes the sink of the first",
        _sink_of_first_head,
        "heads",
        "sinks that differ from head to head",
    ),
)
