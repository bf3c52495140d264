"""The formula as it stands in the paper, softmax(scale · QKᵀ) V, of some heads and queries.

It serves small problems, many short heads, few queries over many keys, every output that has a
number for each query and key, additive scores, and what leaves the range of the tiled path
(`attncli.engine.flash`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.engine.operands import NotFiniteError, refuse_scores
from attncli.engine.panels import row_sums, weighted_sum
from attncli.engine.score_rules import (
    Place,
    add_rules,
    hidden_as_infinity,
    hiding_parts,
    log_denominator,
    seen_at,
    share_beside_sinks,
)
from attncli.numerics.dtypes import widen
from attncli.numerics.finite import all_finite, within_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.engine.operands import Operands
    from attncli.engine.panels import Scratch
    from attncli.problem.problem import Problem

__all__ = ["HIGHEST_UNSHIFTED", "Part", "attend_part"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Span = tuple[int, int]

# Scores in nats up to which exponentials need no shift: exp(±40) is 4e−18 to 2e17, which leaves
# sums in float32 20 orders of magnitude to both ends of its range, 1e−38 to 3e38.
HIGHEST_UNSHIFTED = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}
# With fewer queries, to read all keys for a bound costs as much as it saves.
_FEW_QUERIES = 16
# Scores up to which a masked copy takes less time than the minimum with infinities.
_SHORT = 4096
# Numbers of half precision that are widened at a time.
_WIDENED = 2**20
_LEAST_NORMAL = {
    np.dtype(kind): 2 * float(np.finfo(kind).tiny) for kind in (np.float32, np.float64)
}


class Part(NamedTuple):
    """Batch entries, heads and queries that are computed at a time, each as (start, stop)."""

    entries: Span
    heads: Span
    rows: Span


def attend_part(
    operands: Operands, part: Part, results: dict[str, Array], scratch: Scratch | None
) -> int:
    """Compute a part of the results, and return how many (batch, head, query) see no key.

    Heads are those of whole groups that share a key, or lie within one group. Scores that are not
    asked for are computed in ``scratch``, or in memory of their own.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    problem = operands.problem
    index = tuple([slice(*span) for span in part])
    own = {name: array[index] for name, array in results.items()}
    columns = (0, problem.shape[3])
    if problem.visible.banded:
        columns = _columns(problem, part, own)
    if columns[0] >= columns[1]:
        operands.check_queries(*index)
        return _see_nothing(problem, part, own)
    place = Place(*part, columns)
    # A bound on the scores makes the shift, and looking for infinite ones, superfluous.
    bound = math.inf if scratch is None else _bound(operands, part)
    adds = problem.bias is not None or problem.alibi_slopes is not None
    # A lse near 0 would lose digits without a shift.
    shifted = adds or "lse" in own or bound > HIGHEST_UNSHIFTED[problem.dtype]
    scores = _room(place, own, problem.dtype, scratch)
    finite = _write_scores(operands, place, scores, own, finite=bound < math.inf)
    if "scores" in own:
        own["scores"][..., slice(*columns)] = scores
    may_be_empty = adds or problem.visible.hides
    highest = _shift(scores, may_be_empty=may_be_empty) if shifted else None
    _exponentiate(scores, low=shifted or not finite)
    total = _totals(scores)
    fully_masked = 0
    if "lse" in own:
        sinks = _sinks(problem, place)
        own["lse"][...] = log_denominator(total, 0 if highest is None else highest, sinks)[..., 0]
    factors: tuple[Array, ...] = ()
    if problem.sinks is not None:
        own_sinks = np.asarray(_sinks(problem, place), total.dtype)
        above = own_sinks - (0 if highest is None else highest)
        factors = share_beside_sinks(total, above)
    if may_be_empty:
        empty = total == 0
        np.copyto(total, 1, where=empty)
        fully_masked = int(np.count_nonzero(empty))
    _deliver(operands, place, scores, total, factors, own, normalise_first=not shifted)
    return fully_masked


