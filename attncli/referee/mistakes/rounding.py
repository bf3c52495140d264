"""Steps that are rounded to fewer bits than the file has: inputs, scores, weights, sums.

Kernels round exp(score − maximum), where the maximum is that of the row, or of the blocks so far.
This exponential is the weight divided by the largest weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.referee.formats import PRECISIONS, TF32, Array, Precision, truncated_to_tf32
from attncli.referee.mistakes.table import Rows, after, given, require, softmaxed
from attncli.referee.run import Run, turned_inputs

if TYPE_CHECKING:
    from attncli.referee.pipeline import Pipeline

ROWS = Rows()

Rounding = Callable[[Array], Array]
_SHORT: dict[str, Rounding] = {fmt: PRECISIONS[fmt].stored for fmt in ("bfloat16", "float16")}
# TF32 and float16 have equally many significant bits.
_FORMATS = {"bfloat16": "bfloat16", "float16": "float16 (or TF32)"}
_INPUTS: dict[str, tuple[str, ...]] = {
    "cache": ("key", "value"),
    "query_key": ("query", "key"),
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
}
# The most numbers that are rounded; the most keys that are added up one at a time.
_MOST_NUMBERS, _MOST_ROUNDINGS = 2**21, 2**12
# From the number of keys that share a maximum, 0 for all, to the end of the name and words.
_BESIDE = {0: ("", "exp(score − row max)")}
_BESIDE |= {
    size: (f"_of_{size}", f"exp(score − row max so far, in blocks of {size} keys)")
    for size in (16, 32, 64, 128)
}


def _in_float32(pipe: Pipeline) -> bool:
    """Return whether files are float32 and scores are products."""
    fits = pipe.file.largest == PRECISIONS["float32"].largest and pipe.key.size <= _MOST_NUMBERS
    return fits and pipe.score in ("dot", "cosine")


def _moving_scale(pipe: Pipeline) -> float:
    """Return the scale, if multiplying by it rounds: it is neither 0 nor a power of two."""
    scale = pipe.scale
    require(isinstance(scale, float) and abs(math.frexp(scale)[0]) not in (0.0, 0.5))
    return float(scale)


def _rounds(pipe: Pipeline, name: str, rounding: Rounding) -> bool:
    """Return whether rounding changes an input of a product."""
    array = getattr(pipe, name)
    turned = pipe.rope is not None and name != "value"
    return array is not None and (turned or not np.array_equal(rounding(array), array))


def _operands(pipe: Pipeline, rounding: Rounding, *names: str) -> Pipeline:
    for name in names:
        pipe = pipe.then("operands", (name, lambda _, rows: rounding(rows)))
    return pipe


def _inputs_in(pipe: Pipeline, rounding: Rounding, *names: str) -> Pipeline:
    require(all(_rounds(pipe, name, rounding) for name in names))
    return _operands(pipe, rounding, *names)


def _scaled_query(pipe: Pipeline, rounding: Rounding) -> Pipeline:
    scale = _moving_scale(pipe)
    return _operands(pipe, lambda rows: rounding(rows * scale), "query").but(scale=1.0)


def _factors_in(pipe: Pipeline, precision: Precision, rounding: Rounding) -> Pipeline:
    """Round query, key and value; round exponentials, too, if the three need no rounding."""
    names = tuple(n for n in ("query", "key", "value") if getattr(pipe, n) is not None)
    require(all(np.isfinite(rounding(getattr(pipe, name))).all() for name in names))
    made = _operands(pipe, rounding, *names).but(products=replace(precision, fused=True))
    rounds = any(_rounds(pipe, name, rounding) for name in names)
    return made if rounds else _exponentials(made, rounding, 0)


def tops(weights: Array, block: int | None) -> Array:
    """Return the largest weight of the row (block 0) or of the blocks so far; 1 for None."""
    if block is None:
        return np.ones(1)
    if block == 0:
        top = weights.max(axis=-1, keepdims=True)
    else:
        starts = np.arange(0, weights.shape[-1], block)
        so_far = np.maximum.accumulate(np.maximum.reduceat(weights, starts, axis=-1), axis=-1)
        top = np.repeat(so_far, np.diff(starts, append=weights.shape[-1]), axis=-1)
    return np.where(top == 0, 1, top)


def rounded_exponentials(weights: Array, rounding: Rounding, block: int | None) -> Array:
    """Round exp(score − maximum); if ``block`` is None, round the weights themselves."""
    top = tops(weights, block)
    return np.asarray(rounding(weights / top) * top)


def _exponentials(pipe: Pipeline, rounding: Rounding, block: int | None) -> Pipeline:
    require(pipe.shape[3] > (block or 0))
    return after(pipe, lambda weights: rounded_exponentials(weights, rounding, block))


def _summed(pipe: Pipeline, rounding: Rounding, block: int) -> Pipeline:
    """Round exponentials before they enter either sum."""
    require(pipe.shape[3] > block)

    def change(_: Run, __: Array, weights: Array, lse: Array) -> tuple[Array, Array]:
        rounded = rounded_exponentials(weights, rounding, block)
        # The sum is relative to the right row sum, which includes the sink.
        total = 1 + (rounded - weights).sum(axis=-1, keepdims=True)
        return rounded / total, lse + np.log(total[..., 0])

    return softmaxed(pipe, change)


def _scores_in(pipe: Pipeline, rounding: Rounding) -> Pipeline:
    inner = pipe.softmax
    return pipe.but(softmax=lambda run, scores: inner(run, rounding(scores)))


def _unscaled_scores_in(pipe: Pipeline, rounding: Rounding) -> Pipeline:
    require(pipe.softcap is None, not pipe.terms, not pipe.steps)
    scale = _moving_scale(pipe)
    return _scores_in(pipe, lambda scores: scale * rounding(scores / scale))


def _context_product(pipe: Pipeline, rounding: Rounding, block: int | None) -> Pipeline:
    return _exponentials(_inputs_in(pipe, rounding, "value"), rounding, block)


_family = partial(ROWS.family, when=_in_float32)
for (_fmt, _words), (_name, _names) in product(_FORMATS.items(), _INPUTS.items()):
    _family(f"{_name}_in_{{}}", _inputs_in, {(_fmt, _words): (_SHORT[_fmt], *_names)})
_family("scaled_query_in_{}", _scaled_query, _SHORT)
_family("weights_in_{}", _exponentials, {fmt: (_SHORT[fmt], None) for fmt in _SHORT})
_AT = {(fmt, *_BESIDE[n]): (_SHORT[fmt], n) for fmt in _SHORT for n in _BESIDE}
_family("exponentials_in_{}{}", _exponentials, _AT)
_family("summed_exponentials_in_{}{}", _summed, _AT)
_family("scores_in_{}", _scores_in, _SHORT)
_family("unscaled_scores_in_{}", _unscaled_scores_in, _SHORT)
_ROUNDINGS: dict[str, tuple[str, Rounding]] = {
    **{fmt: (f"rounded to {words}", _SHORT[fmt]) for fmt, words in _FORMATS.items()},
    "tf32_truncated": ("truncated to 11 significant bits (TF32)", truncated_to_tf32),
}
_FACTORS: dict[int | None, tuple[str, str, str]] = {
    None: ("weights_value", "", "the weights"),
    **{n: ("exponentials_value", *beside) for n, beside in _BESIDE.items()},
}
_family(
    "{2}_in_{0}{3}",
    _context_product,
    {
        (fmt, done, *factor): (rounding, block)
        for fmt, (done, rounding) in _ROUNDINGS.items()
        for block, factor in _FACTORS.items()
    },
)
_family(
    "products_in_{}",
    _factors_in,
    {
        "tf32": (TF32, TF32.stored),
        "tf32_truncated": (TF32, truncated_to_tf32),
        "bfloat16": (PRECISIONS["bfloat16"], _SHORT["bfloat16"]),
    },
    variant_of=tuple(row.name for row in ROWS),
)


# Inputs and weights of 8 bits.


class Grid(NamedTuple):
    """An 8-bit format: its name, its largest number, and how to round to it."""

    name: str
    largest: float
    nearest: Rounding

    def stored(self, array: Array, size: Array | None = None) -> Array:
        """Round numbers, scaled so that ``size`` becomes the largest one; None for no scale."""
        if size is None:
            return np.clip(self.nearest(array), -self.largest, self.largest)
        scale = np.where(size == 0, 1, size).astype(array.dtype) / array.dtype.type(self.largest)
        return np.asarray(self.nearest(array / scale) * scale)


def _float8(mantissa: int, least: int) -> Rounding:
    """Return the rounding to floats with these mantissa bits and this least exponent."""

    def nearest(array: Array) -> Array:
        exponent = np.frexp(array)[1] - 1
        step = np.ldexp(array.dtype.type(1), np.maximum(exponent, least) - mantissa)
        return np.asarray(np.rint(array / step) * step)

    return nearest


# Symmetric schemes do not use −128, which has no positive counterpart.
_INT8 = Grid("int8", 127.0, np.rint)
_FLOAT8 = (
    Grid("float8_e4m3fn", 448.0, _float8(3, -6)),
    Grid("float8_e5m2", 57344.0, _float8(2, -14)),
)
_GRIDS = (_INT8, *_FLOAT8)
# The axes of (B, H, L or S, D) along which numbers share a scale; None for no scale.
_SHARING: dict[tuple[str, str], tuple[int, ...] | None] = {
    ("", "without a scale"): None,
    ("_scaled", "with one scale for all numbers"): (0, 1, 2, 3),
    ("_by_head", "with a scale for each head"): (0, 2, 3),
    ("_by_token", "with a scale for each token of each head"): (3,),
}
# From name and words to the quantized inputs; subsets come before the sets that contain them.
_QUANTIZED = {
    ("key", "the keys are"): ("key",),
    ("value", "the values are"): ("value",),
    ("cache", "keys and values are"): ("key", "value"),
    ("inputs", "query, key and value are"): ("query", "key", "value"),
}


def _size(pipe: Pipeline, name: str, axes: tuple[int, ...] = (0, 1, 2, 3)) -> Array:
    """Return the largest magnitude in each group of numbers that share a scale."""
    key = "size", name, axes, id(pipe.query), id(pipe.key), id(pipe.value), id(pipe.rope)
    if key not in pipe.file.memory:
        array = given(getattr(turned_inputs(pipe), name))
        pipe.file.memory[key] = pipe, np.abs(array).max(axis=axes, keepdims=True)
    return np.asarray(pipe.file.memory[key][1])


def _quantized(
    pipe: Pipeline, grid: Grid, axes: tuple[int, ...] | None, names: tuple[str, ...]
) -> Pipeline:
    """Round some inputs of the products to 8 bits."""
    arrays = [given(getattr(pipe, name)) for name in names]
    require(pipe.score in ("dot", "cosine"))
    require(all(array.size <= 2 * _MOST_NUMBERS for array in arrays))
    for name in names:
        pipe = pipe.then("operands", (name, _on_grid(pipe, grid, name, axes)))
    return pipe.but(codes=True)


def _on_grid(pipe: Pipeline, grid: Grid, name: str, axes: tuple[int, ...] | None) -> Any:
    dtype = np.float64 if getattr(pipe.problem, name).dtype == np.float64 else np.float32
    size = None if axes in (None, (3,)) else _size(pipe, name, axes or ())

    def stored(run: Run, rows: Array) -> Array:
        own = np.abs(rows).max(axis=-1, keepdims=True) if axes == (3,) else size
        head = run.part.head
        if size is not None and size.shape[1] > 1 and head is not None:
            own = size[:, [head * size.shape[1] // pipe.shape[1]]]
        return np.asarray(grid.stored(rows.astype(dtype), own).astype(np.float64))

    return stored


def _values_by_k_scale(pipe: Pipeline, grid: Grid) -> Pipeline:
    key, value = (float(_size(pipe, name).max()) for name in ("key", "value"))
    made = _quantized(pipe, grid, (0, 1, 2, 3), ("key", "value")).but(codes=False)
    times = key / value if value else 1.0
    return made.then("operands", ("value", lambda _, rows: rows * times))


for _grid, (_part, _names) in product(_GRIDS, _QUANTIZED.items()):
    ROWS.family(
        "{2}_in_{0}{1}",
        _quantized,
        {
            (_grid.name, end, _part[0], _part[1], words): (_grid, axes, _names)
            for (end, words), axes in _SHARING.items()
            if not (_grid is _INT8 and axes is None)
        },
    )
ROWS.family(
    "cache_in_{}_values_by_k_scale",
    _values_by_k_scale,
    {grid.name: (grid,) for grid in _GRIDS},
)


def _exponentials_on(pipe: Pipeline, grid: Grid, block: int) -> Pipeline:
    """Round exponentials, the largest of which is 1, to 8 bits."""
    require(pipe.value is not None, pipe.shape[3] > block)

    def rounding(powers: Array) -> Array:
        return grid.stored(powers.astype(np.float32), _whole(grid)).astype(np.float64)

    return after(
        pipe.but(codes=True), lambda weights: rounded_exponentials(weights, rounding, block)
    )


def _whole(grid: Grid) -> Array | None:
    """Return the scale of numbers from 0 to 1; float8 needs none."""
    return np.ones(1) if grid is _INT8 else None


def _normalised_on(pipe: Pipeline, grid: Grid, size: Callable[[Array], Any]) -> Pipeline:
    require(pipe.value is not None)
    return after(pipe.but(codes=True), lambda weights: grid.stored(weights, size(weights)))


ROWS.family(
    "weights_in_{}{}",
    _exponentials_on,
    {(grid.name, *_BESIDE[n]): (grid, n) for grid in _GRIDS for n in (0, 64, 128)},
)
ROWS.family(
    "normalised_weights_in_{}",
    _normalised_on,
    {grid.name: (grid, lambda _, own=grid: _whole(own)) for grid in _GRIDS},
)
ROWS.add("normalised_weights_in_int8_scaled", _normalised_on, _INT8, np.max)


# Sums that are kept in 16 bits.

_SPLIT = np.float32(2.0**16 + 1)


def _bfloat16_in_loops(array: Array) -> Array:
    """Round float32 to bfloat16; ties may go either way."""
    more = array * _SPLIT
    return np.asarray(more - (more - array))


# Fast rounding for few numbers: `Precision.rounded` takes five times as long.
_IN_LOOPS: dict[str, Rounding] = {
    "bfloat16": _bfloat16_in_loops,
    "float16": lambda array: array.astype(np.float16).astype(np.float32),
}


def _added_up(
    fmt: str,
    block: int,
    beside: int | None,
    weights: Array,
    value: Array,
    *,
    factors: bool,
    rescaled: bool = False,
) -> Array:
    """Return Σ weight · value, rounded after each block of keys.

    The weights are divided by `tops`. With ``factors``, these quotients, the values and single
    products are rounded, too. With ``rescaled``, the sum is also rounded when it is rescaled.
    """
    rounded, top = _IN_LOOPS[fmt], tops(weights, beside)
    shares = (weights / top).astype(np.float32)
    value = np.repeat(value, max(1, weights.shape[1] // value.shape[1]), axis=1).astype(np.float32)
    if factors:
        shares, value = rounded(shares), rounded(value)
    held = np.zeros(1, np.float32)
    for start in range(0, shares.shape[-1], block):
        part = slice(start, start + block)
        if beside and start:
            held = held * (top[..., start - 1, None] / top[..., start, None]).astype(np.float32)
            held = rounded(held) if rescaled else held
        added = shares[..., part] @ value[..., part, :]
        held = rounded(held + (rounded(added) if factors and block == 1 else added))
    return np.asarray(held * top[..., -1:])


def _added_in(
    pipe: Pipeline,
    fmt: str,
    block: int = 1,
    beside: int | None = 0,
    *,
    above: bool = True,
    below: bool = False,
    rescaled: bool = False,
    all_in: bool = False,
) -> Pipeline:
    """Keep the sum of values, the row sum or both in 16 bits; ``all_in``: all factors as well."""
    keys, own, largest, value = pipe.shape[3], PRECISIONS[fmt], pipe.file.largest, given(pipe.value)
    require(largest >= PRECISIONS["float32"].largest or largest == own.largest)
    # If several sizes hold all keys, only the smallest of them is tried.
    require(keys > block // 2 if block > 1 else 1 < keys <= _MOST_ROUNDINGS)
    require(not below or pipe.sinks is None)
    # Tensor cores take both factors in one format; a loop over the keys multiplies in float32.
    factors = all_in or (block > 1 and own.holds(value))
    total = partial(_added_up, fmt, block, beside, rescaled=rescaled)
    made = pipe.but(codes=True)
    if above:
        made = made.but(mix=lambda _, weights, value: total(weights, value, factors=factors))
    ones = np.ones((1, 1, keys, 1))

    def denominator(_: Run, __: Array, weights: Array, lse: Array) -> tuple[Array, Array]:
        sums = total(weights, ones, factors=all_in)
        sums = np.where(sums == 0, 1, sums)  # the sum is 0 if a query sees no key
        return weights / sums, lse + np.log(sums[..., 0])

    return softmaxed(made, denominator) if below else made


_SUMS: dict[str, dict[str, Any]] = {
    "accumulation": {"beside": None},
    "accumulation_divided_later": {},
    "denominator": {"above": False, "below": True},
    "accumulation_of_both": {"below": True},
}
for _name, _how in _SUMS.items():
    ROWS.family(f"{{}}_{_name}", partial(_added_in, all_in=True, **_how), tuple(_SHORT))
_HELD = {
    (fmt, block, "key" if block == 1 else f"block of {block} keys"): (fmt, block, block)
    for fmt in _SHORT
    for block in (1, 16, 32, 64, 128)
}
ROWS.family("accumulator_in_{}_of_{}", _added_in, _HELD)
ROWS.family("rescaled_accumulator_in_{}_of_{}", partial(_added_in, rescaled=True), _HELD)
ROWS.family("sums_in_{}_of_{}", partial(_added_in, below=True), _HELD)
