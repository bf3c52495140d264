"""Attention a second time, from the definition: plain loops over Python floats.

Every engine test measures against this file. It shares no code with attncli, and it
trades all speed for being read beside the definition: one score at a time,
``math.fsum`` for every sum (correctly rounded, so sums add no error of their own)
and ``math.exp`` of differences to the row's maximum.

Where the definition leaves a corner open, the reading taken here is: a padded query
(beyond ``query_lengths``) is a query that sees no key. Its raw and capped scores are
those of its numbers, its final scores are −inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Options", "alibi_slopes", "attention_2d", "attention_oracle", "rotate"]

Vector = Sequence[float]
HIDDEN = -math.inf
DEFAULT_LAYOUT = {2: "sd", 3: "bsd", 4: "bhsd"}


@dataclass(frozen=True)
class Options:
    """The options that describe a problem, under the names and defaults of `attention`."""

    scale: float | None = None
    mask: Any = None
    mask_means: str = "keep"
    bias: Any = None
    key_padding_mask: Any = None
    kv_lengths: Any = None
    query_lengths: Any = None
    causal: bool = False
    causal_align: str | None = None
    query_offset: Any = None
    window: Any = None
    segment_ids: Any = None
    kv_segment_ids: Any = None
    softcap: float | None = None
    alibi_slopes: Any = None
    sinks: Any = None
    rope: str | None = None
    rope_base: float = 10000.0
    rope_frequencies: Any = None
    score: str = "dot"
    score_weight: Any = None
    score_vector: Any = None
    heads: int | None = None
    kv_heads: int | None = None
    layout: str | None = None


class Sizes(NamedTuple):
    """The axes' lengths, 1 for an axis that the inputs do not have."""

    B: int
    H: int
    G: int
    L: int
    S: int
    D: int
    E: int


def attention_oracle(query: Any, key: Any, value: Any, **options: Any) -> dict[str, np.ndarray]:
    """Return raw, capped, scores, weights, context and lse in float64.

    Shapes are those the definition gives: (…, L, S) with batch before head, lse (…, L),
    context in the layout of the query.
    """
    o = Options(**options)
    axes = o.layout or DEFAULT_LAYOUT[np.ndim(query)]
    q, k = to_bhsd(query, axes, o.heads), to_bhsd(key, axes, o.kv_heads or o.heads)
    v = to_bhsd(value, axes, o.kv_heads or o.heads)
    n = Sizes(*q.shape[:2], k.shape[1], q.shape[2], *k.shape[2:], v.shape[3])
    has_heads = "h" in axes or o.heads is not None
    lead = (n.B,) * ("b" in axes) + (n.H,) * has_heads

    rows = answer_rows(q.tolist(), k.tolist(), v.tolist(), o, n, (*lead, n.L, n.S))
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    context = columns.pop("context").reshape(n.B, n.H, n.L, n.E)
    lse = columns.pop("lse").reshape(*lead, n.L)
    answer = {name: rows_of.reshape(*lead, n.L, n.S) for name, rows_of in columns.items()}
    return answer | {"lse": lse, "context": from_bhsd(context, axes, packed=o.heads is not None)}


