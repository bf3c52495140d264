"""Hypothesis strategies: whole problems, with every option and only valid combinations.

Sizes and options are drawn one by one, so that a failure shrinks to few of them; the
numbers come from a drawn seed, because what shrinks well is the problem, not its digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

__all__ = ["Numbers", "Problem", "near_tile_edges", "problems"]

Draw = Any
Lengths = st.SearchStrategy[tuple[int, int]]
LAYOUTS = ("sd", "bsd", "hsd", "shd", "bhsd", "bshd")
DEFAULTS = {"sd", "bsd", "bhsd"}


class Problem(NamedTuple):
    """The arguments of one call of `attention`; ``options`` holds those not left out."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict[str, Any]


class Sizes(NamedTuple):
    """Lengths of the axes and which of them the inputs have; B or H is 1 where absent."""

    layout: str
    packed: bool
    B: int
    H: int
    G: int
    L: int
    S: int
    D: int
    E: int

    @property
    def has_heads(self) -> bool:
        return self.packed or "h" in self.layout

    @property
    def weights(self) -> tuple[int, ...]:
        return (self.B,) * ("b" in self.layout) + (self.H,) * self.has_heads + (self.L, self.S)


class Numbers:
    """Finite numbers of moderate size in the dtype of a problem."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype = np.dtype(dtype)

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        if self.dtype.kind == "i":
            return self.random.integers(-2, 3, shape).astype(self.dtype)
        return self.random.uniform(-1.5, 1.5, shape).astype(self.dtype)

    def booleans(self, shape: tuple[int, ...], share: float) -> np.ndarray:
        return self.random.random(shape) < share


def array_shape(n: Sizes, heads: int, sequence: int, width: int) -> tuple[int, ...]:
    """Return the shape of query, key or value in the problem's layout."""
    size = {"b": n.B, "h": heads, "s": sequence, "d": heads * width if n.packed else width}
    return tuple(size[axis] for axis in n.layout)


# L and S of problems that shrink well, more keys than queries as often as fewer.
SHORT = st.tuples(st.integers(1, 5), st.integers(1, 6))


def numbers_to(least: int, most: int) -> st.SearchStrategy[int]:
    """Draw any number in a range; of a long range, mostly those at or beside a tile's end."""
    edges = (64, 128, 256, 512)
    near = {sign * edge + step for sign in (-1, 1) for edge in edges for step in (-2, -1, 0, 1)}
    within = sorted(number for number in near if least <= number <= most)
    anywhere = st.integers(least, most)
    return anywhere | st.sampled_from(within) if within else anywhere


@st.composite
def near_tile_edges(draw: Draw) -> tuple[int, int]:
    """Draw L and S, one small enough for the oracle and one of more than a tile."""
    long, short = draw(numbers_to(60, 560)), draw(st.integers(1, 3))
    return draw(st.sampled_from([(long, short), (short, long)]))


@st.composite
def sizes(draw: Draw, lengths: Lengths, *, even_width: bool) -> Sizes:
    """Draw a layout and all lengths, the other axes short where L or S is long."""
    layout = draw(st.sampled_from(LAYOUTS))
    length, keys = draw(lengths)
    few = st.integers(1, 3 if max(length, keys) <= 6 else 2)
    packed = layout in {"sd", "bsd"} and draw(st.booleans())
    has_heads = packed or "h" in layout
    groups = draw(few) if has_heads else 1
    return Sizes(
        layout=layout,
        packed=packed,
        B=draw(few) if "b" in layout else 1,
        H=groups * draw(few) if has_heads else 1,
        G=groups,
        L=length,
        S=keys,
        D=2 * draw(few) if even_width else draw(few) + draw(few) - 1,
        E=draw(few),
    )


def one_or_per_batch(n: Sizes, number: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Draw one number, or a list or an array of one a batch where there are batches."""
    if "b" not in n.layout:
        return number
    each = st.lists(number, min_size=n.B, max_size=n.B)
    return number | each | each.map(np.array)


@st.composite
def broadcastable(draw: Draw, full: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape of any rank that NumPy broadcasts to the full one."""
    rank = draw(st.integers(1, len(full)))
    return tuple(draw(st.sampled_from([size, 1])) for size in full[len(full) - rank :])


@st.composite
def keep_masks(draw: Draw, shape: tuple[int, ...], numbers: Numbers, means: str) -> np.ndarray:
    """Draw a mask as booleans or exact 0 and 1, in the polarity given."""
    keep = numbers.booleans(shape, draw(st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0])))
    if draw(st.booleans()):
        keep[..., draw(numbers_to(0, shape[-1])) :] = draw(st.booleans())
    return (keep if means == "keep" else ~keep).astype(
        draw(st.sampled_from(["bool", "uint8", "int64", "float32"]))
    )


@st.composite
def mask_options(draw: Draw, n: Sizes, numbers: Numbers) -> dict[str, Any]:
    """Draw mask, padding mask and lengths, each present or not."""
    options: dict[str, Any] = {}
    means = draw(st.sampled_from(["keep", "drop"]))
    if draw(st.booleans()):
        options["mask"] = draw(keep_masks(draw(broadcastable(n.weights)), numbers, means))
    if draw(st.integers(0, 2)) == 0:
        shape = (n.B, n.S) if "b" in n.layout and draw(st.booleans()) else (n.S,)
        options["key_padding_mask"] = draw(keep_masks(shape, numbers, means))
    if options and (means == "drop" or draw(st.booleans())):
        options["mask_means"] = means
    if draw(st.integers(0, 2)) == 0:
        options["kv_lengths"] = draw(one_or_per_batch(n, numbers_to(0, n.S)))
    if draw(st.integers(0, 3)) == 0:
        options["query_lengths"] = draw(one_or_per_batch(n, numbers_to(0, n.L)))
    if draw(st.integers(0, 3)) == 0:
        options |= draw(packed_options(n))
    return options