def _columns(problem: Problem, part: Part, own: dict[str, Array]) -> Span:
    """Return the keys that any query of a part may see, and write what others have."""
    entry, stop = part.entries
    keys = problem.shape[3]
    if stop - entry > 1 or "raw" in own or "capped" in own:
        return 0, keys
    first, last = problem.visible.span(entry, *part.rows)
    for name, hidden in (("weights", 0), ("scores", -np.inf)):
        if name in own:
            own[name][..., :first] = hidden
            own[name][..., last:] = hidden
    return first, last


def _see_nothing(problem: Problem, part: Part, own: dict[str, Array]) -> int:
    """Write the results of queries none of which sees a key."""
    if "context" in own:
        own["context"][...] = 0
    if "lse" in own:
        sinks = problem.sinks
        own["lse"][...] = -np.inf if sinks is None else sinks[slice(*part.heads), None]
    return math.prod(stop - start for start, stop in part)


def _bound(operands: Operands, part: Part) -> float:
    """Return a bound on the magnitude of the capped scores, in nats; inf if unknown.

    It is only worked out for a part of one head, so that heads do not influence each other.
    """
    problem = operands.problem
    alone = all(stop - start == 1 for start, stop in part[:2])
    if not (alone and problem.is_product and part.rows[1] - part.rows[0] >= _FEW_QUERIES):
        return math.inf
    # |q · k| ≤ ‖q‖ ‖k‖ (Cauchy–Schwarz).
    longest = operands.lengths(part.entries[0], part.heads[0], part.rows)
    factor = max(abs(problem.scale), 1)
    if not max(longest[0], longest[0] * longest[1]) * factor < _half(problem.dtype):
        return math.inf
    return min(longest[0] * longest[1] * abs(problem.scale), problem.softcap or math.inf)


def _half(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).max) / 2


def _room(
    place: Place, own: dict[str, Array], dtype: np.dtype[Any], scratch: Scratch | None
) -> Array:
    """Return an array (B, H, L, S) for the scores: that of the weights if they are asked for."""
    weights = own.get("weights")
    if weights is not None and weights.strides[3] == weights.itemsize:
        return weights[..., slice(*place.columns)]
    shape = tuple([stop - start for start, stop in place])
    return np.empty(shape, dtype) if scratch is None else scratch.array("scores", shape)


def _sinks(problem: Problem, place: Place) -> Array | None:
    return None if problem.sinks is None else problem.sinks[slice(*place.heads), None, None]


def _write_scores(
    operands: Operands, place: Place, scores: Array, own: dict[str, Array], *, finite: bool
) -> bool:
    """Write the scores, −inf where keys are hidden, and return whether raw ones are finite."""
    problem = operands.problem
    finite = _write_raw(operands, place, scores, finite=finite)

    def keep(name: str, stage: Array) -> None:
        if name in own:
            own[name][...] = stage

    add_rules(problem, scores, place, lambda rule: rule, keep)
    adds = problem.bias is not None or problem.alibi_slopes is not None
    if adds and finite and not _is_finite(scores):
        wrong = ~np.isfinite(scores)
        if problem.bias is not None:  # which may be −inf itself
            wrong &= widen(place.cut(problem.bias), problem.dtype) > -np.inf
        _refuse_seen(problem, place, wrong)
    if problem.visible.hides:
        _hide(problem, place, scores, finite=finite)
    return finite


def _hide(problem: Problem, place: Place, scores: Array, *, finite: bool) -> None:
    """Replace the scores of hidden keys by −inf."""
    start = place.columns[0]
    for part in hiding_parts(problem, place):
        seen = seen_at(problem, part)
        own = scores[..., part.columns[0] - start : part.columns[1] - start]
        if seen is not None and finite and own.size > _SHORT:
            np.minimum(own, hidden_as_infinity(seen, own.dtype), out=own)
        elif seen is not None:
            np.copyto(own, -np.inf, where=~seen)


