"""The backward pass: gradients of query, key, value, bias and sinks, tile by tile.

In FlashAttention's two steps, with dO the gradient of the context O:

    delta = row sum of dO ∘ O, less the gradient of the lse
    for each block of queries and each tile of keys:
        P  = exp(Q Kᵀ − lse)              the weights, made again
        dV = dV + Pᵀ dO
        dS = P ∘ (dO Vᵀ − delta)          the gradient of the scores
        dQ = dQ + dS K
        dK = dK + dSᵀ Q

Scale and softcap multiply dS; the bias gets dS itself, summed where it was broadcast. The steps
before the product (rope, cosine, the matrix of a general score) are undone at the end.

References
----------
Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.engine import attend
from attncli.engine.operands import Operands, prepare
from attncli.engine.score_rules import Place, add_rules, hiding_parts
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import rotate
from attncli.problem.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]
Span = tuple[int, int]
# Queries of a block and keys of a tile: two tiles of a megabyte in float32.
_ROWS, _COLUMNS = 512, 512
# The fewest parts that let all threads end at about the same time.
_ENOUGH_PARTS = 4


class _Part(NamedTuple):
    """A part for one thread: some batch entries and key heads, and a range of keys."""

    entries: range
    groups: range
    keys: Span
    chunk: int


@dataclass(eq=False)
class _Sums:
    """Where the gradients are summed, (B, H or G, …).

    ``query`` and a ``bias`` without a key axis have one array for each range of keys, so that no
    two threads write to the same array.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None


def backward(
    problem: Problem,
    dcontext: Array,
    dlse: Array | None,
    outputs: Collection[str],
    *,
    threads: int | None = None,
) -> dict[str, Array]:
    """Return gradients in (B, H, …) axes and the computing dtype.

    Parameters
    ----------
    problem : Problem
        Checked (`Problem.read`), with a value, without an output projection, and not additive.
    dcontext : ndarray (B, H, L, E)
    dlse : ndarray (B, H, L), or None
    outputs : collection of str
        Of dquery, dkey, dvalue, dbias and dsinks.
    threads : int, optional

    Returns
    -------
    dict of str to ndarray
        ``dquery`` (B, H, L, D), ``dkey`` (B, G, S, D), ``dvalue`` (B, G, S, E), ``dbias`` of the
        shape of the problem's bias, ``dsinks`` (H,).
    """
    plain = replace(problem, layout=Layout("bhsd", packed=False))
    forward, _ = attend(plain, ("context", "lse"), threads=threads)
    lse = np.asarray(forward.lse)
    delta = np.vecdot(dcontext, np.asarray(forward.context))
    if dlse is not None:
        delta = delta - dlse
    made: dict[str, Array] = {}
    if "dsinks" in outputs:
        share = np.exp(np.asarray(problem.sinks).reshape(-1, 1) - lse)
        made["dsinks"] = -(share * delta).sum(axis=(0, 2), dtype=np.float64).astype(problem.dtype)
    if not {"dquery", "dkey", "dvalue", "dbias"} & {*outputs}:
        return made
    sums = _swept(problem, (dcontext, lse, delta), threads, with_bias="dbias" in outputs)
    dquery, dkey = _before_product(problem, sums.query, sums.key)
    made |= {"dquery": dquery, "dkey": dkey, "dvalue": sums.value}
    if sums.bias is not None:
        made["dbias"] = sums.bias
    return {name: made[name] for name in outputs}


def _swept(
    problem: Problem, rows: tuple[Array, Array, Array], threads: int | None, *, with_bias: bool
) -> _Sums:
    """Return the gradients of the operands, the value and the bias."""
    from attncli.numerics.threads.blas import single_blas_thread  # noqa: PLC0415
    from attncli.numerics.threads.cores import available_cores  # noqa: PLC0415
    from attncli.numerics.threads.pool import spread  # noqa: PLC0415

    parts = _parts(problem, with_bias=with_bias)
    chunks = 1 + max(part.chunk for part in parts)
    batch, heads, queries, keys = problem.shape
    groups, dtype = problem.key.shape[1], problem.dtype
    width, value_width = problem.key.shape[3], np.asarray(problem.value).shape[3]
    bias = None
    if with_bias:
        shape = np.asarray(problem.bias).shape
        bias = np.zeros(shape if shape[3] > 1 else (chunks, *shape), dtype)
    sums = _Sums(
        query=np.zeros((chunks, batch, heads, queries, width), dtype),
        key=np.zeros((batch, groups, keys, width), dtype),
        value=np.zeros((batch, groups, keys, value_width), dtype),
        bias=bias,
    )
    operands = prepare(problem)

    def work(queue: Iterable[_Part], check_stopped: Callable[[], None]) -> int:
        for part in queue:
            for entry in part.entries:
                for group in part.groups:
                    check_stopped()
                    _of_group(operands, part, entry, group, rows, sums, check_stopped)
        return 0

    with single_blas_thread(), np.errstate(all="ignore"):
        spread(work, parts, min(threads or available_cores(), len(parts)))
    sums.query = sums.query[0] if chunks == 1 else sums.query.sum(axis=0)
    if bias is not None and bias.ndim == 5:
        sums.bias = bias.sum(axis=0)
    return sums