@st.composite
def packed_options(draw: Draw, n: Sizes) -> dict[str, Any]:
    """Draw which sequence each query, and perhaps each key, belongs to."""

    def numbers(count: int) -> np.ndarray:
        entries = n.B if "b" in n.layout and draw(st.booleans()) else 1
        ids = draw(st.lists(st.integers(0, 3), min_size=entries * count, max_size=entries * count))
        rows = np.array(ids, draw(st.sampled_from(["int64", "uint8", "float32"])))
        rows = rows.reshape(entries, count)
        rows = np.sort(rows) if draw(st.booleans()) else rows
        return rows if entries > 1 or draw(st.booleans()) else rows[0]

    options: dict[str, Any] = {"segment_ids": numbers(n.L)}
    if n.L != n.S or draw(st.booleans()):
        options["kv_segment_ids"] = numbers(n.S)
    return options


def windows(n: Sizes) -> st.SearchStrategy[Any]:
    """Draw one int, or two bounds of which either may be open as −1 or None."""
    bound = st.sampled_from([-1, None]) | st.integers(0, 4) | numbers_to(0, max(n.L, n.S))
    return st.integers(0, 3) | st.tuples(bound, bound)


@st.composite
def position_options(draw: Draw, n: Sizes, numbers: Numbers, rope: str | None) -> dict[str, Any]:
    """Draw the rules that count positions, and an offset only where one of them does."""
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["causal"] = True
    if draw(st.integers(0, 2)) == 0:
        options["window"] = draw(windows(n))
    if draw(st.integers(0, 2)) == 0:
        slopes = numbers.random.uniform(0, 1, n.H)
        options["alibi_slopes"] = draw(st.sampled_from([True, slopes, slopes.tolist()]))
    if rope is not None:
        options["rope"] = rope
        if draw(st.booleans()):
            options["rope_base"] = draw(st.sampled_from([10.0, 500000.0]))
        elif draw(st.booleans()):
            few = draw(st.integers(1, n.D // 2))
            options["rope_frequencies"] = draw(
                st.lists(st.floats(-3, 3, width=32), min_size=few, max_size=few)
            )
    if options:
        said = draw(st.sampled_from(["nothing", "causal_align", "query_offset"]))
        if said == "causal_align":
            options[said] = draw(st.sampled_from(["top-left", "bottom-right"]))
        elif said == "query_offset":
            options[said] = draw(one_or_per_batch(n, numbers_to(-n.L - 1, n.S + 1)))
    return options


@st.composite
def score_options(draw: Draw, n: Sizes, numbers: Numbers) -> dict[str, Any]:
    """Draw how a query is compared with a key, and what is added to that."""
    options: dict[str, Any] = {}
    # A zero vector has no cosine, and among small integers it is not rare.
    kinds = ["dot", "general", "additive"] + ["cosine"] * (numbers.dtype.kind == "f")
    score = draw(st.sampled_from(["dot"] * 6 + kinds))
    if score != "dot":
        options["score"] = score
    if score == "additive" and draw(st.booleans()):
        options["score_vector"] = numbers.array((n.D,))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([1, 0.3, 1.7]))
    if draw(st.integers(0, 2)) == 0:
        options["softcap"] = draw(st.sampled_from([0.5, 2, 30.0]))
    if draw(st.integers(0, 2)) == 0:
        bias = np.asarray(numbers.array(draw(broadcastable(n.weights))), dtype=float)
        bias[numbers.booleans(bias.shape, draw(st.sampled_from([0.0, 0.3, 1.0])))] = -np.inf
        narrow = numbers.dtype if numbers.dtype.kind == "f" else np.float64
        options["bias"] = bias.astype(narrow)
    if draw(st.integers(0, 2)) == 0:
        sinks = numbers.random.uniform(-3, 3, n.H)
        options["sinks"] = draw(st.sampled_from([sinks, sinks.tolist()]))
    return options


@st.composite
def problems(
    draw: Draw,
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "int64"),
    lengths: Lengths = SHORT,
) -> Problem:
    """Draw a whole problem, its numbers in one dtype of those given."""
    rope = draw(st.sampled_from([None, None, "half", "interleaved"]))
    n = draw(sizes(lengths, even_width=rope is not None))
    numbers = Numbers(draw(st.integers(0, 2**32)), draw(st.sampled_from(dtypes)))
    options = draw(score_options(n, numbers))
    options |= draw(position_options(n, numbers, rope))
    options |= draw(mask_options(n, numbers))
    key_width = n.D
    if options.get("score") == "general":
        key_width = n.D if rope is not None else draw(st.integers(1, 5))
        options["score_weight"] = numbers.array((n.D, key_width)) / 2
    if n.layout not in DEFAULTS or draw(st.booleans()):
        options["layout"] = n.layout
    if n.packed:
        options["heads"] = n.H
        if n.G != n.H or draw(st.booleans()):
            options["kv_heads"] = n.G
    return Problem(
        query=numbers.array(array_shape(n, n.H, n.L, n.D)),
        key=numbers.array(array_shape(n, n.G, n.S, key_width)),
        value=numbers.array(array_shape(n, n.G, n.S, n.E)),
        options=options,
    )
