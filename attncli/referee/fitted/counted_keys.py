"""How often each key is counted, inferred from a context or from weights.

Where key j counts c_j times, every number of the context is Σ_j c_j e_ij v_je / Σ_j c_j e_ij with
e = exp(scores), so that

    Σ_j c_j e_ij (v_je − c_ie) = 0

for each query i and column e: equations that are linear in the counts, far more of them than
there are keys. Weights are the context of values 1 and 0, a column for each key.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention, with_term
from attncli.referee.recipe import vary
from attncli.referee.stages import over_heads, shared

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["counted_keys"]

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]
_MOST_KEYS = 1024
# So many equations for each key, at least.
_EQUATIONS = 2
# Errors are this small a share of what is tolerated. A key whose part in all equations together is
# less than so many of them tells nothing of how often it counts.
_TYPICAL, _TELLING = 1 / 8, 30.0
_MOST_COUNTS = 64
_NEAR = 0.1
# Batch entries of which keys are listed, and ranges of keys in each.
_NAMED, _RANGES = 4, 6
# What sums of products lose.
_LOST = 1e-6
_FIX = (
    "count every key and the sink once: parts of the keys must not overlap, and an index beyond "
    "the last key must not be read as the last one"
)
_FIX_OF_LOST = (
    "count every key; where these are padding, state it: key_padding_mask (--key-padding-mask)"
)


def counted_keys(case: Case) -> Convention | None:
    """Return the convention that some keys, or the sink, count more than once or not at all."""
    counts = _counts(case)
    if counts is None or (counts == 1).all():
        return None
    alike = (counts == counts[0]).all()
    words = [
        f"{'' if alike else f'in batch entry {b}, '}{said}"
        for b, own in enumerate(counts[:1] if alike else counts)
        if (said := " and ".join(_words(own)))
    ]
    lost = counts.max() == 1 and (counts[:, -1] == 1).all()
    more = len(words) - _NAMED
    told = "; ".join(words if more <= 0 else [*words[:_NAMED], f"and so on in {more} more"])
    return Convention(
        "counted_keys",
        f"the numbers are right if {told}",
        lambda recipe: _recounted(recipe, counts),
        topic=topics.BLOCKS,
        fix=_FIX_OF_LOST if lost else _FIX,
        shows="almost any input",
        needs=frozenset({"batch"}),
        variant_of=(
            "padding_unasked",
            "other_lengths",
            "padding_on_the_left_unasked",
            "sinks_counted",
        ),
    )


def _counts(case: Case) -> Counts | None:
    """Return how often each key counts, and last the sink, (B, S + 1); None if that is hidden."""
    problem = case.recipe.problem
    name = next((name for name in ("weights", "context") if name in case.files), None)
    if name is None or problem.shape[3] > _MOST_KEYS or not case.comparable:
        return None
    file = case.canonical(name)
    if not np.isfinite(file).all() or file.shape != case.right[name].shape:
        return None
    if name == "context" and (problem.output is not None or problem.value is None):
        return None
    shares, values = _shares(case), _values(case, name)
    batches, heads = file.shape[:2]
    products = np.stack(
        [
            np.asarray(sum(_products(shares[b, h], values[b, h], file[b, h]) for h in range(heads)))
            for b in range(batches)
        ]
    )
    error, equations = _TYPICAL * case.recipe.resolution, file.size / shares.shape[-1]
    if equations >= _EQUATIONS and (common := _whole(products.sum(axis=0), error)) is not None:
        return np.broadcast_to(common, (batches, len(common)))
    if equations < _EQUATIONS * batches:
        return None
    each = [own for one in products if (own := _whole(one, error)) is not None]
    return np.stack(each) if len(each) == batches else None


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


def _whole(products: Array, error: float) -> Counts | None:
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


def _recounted(recipe: Recipe, counts: Counts) -> Recipe:
    with np.errstate(divide="ignore"):
        times = np.log(counts)
    bias = recipe.terms.get("bias", np.zeros((1, 1, 1, 1)))
    more = times[:, None, None, :-1]
    changed = with_term(recipe, "bias", bias + more)
    sinks = recipe.problem.sinks
    return changed if sinks is None else vary(changed, sinks=sinks + times[0, -1])


def _words(counts: Counts) -> list[str]:
    """Say which keys, and whether the sink, do not count once."""
    keys, sink = counts[:-1], int(counts[-1])
    words = []
    for count in dict.fromkeys(keys[keys != 1].tolist()):
        which = np.flatnonzero(keys == count)
        several = len(which) > 1
        words.append(
            f"{'keys' if several else 'key'} {_ranges(which)} {_count(count, several=several)}"
        )
    return [*words, *([f"the sink {_count(sink)}"] if sink != 1 else [])]


def _ranges(numbers: npt.NDArray[np.intp]) -> str:
    """List numbers, those in a row as one range; the first of many."""
    runs = groupby(enumerate(numbers.tolist()), key=lambda pair: pair[1] - pair[0])
    rows = [list(map(itemgetter(1), run)) for _, run in runs]
    named = [f"{row[0]} to {row[-1]}" if len(row) > 1 else str(row[0]) for row in rows]
    left = len(named) - _RANGES
    if left > 1:
        named = [*named[:_RANGES], f"{sum(map(len, rows[_RANGES:]))} more"]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _count(count: int, *, several: bool = False) -> str:
    if count == 0:
        return "do not count" if several else "does not count"
    return f"count{'' if several else 's'} {'twice' if count == 2 else f'{count} times'}"