def _parts(problem: Problem, *, with_bias: bool) -> list[_Part]:
    """Cut the work so that no two parts write to the same numbers, whatever the threads."""
    batch, _, _, keys = problem.shape
    groups = problem.key.shape[1]
    count = _ENOUGH_PARTS if with_bias else -(-_ENOUGH_PARTS // (batch * groups))
    step = -(-keys // count // 16) * 16
    stretches = [(start, min(start + step, keys)) for start in range(0, keys, step)]
    if with_bias:
        return [_Part(range(batch), range(groups), s, n) for n, s in enumerate(stretches)]
    return [
        _Part(range(entry, entry + 1), range(group, group + 1), stretch, number)
        for number, stretch in reversed([*enumerate(stretches)])
        for entry in range(batch)
        for group in range(groups)
    ]


def _of_group(
    operands: Operands,
    part: _Part,
    entry: int,
    group: int,
    rows: tuple[Array, Array, Array],
    sums: _Sums,
    check_stopped: Callable[[], None],
) -> None:
    """Add the contributions of the query heads that share one key head, for a range of its keys."""
    problem, share = operands.problem, operands.share
    place = entry % len(operands.key), group
    key = widen(operands.key[place], problem.dtype)
    value = widen(np.asarray(problem.value)[place], problem.dtype)
    for head in range(group * share, (group + 1) * share):
        for start in range(0, problem.shape[2], _ROWS):
            check_stopped()
            block = start, min(start + _ROWS, problem.shape[2])
            span = problem.visible.span(entry, *block)
            first, last = max(span[0], part.keys[0]), min(span[1], part.keys[1])
            at = entry, head, slice(*block)
            query = widen(operands.query[at], problem.dtype) * problem.dtype.type(problem.scale)
            own = query, *(array[at] for array in rows)
            dquery = sums.query[(part.chunk, *at)]
            for column in range(first, last, _COLUMNS):
                columns = column, min(column + _COLUMNS, last)
                tile = Place((entry, entry + 1), (head, head + 1), block, columns)
                tiled = slice(*columns)
                weights, dscores = _tile(problem, tile, own, key[tiled], value[tiled])
                if sums.bias is not None:
                    _add_bias(sums.bias, part.chunk, tile, dscores[0])
                sums.value[entry, group, tiled] += weights.T @ own[1]
                dquery += dscores[1] @ key[tiled]
                sums.key[entry, group, tiled] += dscores[1].T @ query
            dquery *= problem.dtype.type(problem.scale)


def _tile(
    problem: Problem, place: Place, own: tuple[Array, ...], key: Array, value: Array
) -> tuple[Array, tuple[Array, Array]]:
    """Return the weights of a tile, and the gradients of its scores and of its raw scores."""
    query, dcontext, lse, delta = own
    weights = query @ key.T
    slope = _capped(problem, weights, place)
    # A query without keys has lse −inf; all its weights are 0.
    np.subtract(weights, np.where(np.isneginf(lse), np.inf, lse)[:, None], out=weights)
    np.exp(weights, out=weights)
    for some, seen in hiding_parts(problem, place):
        edge = weights[:, some]
        np.copyto(edge, 0, where=~np.broadcast_to(seen[0, 0], edge.shape))
    dscores = dcontext @ value.T
    np.subtract(dscores, delta[:, None], out=dscores)
    np.multiply(dscores, weights, out=dscores)
    return weights, (dscores, dscores if slope is None else dscores * slope)


def _capped(problem: Problem, scores: Array, place: Place) -> Array | None:
    """Turn raw scores into scores in place, and return the derivative of the softcap."""
    slopes: list[Array] = []

    def keep(stage: str, capped: Array) -> None:
        if stage == "capped" and problem.softcap is not None:
            slopes.append(1 - np.square(capped / problem.softcap))

    add_rules(problem, scores, place, lambda rule: rule[0, 0], keep)
    return slopes[0] if slopes else None


def _add_bias(bias: Array, chunk: int, place: Place, dscores: Array) -> None:
    """Add the scores' gradient in a tile to the bias's gradient, summed where it is broadcast."""
    room = place.cut(bias[chunk] if bias.ndim == 5 else bias)[0, 0]
    axes = tuple(axis for axis in (0, 1) if room.shape[axis] == 1 < dscores.shape[axis])
    room += dscores.sum(axis=axes, keepdims=True) if axes else dscores


def _before_product(problem: Problem, dquery: Array, dkey: Array) -> tuple[Array, Array]:
    """Return the gradients of query and key from those of the operands of the product."""
    bare = prepare(replace(problem, score="dot", score_weight=None))
    if problem.score_weight is not None:
        dquery = dquery @ widen(problem.score_weight, problem.dtype).T
    if problem.score == "cosine":
        dquery = _through_unit(widen(bare.query, problem.dtype), dquery)
        dkey = _through_unit(widen(bare.key, problem.dtype), dkey)
    if problem.rope is None:
        return dquery, dkey
    turn, (batch, _, queries, keys) = problem.rope, problem.shape
    frequencies = turn.of_width(dquery.shape[3])

    def back(rows: Array, positions: Array) -> Array:
        return rotate(rows, -positions, pairing=turn.pairing, frequencies=frequencies)

    offsets = [problem.visible.offset(entry) for entry in range(batch)]
    turned = [back(dquery[b], np.arange(queries) + offset) for b, offset in enumerate(offsets)]
    return np.stack(turned), back(dkey, np.arange(keys))


def _through_unit(rows: Array, gradient: Array) -> Array:
    """Turn the gradient of rows / length into the gradient of the rows; 0 for a row of zeros."""
    length = np.sqrt(np.vecdot(rows, rows))[..., None]
    unit = rows / np.where(length == 0, 1, length)
    along = np.vecdot(unit, gradient)[..., None]
    moved = (gradient - unit * along) / np.where(length == 0, np.inf, length)
    return np.asarray(moved)
