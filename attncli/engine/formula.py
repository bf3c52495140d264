"""The formula as it stands in the paper, softmax(scale · QKᵀ) V, for some heads and queries.

It serves small problems, many short heads, few queries over many keys, every output with a number
for each query and key, additive scores, and scores that leave the range of the tiled path
(`attncli.engine.flash`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.operands import NotFiniteError, refuse_scores
from attncli.engine.panels import row_sums, weighted_sum
from attncli.engine.plan import FEW_QUERIES, SCORES_OF_SHORT_HEAD, whole_shape
from attncli.engine.range_checks import HIGHEST_UNSHIFTED
from attncli.engine.score_rules import (
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
    from attncli.engine.score_rules import Place
    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Up to this many scores, a masked copy is faster than a minimum with infinities. Up to this many
# scores of a head, neither a search for the least score nor a sum in pieces is worth the time.
_SHORT = 4096
# Half-precision numbers that are widened at a time.
_WIDENED = 2**20
_LEAST_NORMAL = {
    np.dtype(kind): 2 * float(np.finfo(kind).tiny) for kind in (np.float32, np.float64)
}


def attend_part(
    operands: Operands, place: Place, results: dict[str, Array], scratch: Scratch
) -> int:
    """Compute a part of the results, and return how many (batch, head, query) see no key.

    The heads are whole groups that share a key head, or lie within one group.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    problem = operands.problem
    index = tuple([slice(*span) for span in place[:3]])
    own = {name: array[index] for name, array in results.items()}
    place = _seen_keys(problem, place, own)
    columns = slice(*place.columns)
    bound = _bound(operands, place)
    adds = problem.bias is not None or problem.alibi_slopes is not None
    # A lse near 0 would lose digits without a shift.
    shifted = adds or "lse" in own or bound > HIGHEST_UNSHIFTED[problem.dtype]
    scores = _room(place, own, scratch)
    finite = _write_scores(operands, place, scores, own, finite=bound < math.inf)
    if "scores" in own:
        own["scores"][..., columns] = scores
    highest = _shift(scores) if shifted else np.zeros(())
    _exponentiate(scores, low=shifted or not finite)
    total = _totals(scores)
    sinks = problem.sinks
    if sinks is not None:
        sinks = sinks[slice(*place.heads), None, None]
    if "lse" in own:
        own["lse"][...] = log_denominator(total, highest, sinks)[..., 0]
    factors: tuple[Array, ...] = ()
    if sinks is not None:
        factors = share_beside_sinks(total, sinks.astype(total.dtype) - highest)
    empty = total == 0
    np.copyto(total, 1, where=empty)
    # Dividing after the product with the values has the fewest rounding errors. Without a shift,
    # the sums of such products leave the range, and the weights come first.
    if not shifted:
        np.divide(scores, total, out=scores)
    if "context" in own:
        divisor = total if shifted else None
        _write_context(operands, place, scores, divisor, factors, own["context"])
    if "weights" in own:
        if shifted:
            np.divide(scores, total, out=scores)
        _times(scores, factors)
        if not np.may_share_memory(scores, own["weights"]):
            own["weights"][..., columns] = scores
    return int(np.count_nonzero(empty)) if adds or problem.visible.hides else 0


def _seen_keys(problem: Problem, place: Place, own: dict[str, Array]) -> Place:
    """Return the place without keys that no query sees, and write the results for those keys."""
    if not problem.visible.banded or "raw" in own or "capped" in own:
        return place
    first, last = problem.visible.span(place.entries[0], *place.rows)
    last = max(last, first + 1)  # keep one hidden key if no query sees any
    for name, hidden in (("weights", 0), ("scores", -np.inf)):
        if name in own:
            own[name][..., :first] = hidden
            own[name][..., last:] = hidden
    return place._replace(columns=(first, last))


def _bound(operands: Operands, place: Place) -> float:
    """Return a bound on the magnitude of the capped scores, in nats; inf if unknown.

    A bound makes the shift and the search for infinite scores superfluous. Only long heads get one:
    they are computed one by one, so that heads do not influence each other.
    """
    problem = operands.problem
    _, _, queries, keys = whole_shape(problem)
    alone = all(stop - start == 1 for start, stop in place[:2])
    # For few queries, reading all keys for a bound costs as much as it saves.
    long = queries > FEW_QUERIES and queries * keys > SCORES_OF_SHORT_HEAD
    if long and alone and problem.is_product:
        return operands.score_bound(place)
    return math.inf