def _write_raw(operands: Operands, place: Place, scores: Array, *, finite: bool) -> bool:
    """Write the raw scores, and return whether all of them are finite, also of hidden keys."""
    problem = operands.problem
    entries, heads, rows, columns = [slice(*span) for span in place]
    query = widen(operands.query[entries, heads, rows], problem.dtype)
    key = _of_entries(operands.key, place)[:, operands.groups(place.heads), columns]
    if not problem.is_product:
        _add_and_squash(problem, query, widen(key, problem.dtype), scores)
    elif abs(problem.scale) > 1:
        _multiply(np.multiply(query, problem.scale, dtype=query.dtype), key, scores)
    else:
        # As on paper the scale comes last, so that products of whole numbers are exact.
        _multiply(query, key, scores)
        np.multiply(scores, problem.scale, out=scores)
    if finite or _is_finite(scores):
        return True
    if problem.is_product and abs(problem.scale) <= 1:
        _multiply_scaled_first(problem, query, key, scores)
        if _is_finite(scores):
            return True
    _refuse_seen(problem, place, ~np.isfinite(scores))
    return False


def _multiply(query: Array, key: Array, out: Array) -> None:
    """Write query · keyᵀ, of (B, H, L, D) and (B or 1, G, S, D), into (B, H, L, S)."""
    if query.shape[1] != key.shape[1]:
        stacked = out.flags.c_contiguous
        query, out = (_by_group(array, key.shape[1], stacked=stacked) for array in (query, out))
        key = key if stacked else key[:, :, None]
    if key.dtype == out.dtype:
        np.matmul(query, key.swapaxes(-1, -2), out=out)
        return
    for columns in _pieces(key):
        wide = widen(key[..., columns, :], out.dtype)
        np.matmul(query, wide.swapaxes(-1, -2), out=out[..., columns])


