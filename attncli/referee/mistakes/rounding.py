"""Steps that are rounded to fewer bits than the file has: inputs, scores, weights, sums.

Kernels round exp(score − largest score), the largest of the row or of the blocks seen so far. In
terms of the weights that is their ratio to the largest of them.
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
from attncli.referee.mistakes.changes import after, given, require, softmaxed
from attncli.referee.mistakes.table import Rows
from attncli.referee.run import Run, turned_inputs

if TYPE_CHECKING:
    from attncli.referee.pipeline import Pipeline

__all__ = ["ROWS"]

ROWS = Rows()

Rounding = Callable[[Array], Array]
_SHORT: dict[str, Rounding] = {fmt: PRECISIONS[fmt].stored for fmt in ("bfloat16", "float16")}
# TF32 has as many bits.
_FORMATS = {"bfloat16": "bfloat16", "float16": "float16, or to TF32"}
_INPUTS: dict[str, tuple[str, ...]] = {
    "cache": ("key", "value"),
    "query_key": ("query", "key"),
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
}
# Longer keys, in numbers, are not rounded again and again; nor are longer sums, a key at a time.
_MOST_NUMBERS, _MOST_ROUNDINGS = 2**21, 2**12
# Keys whose exponentials are beside one largest score, 0 for all of them: names and words.
_BESIDE = {0: ("", "exp(score − largest score)")}
_BESIDE |= {
    size: (f"_of_{size}", f"exp(score − largest score so far, of blocks of {size} keys)")
    for size in (16, 32, 64, 128)
}


def _in_float32(pipe: Pipeline) -> None:
    """Go on in files of float32 whose scores are products of query and key."""
    require(pipe.file.largest == PRECISIONS["float32"].largest)
    require(pipe.key.size <= _MOST_NUMBERS, pipe.score in ("dot", "cosine"))


def _moving_scale(pipe: Pipeline) -> float:
    """Return the scale, where it moves digits: it is neither 0 nor a power of two."""
    scale = pipe.scale
    require(isinstance(scale, float) and abs(math.frexp(scale)[0]) not in (0.0, 0.5))
    return float(scale)


def _rounds(pipe: Pipeline, name: str, rounding: Rounding) -> bool:
    """Return whether an input is another one when it is rounded, as it is multiplied."""
    array = getattr(pipe, name)
    turned = pipe.rope is not None and name != "value"
    return array is not None and (turned or not np.array_equal(rounding(array), array))


def _operands(pipe: Pipeline, names: tuple[str, ...], rounding: Rounding) -> Pipeline:
    """Round some inputs as they are multiplied."""
    for name in names:
        pipe = pipe.then("operands", (name, lambda _, rows: rounding(rows)))
    return pipe


def _inputs_in(pipe: Pipeline, rounding: Rounding, *names: str) -> Pipeline:
    _in_float32(pipe)
    require(all(_rounds(pipe, name, rounding) for name in names))
    return _operands(pipe, names, rounding)


def _scaled_query(pipe: Pipeline, rounding: Rounding) -> Pipeline:
    """Round the query after it was multiplied with the scale."""
    _in_float32(pipe)
    scale = _moving_scale(pipe)
    return _operands(pipe, ("query",), lambda rows: rounding(rows * scale)).but(scale=1.0)


def _factors_in(pipe: Pipeline, precision: Precision, rounding: Rounding) -> Pipeline:
    """Round query, key and value; the exponentials too where these have no more bits."""
    _in_float32(pipe)
    names = tuple(n for n in ("query", "key", "value") if getattr(pipe, n) is not None)
    require(all(np.isfinite(rounding(getattr(pipe, name))).all() for name in names))
    made = _operands(pipe, names, rounding).but(products=replace(precision, fused=True))
    if any(_rounds(pipe, name, rounding) for name in names):
        return made
    return after(made, lambda weights: rounded_exponentials(weights, rounding))


def tops(weights: Array) -> Array:
    """Return the largest weight of each row: divided by it, weights are exp(score − maximum)."""
    top = weights.max(axis=-1, keepdims=True)
    return np.where(top == 0, 1, top)


def tops_so_far(weights: Array, block: int) -> Array:
    """Return the largest weight of the blocks seen so far, for each key that of its block."""
    keys = weights.shape[-1]
    starts = np.arange(0, keys, block)
    so_far = np.maximum.accumulate(np.maximum.reduceat(weights, starts, axis=-1), axis=-1)
    spread = np.repeat(so_far, np.diff(starts, append=keys), axis=-1)
    return np.where(spread == 0, 1, spread)


def rounded_exponentials(weights: Array, rounding: Rounding, block: int | None = 0) -> Array:
    """Round exp(score − maximum), as a kernel holds it; the weights themselves for None."""
    if block is None:
        return rounding(weights)
    top = tops_so_far(weights, block) if block else tops(weights)
    return np.asarray(rounding(weights / top) * top)


def _exponentials(pipe: Pipeline, rounding: Rounding, block: int | None) -> Pipeline:
    """Round exponentials, or weights, before they meet the values."""
    _in_float32(pipe)
    require(pipe.shape[3] > (block or 0))
    return after(pipe, lambda weights: rounded_exponentials(weights, rounding, block))


def _summed(pipe: Pipeline, rounding: Rounding, block: int) -> Pipeline:
    """Round exponentials before they are added up as well."""
    _in_float32(pipe)
    require(pipe.shape[3] > block)
    inner = pipe.softmax

    def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
        weights, lse = inner(run, scores)
        rounded = rounded_exponentials(weights, rounding, block)
        # Beside the denominator before, in which a sink has its share.
        total = 1 + (rounded - weights).sum(axis=-1, keepdims=True)
        return rounded / total, lse + np.log(total[..., 0])

    return softmaxed(pipe, softmax)


def _scores_in(pipe: Pipeline, rounding: Rounding) -> Pipeline:
    _in_float32(pipe)
    inner = pipe.softmax
    return softmaxed(pipe, lambda run, scores: inner(run, rounding(scores)))


def _unscaled_scores_in(pipe: Pipeline, rounding: Rounding) -> Pipeline:
    """Round Q·Kᵀ as a first kernel stores it for a second one that scales it."""
    require(pipe.softcap is None, not pipe.terms, not pipe.steps)
    scale = _moving_scale(pipe)
    return _scores_in(pipe, lambda scores: scale * rounding(scores / scale))


def _bias_in(pipe: Pipeline, rounding: Rounding) -> Pipeline:
    _in_float32(pipe)
    own, bias = given(pipe.terms.get("bias")), np.asarray(given(pipe.problem.bias), np.float64)
    require(not np.array_equal(rounding(bias), bias))
    return pipe.with_term("bias", lambda run: rounding(run.called(own)))


def _context_product(pipe: Pipeline, rounding: Rounding, block: int | None) -> Pipeline:
    """Round values, and exponentials or weights that they meet."""
    return _exponentials(_inputs_in(pipe, rounding, "value"), rounding, block)


for (_fmt, _words), (_name, _names) in product(_FORMATS.items(), _INPUTS.items()):
    ROWS.family(f"{_name}_in_{{}}", _inputs_in, {(_fmt, _words): (_SHORT[_fmt], *_names)})
ROWS.family("scaled_query_in_{}", _scaled_query, _SHORT)
ROWS.family("bias_in_{}", _bias_in, _SHORT)
ROWS.family("weights_in_{}", _exponentials, {fmt: (_SHORT[fmt], None) for fmt in _SHORT})
for _name, _change in (("exponentials", _exponentials), ("summed_exponentials", _summed)):
    ROWS.family(
        f"{_name}_in_{{}}{{}}",
        _change,
        {(fmt, *_BESIDE[n]): (_SHORT[fmt], n) for fmt in _SHORT for n in _BESIDE},
    )
ROWS.family("scores_in_{}", _scores_in, _SHORT)
ROWS.family("unscaled_scores_in_{}", _unscaled_scores_in, _SHORT)
_ROUNDINGS: dict[str, tuple[str, Rounding]] = {
    **{fmt: (f"rounded to {words}", _SHORT[fmt]) for fmt, words in _FORMATS.items()},
    "tf32_truncated": ("cut to 11 bits, as in TF32,", truncated_to_tf32),
}
_FACTORS: dict[int | None, tuple[str, str, str]] = {
    None: ("weights_value", "", "the weights"),
    **{n: ("exponentials_value", *beside) for n, beside in _BESIDE.items()},
}
ROWS.family(
    "{2}_in_{0}{3}",
    _context_product,
    {
        (fmt, done, *factor): (rounding, block)
        for fmt, (done, rounding) in _ROUNDINGS.items()
        for block, factor in _FACTORS.items()
    },
)
ROWS.family(
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
    """The numbers of a format: its name, the largest that is used, and the nearest of others."""

    name: str
    largest: float
    nearest: Rounding

    def stored(self, array: Array, size: Array | None = None) -> Array:
        """Return numbers as they are after they went through the format.

        The largest magnitude of those that share a scale becomes the largest number of the format.
        Without a scale, what is too large becomes that.
        """
        if size is None:
            return np.clip(self.nearest(array), -self.largest, self.largest)
        scale = np.where(size == 0, 1, size).astype(array.dtype) / array.dtype.type(self.largest)
        return np.asarray(self.nearest(array / scale) * scale)


def _float8(mantissa: int, least: int) -> Rounding:
    """Return how to round to floats with so many bits behind the point and that least exponent."""

    def nearest(array: Array) -> Array:
        exponent = np.frexp(array)[1] - 1
        step = np.ldexp(array.dtype.type(1), np.maximum(exponent, least) - mantissa)
        return np.asarray(np.rint(array / step) * step)

    return nearest


# Symmetric schemes leave the number of int8 out that has no positive counterpart.
_INT8 = Grid("int8", 127.0, np.rint)
_FLOAT8 = (
    Grid("float8_e4m3fn", 448.0, _float8(3, -6)),
    Grid("float8_e5m2", 57344.0, _float8(2, -14)),
)
_GRIDS = (_INT8, *_FLOAT8)
# Which numbers share a scale: the axes of (B, H, L or S, D); None for no scale.
_SHARING: dict[tuple[str, str], tuple[int, ...] | None] = {
    ("", "without a scale"): None,
    ("_scaled", "with one scale, by the largest magnitude"): (0, 1, 2, 3),
    ("_by_head", "with a scale for each head"): (0, 2, 3),
    ("_by_token", "with a scale for each token of each head"): (3,),
}
# What is quantized; each after those of which it has more.
_QUANTIZED = {
    ("key", "the keys are"): ("key",),
    ("value", "the values are"): ("value",),
    ("cache", "keys and values are"): ("key", "value"),
    ("inputs", "query, key and value are"): ("query", "key", "value"),
}


def _size(pipe: Pipeline, name: str, axes: tuple[int, ...] = (0, 1, 2, 3)) -> Array:
    """Return the largest magnitude of those that share a scale, in the whole problem."""
    key = "size", name, axes, id(pipe.query), id(pipe.key), id(pipe.value), id(pipe.rope)
    if key not in pipe.file.memory:
        array = given(getattr(turned_inputs(pipe), name))
        pipe.file.memory[key] = pipe, np.abs(array).max(axis=axes, keepdims=True)
    return np.asarray(pipe.file.memory[key][1])


def _quantized(
    pipe: Pipeline, grid: Grid, axes: tuple[int, ...] | None, names: tuple[str, ...]
) -> Pipeline:
    """Put some inputs on a grid, as they are when they are multiplied."""
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
    """Quantize keys and values, and multiply both by the scale of the keys."""
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
    """Store the exponentials, whose largest is 1, as float32 is rounded to a grid."""
    require(pipe.value is not None, pipe.shape[3] > block)

    def rounding(powers: Array) -> Array:
        return grid.stored(powers.astype(np.float32), _whole(grid)).astype(np.float64)

    return after(
        pipe.but(codes=True), lambda weights: rounded_exponentials(weights, rounding, block)
    )


def _whole(grid: Grid) -> Array | None:
    """Return the scale of numbers from 0 to 1: 1 becomes the largest number of int8."""
    return np.ones(1) if grid is _INT8 else None


def _normalised_on(pipe: Pipeline, grid: Grid, size: Callable[[Array], Any]) -> Pipeline:
    """Store the weights behind the softmax, with one scale made of them all."""
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


# Sums of 16 bits.

_SPLIT = np.float32(2.0**16 + 1)


def _bfloat16_in_loops(array: Array) -> Array:
    """Return the nearest numbers of float32; what lies in the middle may go either way."""
    more = array * _SPLIT
    return np.asarray(more - (more - array))


# Of a few numbers of float32, again and again, where `Precision.rounded` takes five times as long.
_IN_LOOPS: dict[str, Rounding] = {
    "bfloat16": _bfloat16_in_loops,
    "float16": lambda array: array.astype(np.float16).astype(np.float32),
}


def _short_sum(fmt: str, weights: Array, value: Array) -> Array:
    """Add up in 16 bits, a key at a time; factors and products have no more."""
    rounded = _IN_LOOPS[fmt]
    value = np.repeat(value, max(1, weights.shape[1] // value.shape[1]), axis=1)
    shares, rows = (rounded(array.astype(np.float32)) for array in (weights, value))
    total = np.zeros(np.broadcast_shapes(weights[..., :1].shape, value[..., :1, :].shape), "f4")
    for key in range(weights.shape[-1]):
        total = rounded(total + rounded(shares[..., key, None] * rows[..., key, None, :]))
    return total.astype(weights.dtype)


def _short_denominator(fmt: str, weights: Array) -> Array:
    """Return weights that are exponentials divided by such a sum."""
    powers = weights / tops(weights)
    total = _short_sum(fmt, powers, np.ones((1, 1, powers.shape[-1], 1)))
    return powers / np.where(total == 0, 1, total)


def _accumulated(pipe: Pipeline, fmt: str, *, above: str, below: bool) -> Pipeline:
    """Add up in 16 bits, unless the files are of another such format.

    ``above`` says what meets the values: weights, exponentials that are divided later, or nothing
    is added up in 16 bits; with ``below`` the denominator is.
    """
    require(pipe.file.largest not in {PRECISIONS[f].largest for f in _SHORT if f != fmt})
    require(pipe.shape[3] <= _MOST_ROUNDINGS, pipe.value is not None)
    require(not below or pipe.sinks is None)

    def mix(_: Run, weights: Array, value: Array) -> Array:
        top = tops(weights) if above == "exponentials" else np.float64(1)
        return np.asarray(_short_sum(fmt, weights / top, value) * top)

    made = pipe.but(codes=True, **({"mix": mix} if above else {}))
    return after(made, partial(_short_denominator, fmt)) if below else made


for _name, _above, _below in (
    ("accumulation", "weights", False),
    ("accumulation_divided_later", "exponentials", False),
    ("denominator", "", True),
    ("accumulation_of_both", "exponentials", True),
):
    ROWS.family(f"{{}}_{_name}", partial(_accumulated, above=_above, below=_below), tuple(_SHORT))


def _held(
    fmt: str, block: int, weights: Array, value: Array, *, rescaled: bool, short: bool
) -> Array:
    """Return the sum of weight · value that is rounded after each block of keys.

    It is made of exp(score − largest score so far) · value. With ``rescaled`` it is also rounded
    where it is rescaled; with ``short`` the exponentials are rounded before they meet the values.
    """
    rounded, top = _IN_LOOPS[fmt], tops_so_far(weights, block)
    powers = (weights / top).astype(np.float32)
    powers = rounded(powers) if short else powers
    value = np.repeat(value, max(1, weights.shape[1] // value.shape[1]), axis=1).astype(np.float32)
    held, before = np.zeros(1, np.float32), top[..., :1]
    for start in range(0, powers.shape[-1], block):
        part = slice(start, start + block)
        now = top[..., start, None]
        held = held * (before / now).astype(np.float32)
        held = rounded(held) if rescaled else held
        held = rounded(held + powers[..., part] @ value[..., part, :])
        before = now
    return np.asarray(held * top[..., -1:])


def _holding(
    pipe: Pipeline, fmt: str, block: int, *, rescaled: bool = False, both: bool = False
) -> Pipeline:
    """Hold the sum of the values, or both sums, in 16 bits from block to block."""
    keys, own, largest = pipe.shape[3], PRECISIONS[fmt], pipe.file.largest
    require(largest >= PRECISIONS["float32"].largest or largest == own.largest)
    # Of sizes that hold all keys, the smallest is tried; a key at a time takes long.
    require(keys > block // 2 if block > 1 else 1 < keys <= _MOST_ROUNDINGS)
    require(pipe.value is not None, not both or pipe.sinks is None)
    # Tensor cores take both factors in one format; a loop over the keys multiplies in float32.
    short = block > 1 and own.holds(given(pipe.value))
    held = partial(_held, fmt, block, rescaled=rescaled)
    made = pipe.but(mix=lambda _, weights, value: held(weights, value, short=short), codes=True)
    inner, ones = pipe.softmax, np.ones((1, 1, keys, 1))

    def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
        weights, lse = inner(run, scores)
        total = held(weights, ones, short=False)
        total = np.where(total == 0, 1, total)  # a row that sees no key has none
        return weights / total, lse + np.log(total[..., 0])

    return softmaxed(made, softmax) if both else made


_HELD = {
    (fmt, block, "key" if block == 1 else f"block of {block} keys"): (fmt, block)
    for fmt in _SHORT
    for block in (1, 16, 32, 64, 128)
}
ROWS.family("accumulator_in_{}_of_{}", _holding, _HELD)
for _name, _holding_ in (
    ("rescaled_accumulator", partial(_holding, rescaled=True)),
    ("sums", partial(_holding, both=True)),
):
    ROWS.family(f"{_name}_in_{{}}_of_{{}}", _holding_, _HELD)