def answer_rows(
    q: Any, k: Any, v: Any, o: Options, n: Sizes, weights_shape: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Answer every (batch, head, query) in turn: the numbers of its row, each by name."""
    shown = seen_by_masks(o, n, weights_shape)
    bias = None if o.bias is None else spread(o.bias, n, weights_shape)
    slopes, sinks = slopes_of(o, n), per_batch(o.sinks, n.H)
    answers = []
    for b, h, i in cells(n):
        g = h // (n.H // n.G)
        offset = offset_of(b, o, n)
        raw = [raw_score(q[b][h][i], k[b][g][j], i + offset, j, o) for j in range(n.S)]
        capped = [s if o.softcap is None else o.softcap * math.tanh(s / o.softcap) for s in raw]
        scores = list(capped)
        for j in range(n.S):
            scores[j] += 0.0 if bias is None else bias[b][h][i][j]
            scores[j] -= slopes[h] * abs(i + offset - j)
            if not (shown[b][h][i][j] and seen_by_rules(b, i, j, offset, o)):
                scores[j] = HIDDEN
        weights, lse = softmax(scores, None if sinks is None else sinks[h])
        context = weighted_sum(weights, v[b][g])
        row = {"raw": raw, "capped": capped, "scores": scores, "weights": weights}
        answers.append(row | {"context": context, "lse": lse})
    return answers


def attention_2d(
    query_rows: Sequence[Vector],
    key_rows: Sequence[Vector],
    value_rows: Sequence[Vector],
    scale: float | None = None,
    seen: Sequence[Sequence[bool]] | None = None,
) -> tuple[list[list[float]], list[list[float]]]:
    """Return weights and context of one head, from rows of numbers."""
    if scale is None:
        scale = 1 / math.sqrt(len(query_rows[0]))
    weights, context = [], []
    for i, query in enumerate(query_rows):
        scores = [scale * dot(query, key) for key in key_rows]
        if seen is not None:
            scores = [s if seen[i][j] else HIDDEN for j, s in enumerate(scores)]
        weights.append(softmax(scores, None)[0])
        context.append(weighted_sum(weights[-1], value_rows))
    return weights, context


# --- axes ---------------------------------------------------------------------------------


def cells(n: Sizes) -> Iterator[tuple[int, int, int]]:
    """Yield every (batch, head, query)."""
    return ((b, h, i) for b in range(n.B) for h in range(n.H) for i in range(n.L))


def to_bhsd(array: Any, axes: str, heads: int | None) -> np.ndarray:
    """Cut packed heads and bring the axes into the order (B, H, sequence, width)."""
    array = np.asarray(array, dtype=np.float64)
    if heads is not None:
        array = array.reshape(*array.shape[:-1], heads, -1)
        axes = axes[:-1] + "hd"
    for letter in "bhsd":
        if letter not in axes:
            array, axes = array[np.newaxis], letter + axes
    return array.transpose([axes.index(letter) for letter in "bhsd"])


def from_bhsd(context: np.ndarray, axes: str, *, packed: bool) -> np.ndarray:
    """Undo `to_bhsd`."""
    order = axes[:-1] + "hd" if packed else axes
    absent = tuple("bhsd".index(letter) for letter in "bh" if letter not in order)
    present = [letter for letter in "bhsd" if letter in order]
    context = context.squeeze(absent).transpose([present.index(letter) for letter in order])
    return context.reshape(*context.shape[:-2], -1) if packed else context


def spread(array: Any, n: Sizes, weights_shape: tuple[int, ...]) -> Any:
    """Broadcast to the shape the weights really have, then name all four axes."""
    return np.broadcast_to(array, weights_shape).reshape(n.B, n.H, n.L, n.S).tolist()


def per_batch(numbers: Any, count: int) -> list[Any] | None:
    """Read one number, or one for each batch (or head), as one for each."""
    return None if numbers is None else np.broadcast_to(numbers, (count,)).tolist()


# --- 1. raw scores ------------------------------------------------------------------------


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def raw_score(query: Vector, key: Vector, i: float, j: float, o: Options) -> float:
    """Compare one query at position i with one key at position j."""
    if o.rope is not None:
        how = o.rope, o.rope_base, o.rope_frequencies
        query, key = rotate(query, i, *how), rotate(key, j, *how)
    scale = o.scale
    if scale is None:
        scale = 1 / math.sqrt(len(query)) if o.score == "dot" else 1.0
    return scale * similarity(query, key, o)


def similarity(query: Vector, key: Vector, o: Options) -> float:
    if o.score == "cosine":
        return dot(query, key) / (math.sqrt(dot(query, query)) * math.sqrt(dot(key, key)))
    if o.score == "general":
        return dot(query, [dot(row, key) for row in np.asarray(o.score_weight).tolist()])
    if o.score == "additive":
        v = [1.0] * len(query) if o.score_vector is None else np.asarray(o.score_vector).tolist()
        return dot(v, [math.tanh(x + y) for x, y in zip(query, key, strict=True)])
    return dot(query, key)


def rotate(
    vector: Vector, position: float, pairing: str, base: float, frequencies: Any = None
) -> list[float]:
    """Turn each pair of coordinates by position · base^(−2p/D) (Su et al. 2021, eq. 15).

    With frequencies, as many pairs, each by position · frequency; what is left stays.
    """
    pairs = len(vector) // 2 if frequencies is None else len(frequencies)
    turned = list(vector)
    for p in range(pairs):
        first, second = (p, p + pairs) if pairing == "half" else (2 * p, 2 * p + 1)
        frequency = base ** (-2 * p / len(vector)) if frequencies is None else frequencies[p]
        angle = position * frequency
        x, y = vector[first], vector[second]
        turned[first] = x * math.cos(angle) - y * math.sin(angle)
        turned[second] = x * math.sin(angle) + y * math.cos(angle)
    return turned


# --- 3. ALiBi -----------------------------------------------------------------------------


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of Press et al. 2022, with their rule for other head counts.

    The rule: all slopes of the next lower power of two, then every other slope of the
    doubled power.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]


def slopes_of(o: Options, n: Sizes) -> list[float]:
    if o.alibi_slopes is True:
        return alibi_slopes(n.H)
    return per_batch(o.alibi_slopes, n.H) or [0.0] * n.H


# --- 4. who sees what ---------------------------------------------------------------------


def offset_of(b: int, o: Options, n: Sizes) -> int:
    """Return how far the first query stands behind the first key."""
    if o.query_offset is not None:
        return per_batch(o.query_offset, n.B)[b]
    if o.causal_align == "bottom-right":
        return (n.S if o.kv_lengths is None else per_batch(o.kv_lengths, n.B)[b]) - n.L
    return 0


def seen_by_masks(o: Options, n: Sizes, weights_shape: tuple[int, ...]) -> Any:
    """Combine mask, key padding and lengths into one (B, H, L, S) table of booleans."""
    drop = o.mask_means == "drop"
    shown = np.ones((n.B, n.H, n.L, n.S), dtype=bool)
    if o.mask is not None:
        shown &= np.asarray(spread(o.mask, n, weights_shape), dtype=bool) != drop
    if o.key_padding_mask is not None:
        real = np.asarray(o.key_padding_mask, dtype=bool) != drop
        shown &= np.broadcast_to(real, (n.B, n.S))[:, None, None, :]
    if o.segment_ids is not None:
        own = np.broadcast_to(o.segment_ids, (n.B, n.L))
        keys = own if o.kv_segment_ids is None else np.broadcast_to(o.kv_segment_ids, (n.B, n.S))
        for b, i, j in np.ndindex(n.B, n.L, n.S):
            shown[b, :, i, j] &= own[b][i] == keys[b][j]
    for b in range(n.B):
        if o.kv_lengths is not None:
            shown[b, :, :, per_batch(o.kv_lengths, n.B)[b] :] = False
        if o.query_lengths is not None:
            shown[b, :, per_batch(o.query_lengths, n.B)[b] :, :] = False
    return shown.tolist()


def seen_by_rules(b: int, i: int, j: int, offset: int, o: Options) -> bool:
    """Ask causal and window whether query i may see key j."""
    if o.causal and not j <= i + offset:
        return False
    if o.window is None:
        return True
    left, right = (o.window, o.window) if isinstance(o.window, int) else o.window
    if left not in (None, -1) and not i + offset - left <= j:
        return False
    return right in (None, -1) or j <= i + offset + right


# --- 5. and 6. softmax and weighted sum ---------------------------------------------------


def softmax(scores: Vector, sink: float | None) -> tuple[list[float], float]:
    """Return the weights and the natural log of the denominator; the sink counts in both."""
    logits = [*scores] if sink is None else [*scores, sink]
    top = max(logits)
    if top == HIDDEN:
        return [0.0] * len(scores), HIDDEN
    denominator = math.fsum(math.exp(s - top) for s in logits)
    weights = [math.exp(s - top) / denominator for s in scores]
    return weights, top + math.log(denominator)


def weighted_sum(weights: Vector, values: Sequence[Vector]) -> list[float]:
    """Add up the values; one of weight 0 is left out, so that nothing in it can leak."""
    seen = [(w, row) for w, row in zip(weights, values, strict=True) if w != 0]
    return [math.fsum(w * row[e] for w, row in seen) for e in range(len(values[0]))]