def _multiply_scaled_first(problem: Problem, query: Array, key: Array, scores: Array) -> None:
    """Write the scores of heads whose products leave the range before they are scaled."""
    share = query.shape[1] // key.shape[1]
    for entry, head in np.argwhere(~np.isfinite(scores).all(axis=(2, 3))):
        own = widen(key[entry % len(key), head // share], scores.dtype)
        scaled = np.multiply(query[entry, head], problem.scale, dtype=scores.dtype)
        np.matmul(scaled, own.T, out=scores[entry, head])


def _add_and_squash(problem: Problem, query: Array, key: Array, scores: Array) -> None:
    """Write scale · v · tanh(q + k), query by query because q + k has a third axis, D.

    References
    ----------
    Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to
    Align and Translate", appendix A.1.2, with the projections left to the caller.
    """
    vector = widen(np.asarray(problem.score_vector), problem.dtype)
    share = query.shape[1] // key.shape[1]
    hidden_layer = np.empty_like(key[0, 0])
    for entry, head, row in np.ndindex(*query.shape[:3]):
        np.add(key[entry % len(key), head // share], query[entry, head, row], out=hidden_layer)
        np.tanh(hidden_layer, out=hidden_layer)
        np.matmul(hidden_layer, vector, out=scores[entry, head, row])
    if problem.scale != 1.0:
        np.multiply(scores, problem.scale, out=scores)


def _shift(scores: Array, *, may_be_empty: bool) -> Array:
    """Subtract the highest score of each row (…, S), and return it, (…, 1); 0 if it is −inf."""
    highest = np.maximum.reduce(scores, axis=-1, keepdims=True)
    if may_be_empty:
        np.copyto(highest, 0, where=highest == -np.inf)
    np.subtract(scores, highest, out=scores)
    return np.asarray(highest)


def _exponentiate(scores: Array, *, low: bool) -> None:
    """Replace scores by their exponentials; those below the normal numbers become 0.

    Arithmetic with numbers below 1e−38 takes ten to a hundred times as long.
    """
    least = _LEAST_NORMAL[scores.dtype]
    lowest = math.log(least)
    if not low or scores.size <= _SHORT or scores.min() >= lowest:
        np.exp(scores, out=scores)
        return
    np.maximum(scores, lowest, out=scores)
    np.exp(scores, out=scores)
    np.multiply(scores, scores > least * (1 + 1e-4), out=scores)


def _totals(exponentials: Array) -> Array:
    """Return the sum of each row (…, S), (…, 1)."""
    if exponentials.size <= _SHORT:
        return np.add.reduce(exponentials, axis=-1, keepdims=True)
    return row_sums(exponentials.swapaxes(-1, -2))[..., None]


def _deliver(
    operands: Operands,
    place: Place,
    exponentials: Array,
    total: Array,
    factors: tuple[Array, ...],
    own: dict[str, Array],
    *,
    normalise_first: bool,
) -> None:
    """Write weights and context.

    Sums of exponentials times values, divided at the end, have the fewest rounding errors. Without
    a shift, or with large values, they leave the range, and the weights come first.
    """
    normalised = normalise_first
    if normalised:
        np.divide(exponentials, total, out=exponentials)
    if "context" in own:
        context = _weigh(operands, place, exponentials)
        if not normalised:
            np.divide(context, total, out=context)
        if not _is_finite(context):
            if operands.problem.unread is not None:
                raise NotFiniteError
            weights = exponentials if normalised else exponentials / total
            _weigh_again(operands, place, weights, context)
        own["context"][...] = _times(context, factors)
    if "weights" not in own:
        return
    if not normalised:
        np.divide(exponentials, total, out=exponentials)
    _times(exponentials, factors)
    if not np.may_share_memory(exponentials, own["weights"]):
        own["weights"][..., slice(*place.columns)] = exponentials


def _times(array: Array, factors: tuple[Array, ...]) -> Array:
    for factor in factors:
        np.multiply(array, factor, out=array)
    return array


def _weigh(operands: Operands, place: Place, weights: Array) -> Array:
    """Return weights · V, (B, H, L, E)."""
    value = np.asarray(operands.problem.value)
    value = _of_entries(value, place)[:, operands.groups(place.heads), slice(*place.columns)]
    shape = (*weights.shape[:3], value.shape[3])
    if weights.shape[1] != value.shape[1]:
        stacked = weights.flags.c_contiguous
        weights = _by_group(weights, value.shape[1], stacked=stacked)
        value = value if stacked else value[:, :, None]
    if value.dtype == weights.dtype:
        return weighted_sum(weights, value).reshape(shape)
    context = np.zeros((*weights.shape[:-1], value.shape[-1]), weights.dtype)
    for keys in _pieces(value):
        context += weighted_sum(weights[..., keys], widen(value[..., keys, :], weights.dtype))
    return context.reshape(shape)


def _weigh_again(operands: Operands, place: Place, weights: Array, context: Array) -> None:
    """Write weights · V for heads whose sums of exponentials times values left the range."""
    for entry, head in np.argwhere(~np.isfinite(context).all(axis=(2, 3))):
        first, second = place.entries[0] + int(entry), place.heads[0] + int(head)
        alone = place._replace(entries=(first, first + 1), heads=(second, second + 1))
        own = weights[entry : entry + 1, head : head + 1]
        # Weights are rounded, and so may add up to a little more than 1.
        context[entry, head] = within_range(_weigh(operands, alone, own))[0, 0]


def _of_entries(array: Array, place: Place) -> Array:
    """Return keys or values (B or 1, …) of some batch entries."""
    return array if len(array) == 1 else array[slice(*place.entries)]


def _by_group(array: Array, groups: int, *, stacked: bool) -> Array:
    """Return (B, H, L, ·) so that the heads of a group meet their key, (B, G, 1, S, ·).

    If possible, their queries are stacked, (B, G, H/G · L, ·): fewer and larger products.
    """
    entries, heads, rows, width = array.shape
    if heads == groups:
        return array
    if stacked:
        return array.reshape(entries, groups, -1, width)
    return array.reshape(entries, groups, heads // groups, rows, width)


def _pieces(array: Array) -> Iterator[slice]:
    """Yield the keys of an array (…, S, ·) some at a time, so that few numbers are widened."""
    keys = array.shape[-2]
    step = max(1, _WIDENED * keys // array.size)
    for start in range(0, keys, step):
        yield slice(start, start + step)


def _is_finite(array: Array) -> bool:
    return all_finite(array, one_blas_thread=array.flags.c_contiguous)


def _refuse_seen(problem: Problem, place: Place, wrong: Bools) -> None:
    """Raise the error of scores beyond the range if a query sees any of the wrong ones."""
    if problem.unread is None:
        seen = seen_at(problem, place)
        wrong = wrong if seen is None else wrong & seen
    if wrong.any():
        refuse_scores(problem)
