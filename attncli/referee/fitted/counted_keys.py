"""How often each key is counted, inferred from a context or from weights.

Where key j counts c_j times, every number of the context is Σ_j c_j e_ij v_je / Σ_j c_j e_ij with
e = exp(scores), so that

    Σ_j c_j e_ij (v_je − c_ie) = 0

for each query i and column e: equations that are linear in the counts, far more of them than
there are keys. Weights are the context of values 1 and 0, a column for each key.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace
from attncli.referee.stages import over_heads, shared

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["counted_keys"]

Array = npt.NDArray[Any]
_MOST_KEYS = 1024
# So many equations for each key, at least.
_EQUATIONS = 2
# Errors are this small a share of what is tolerated. A key whose part in all equations together is
# less than so many of them tells nothing of how often it counts.
_TYPICAL, _TELLING = 1 / 8, 30.0
_MOST_COUNTS = 64
_NEAR = 0.1
# Groups of keys that are listed.
_NAMED = 3
# What sums of products lose.
_LOST = 1e-6


def counted_keys(case: Case) -> Convention | None:
    """Return the convention that some keys, or the sink, count more than once or not at all.

    Parameters
    ----------
    case : Case
        Small enough to be evaluated.

    Returns
    -------
    Convention or None
        None where the files say nothing of the kind.
    """
    counts = _counts(case)
    if counts is None or (counts == 1).all():
        return None
    keys, sink = counts[:-1], int(counts[-1])
    words = [*_words(keys), *([f"the sink {_count(sink)}"] if sink != 1 else [])]
    return Convention(
        "counted_keys",
        f"the numbers are right if {' and '.join(words)}",
        lambda recipe: _recounted(recipe, keys, sink),
        topic=topics.BLOCKS,
        fix="count every key and the sink once: parts of the keys must not overlap, and an index "
        "beyond the last key must not be read as the last one",
        shows="almost any input",
    )


def _counts(case: Case) -> npt.NDArray[np.int64] | None:
    """Return how often each key counts, and last the sink; None where that cannot be told."""
    problem = case.recipe.problem
    name = next((name for name in ("weights", "context") if name in case.files), None)
    if name is None or problem.shape[3] > _MOST_KEYS or not comparable(case):
        return None
    file = canonical_file(case, name)
    if not np.isfinite(file).all() or file.shape != case.right[name].shape:
        return None
    if name == "context" and (problem.output is not None or problem.value is None):
        return None
    shares, values = _shares(case), _values(case, name)
    if file.size < _EQUATIONS * shares.shape[-1]:
        return None
    products = sum(
        _products(shares[b, h], values[b, h], file[b, h]) for b, h in np.ndindex(file.shape[:2])
    )
    return _whole(np.asarray(products), _TYPICAL * case.recipe.resolution)


def _shares(case: Case) -> Array:
    """Return the weights of all keys, and those of the sinks, (B, H, L, S + 1)."""
    weights, sinks = case.right["weights"], case.recipe.problem.sinks
    rest = np.zeros((*weights.shape[:3], 1))
    if sinks is not None:
        rest = np.exp(over_heads(sinks) - case.right["lse"])
    return np.concatenate([weights, rest], axis=-1)


def _values(case: Case, name: str) -> Array:
    """Return the values, and last that of the sink, which is 0, (B, H, S + 1, E)."""
    problem = case.recipe.problem
    if name == "weights":
        value = np.eye(problem.shape[3])[None, None]
    else:
        value = shared(problem, widen(np.asarray(problem.value), np.float64))
    value = np.concatenate([value, np.zeros((*value.shape[:2], 1, value.shape[3]))], axis=2)
    return np.broadcast_to(value, (*problem.shape[:2], *value.shape[2:]))


def _products(shares: Array, value: Array, file: Array) -> Array:
    """Return the sums over all equations of the products of what two counts are multiplied with."""
    across = shares * (file @ value.T)
    lengths = np.square(file).sum(axis=-1, keepdims=True)
    mixed = shares.T @ across
    return np.asarray(
        (shares.T @ shares) * (value @ value.T) - mixed - mixed.T + shares.T @ (lengths * shares)
    )


def _whole(products: Array, error: float) -> npt.NDArray[np.int64] | None:
    """Return the whole numbers that solve the equations; 1 where they say nothing."""
    lengths = np.sqrt(np.maximum(np.diagonal(products), 0))
    telling = lengths > max(_TELLING * error, _LOST * float(lengths.max()))
    if not telling.any():
        return None
    solution = np.abs(np.linalg.eigh(products[np.ix_(telling, telling)])[1][:, 0])
    usual = float(np.median(solution))
    units = usual, float(solution.min(initial=usual, where=solution > usual / _MOST_COUNTS))
    for unit in units:
        counts = np.ones(len(products))
        counts[telling] = solution / unit if unit else np.inf
        if counts.max() <= _MOST_COUNTS and (np.abs(counts - counts.round()) <= _NEAR).all():
            return counts.round().astype(np.int64)
    return None


def _recounted(recipe: Recipe, keys: npt.NDArray[np.int64], sink: int) -> Recipe:
    with np.errstate(divide="ignore"):
        times, sink_times = np.log(keys), float(np.log(sink))
    bias = recipe.terms.get("bias", np.zeros((1, 1, 1, 1)))
    changed = replace(recipe, terms={**recipe.terms, "bias": bias + times})
    sinks = recipe.problem.sinks
    return changed if sinks is None else vary(changed, sinks=sinks + sink_times)


def _words(counts: npt.NDArray[np.int64]) -> list[str]:
    """Say which keys do not count once."""
    words = []
    for count, group in groupby(range(len(counts)), key=lambda key: int(counts[key])):
        keys = list(group)
        if count != 1:
            several = len(keys) > 1
            named = f"keys {keys[0]} to {keys[-1]}" if several else f"key {keys[0]}"
            words.append(f"{named} {_count(count, several=several)}")
    more = len(words) - _NAMED
    return words if more <= 1 else [*words[:_NAMED], f"so on, {more} more"]


def _count(count: int, *, several: bool = False) -> str:
    if count == 0:
        return "do not count" if several else "does not count"
    return f"count{'' if several else 's'} {'twice' if count == 2 else f'{count} times'}"