def _room(place: Place, own: dict[str, Array], scratch: Scratch) -> Array:
    """Return an array (B, H, L, S) for the scores: that of the weights if asked for."""
    weights = own.get("weights")
    if weights is not None and weights.strides[3] == weights.itemsize:
        return weights[..., slice(*place.columns)]
    return scratch.array("scores", tuple([stop - start for start, stop in place]))


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
        if problem.bias is not None:  # a bias may hold −inf
            wrong &= widen(place.cut(problem.bias), problem.dtype) > -np.inf
        _refuse_seen(problem, place, wrong)
    if problem.visible.hides:
        _hide(problem, place, scores, finite=finite)
    return finite


def _hide(problem: Problem, place: Place, scores: Array, *, finite: bool) -> None:
    """Replace the scores of hidden keys by −inf."""
    for some, seen in hiding_parts(problem, place):
        own = scores[..., some]
        if finite and own.size > _SHORT:
            np.minimum(own, hidden_as_infinity(seen, own.dtype), out=own)
        else:
            np.copyto(own, -np.inf, where=~seen)


def _write_raw(operands: Operands, place: Place, scores: Array, *, finite: bool) -> bool:
    """Write the raw scores, and return whether all are finite, those of hidden keys included."""
    problem = operands.problem
    entries, heads, rows, columns = [slice(*span) for span in place]
    query = widen(operands.query[entries, heads, rows], problem.dtype)
    key = _of_entries(operands.key, place)[:, operands.groups(place.heads), columns]
    if not problem.is_product:
        _add_and_squash(problem, query, widen(key, problem.dtype), scores)
    elif abs(problem.scale) > 1:
        _multiply(np.multiply(query, problem.scale, dtype=query.dtype), key, scores)
    else:
        # The scale comes last, as on paper, so that products of whole numbers are exact.
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


def _shift(scores: Array) -> Array:
    """Subtract the highest score of each row (…, S), and return it, (…, 1); 0 if it is −inf."""
    highest = np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.copyto(highest, 0, where=highest == -np.inf)
    np.subtract(scores, highest, out=scores)
    return np.asarray(highest)


def _exponentiate(scores: Array, *, low: bool) -> None:
    """Replace scores by their exponentials; those below the normal numbers become 0.

    Arithmetic with numbers below 1e−38 takes ten to a hundred times as long.
    """
    least = _LEAST_NORMAL[scores.dtype]
    lowest = math.log(least)
    if not low or math.prod(scores.shape[2:]) <= _SHORT or scores.min() >= lowest:
        np.exp(scores, out=scores)
        return
    np.maximum(scores, lowest, out=scores)
    np.exp(scores, out=scores)
    np.multiply(scores, scores > least * (1 + 1e-4), out=scores)


def _totals(exponentials: Array) -> Array:
    """Return the sum of each row (…, S), (…, 1)."""
    if math.prod(exponentials.shape[2:]) <= _SHORT:
        return np.add.reduce(exponentials, axis=-1, keepdims=True)
    return row_sums(exponentials)[..., None]


def _write_context(
    operands: Operands,
    place: Place,
    exponentials: Array,
    total: Array | None,
    factors: tuple[Array, ...],
    out: Array,
) -> None:
    """Write exponentials · V / total; without a total, the exponentials are weights already."""
    context = _weigh(operands, place, exponentials)
    if total is not None:
        np.divide(context, total, out=context)
    if not _is_finite(context):
        if operands.problem.unread is not None:
            raise NotFiniteError
        weights = exponentials if total is None else exponentials / total
        _weigh_again(operands, place, weights, context)
    out[...] = _times(context, factors)


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
    """Reshape (B, H, L, ·) so that the heads of a group meet their key, (B, G, 1, S, ·).

    If possible, their queries are stacked, (B, G, H/G · L, ·): fewer and larger products.
    """
    entries, heads, rows, width = array.shape
    if heads == groups:
        return array
    if stacked:
        return array.reshape(entries, groups, -1, width)
    return array.reshape(entries, groups, heads // groups, rows, width)


def _pieces(array: Array) -> Iterator[slice]:
    """Yield ranges of the keys of an array (…, S, ·), so that few numbers are widened at a time."""
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
