"""Steps that are rounded to fewer bits than the file has: inputs, scores, weights, sums.

Kernels round exp(score − largest score), the largest of the row or of the blocks seen so far. In
terms of the weights that is their ratio to the largest of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attncli.referee.formats import PRECISIONS, TF32, Array, Precision, truncated_to_tf32
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import Change, Rows
from attncli.referee.pipeline import Pipeline, Run, alibi, turned_inputs

__all__ = ["PRODUCTS", "QUANTIZED", "SHORT_SUMS", "SHORT_WEIGHTS"]

Rounding = Callable[[Array], Array]
_SHORT = ("bfloat16", "float16")
# TF32 has as many bits.
_FORMATS = {"bfloat16": "bfloat16", "float16": "float16, or to TF32"}
_INPUTS = {
    "cache": ("key", "value"),
    "query_key": ("query", "key"),
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
}
# Keys whose exponentials are beside one largest score; 0: all of them.
_BLOCKS = (0, 16, 32, 64, 128)
# Longer keys, in numbers, are not rounded again and again; nor are longer sums, a key at a time.
_MOST_NUMBERS, _MOST_ROUNDINGS = 2**21, 2**12

PRODUCTS = Rows(stages.STORED_INPUTS)


def _tried(change: Change) -> Change:
    """Return a change for files of float32 whose scores are products of query and key."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        single = pipe.file.largest == PRECISIONS["float32"].largest
        short = pipe.key.size <= _MOST_NUMBERS and pipe.score in ("dot", "cosine")
        return change(pipe) if single and short else None

    return changed


def _moves_no_digit(scale: Any) -> bool:
    """Return whether a scale is 0 or a power of two, by either sign."""
    return isinstance(scale, float) and abs(math.frexp(scale)[0]) in (0.0, 0.5)


def _rounds(pipe: Pipeline, name: str, rounding: Rounding) -> bool:
    """Return whether an input is another one when it is rounded, as it is multiplied."""
    array = getattr(pipe, name)
    turned = pipe.rope is not None and name != "value"
    return array is not None and (turned or not np.array_equal(rounding(array), array))


def _operands(pipe: Pipeline, names: tuple[str, ...], rounding: Rounding) -> Pipeline:
    """Return the pipeline that rounds some inputs as they are multiplied."""
    for name in names:
        pipe = pipe.then("operands", (name, lambda _, rows: rounding(rows)))
    return pipe


def _inputs_in(names: tuple[str, ...], rounding: Rounding) -> Change:
    @_tried
    def change(pipe: Pipeline) -> Pipeline | None:
        other = all(_rounds(pipe, name, rounding) for name in names)
        return _operands(pipe, names, rounding) if other else None

    return change


def _scaled_query(fmt: str) -> Change:
    """Round the query after it was multiplied with the scale."""

    @_tried
    def change(pipe: Pipeline) -> Pipeline | None:
        scale = pipe.scale
        if _moves_no_digit(scale) or not isinstance(scale, float):
            return None
        rounded = _operands(pipe, ("query",), lambda rows: PRECISIONS[fmt].stored(rows * scale))
        return rounded.but(scale=1.0)

    return change


def _factors_in(precision: Precision, rounding: Rounding) -> Change:
    """Round query, key and value; the exponentials too where these have no more bits."""

    @_tried
    def change(pipe: Pipeline) -> Pipeline | None:
        names = tuple(n for n in ("query", "key", "value") if getattr(pipe, n) is not None)
        arrays = [rounding(getattr(pipe, name)) for name in names]
        if not all(np.isfinite(array).all() for array in arrays):
            return None
        made = _operands(pipe, names, rounding).but(products=replace(precision, fused=True))
        if any(_rounds(pipe, name, rounding) for name in names):
            return made
        return made.then("after", lambda _, weights: rounded_exponentials(weights, rounding))

    return change


def tops(weights: Array) -> Array:
    """Return the largest weight of each row: divided by it, weights are exp(score − maximum)."""
    top = weights.max(axis=-1, keepdims=True)
    return np.where(top == 0, 1, top)


def tops_so_far(weights: Array, block: int, *, backwards: bool = False) -> Array:
    """Return the largest weight of the blocks seen so far, for each key that of its block."""
    keys = weights.shape[-1]
    starts = np.arange(0, keys, block)
    largest = np.maximum.reduceat(weights, starts, axis=-1)
    way = slice(None, None, -1 if backwards else 1)
    so_far = np.maximum.accumulate(largest[..., way], axis=-1)[..., way]
    spread = np.repeat(so_far, np.diff(starts, append=keys), axis=-1)
    return np.where(spread == 0, 1, spread)


def rounded_exponentials(weights: Array, rounding: Rounding, block: int = 0) -> Array:
    """Round exp(score − maximum), as a kernel holds it when it meets the values."""
    top = tops_so_far(weights, block) if block else tops(weights)
    return rounding(weights / top) * top


def _exponentials(rounding: Rounding, block: int, *, summed: bool = False) -> Change:
    """Round exponentials before they meet the values, and before they are added up if asked for."""

    @_tried
    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.shape[3] <= block:
            return None
        if not summed:
            return pipe.then(
                "after", lambda _, weights: rounded_exponentials(weights, rounding, block)
            )
        inner = pipe.softmax

        def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
            weights, lse = inner(run, scores)
            rounded = rounded_exponentials(weights, rounding, block)
            # Beside the denominator before, in which a sink has its share.
            total = 1 + (rounded - weights).sum(axis=-1, keepdims=True)
            return rounded / total, lse + np.log(total[..., 0])

        return pipe.but(softmax=softmax)

    return change


def _weights_in(rounding: Rounding) -> Change:
    return _tried(lambda pipe: pipe.then("after", lambda _, weights: rounding(weights)))


def _scores_in(rounding: Rounding, *, unscaled: bool) -> Change:
    """Round the scores, or Q·Kᵀ as a first kernel stores it for a second one that scales it."""

    @_tried
    def change(pipe: Pipeline) -> Pipeline | None:
        inner, scale = pipe.softmax, pipe.scale
        if not unscaled:
            return pipe.but(softmax=lambda run, scores: inner(run, rounding(scores)))
        plain = pipe.softcap is None and not pipe.terms and not pipe.steps
        if not plain or _moves_no_digit(scale) or not isinstance(scale, float):
            return None
        return pipe.but(softmax=lambda run, scores: inner(run, scale * rounding(scores / scale)))

    return change


def _term_in(value: tuple[str, str, str]) -> Change:
    """Round what is added to the scores."""
    what, fmt, _ = value
    stored = PRECISIONS[fmt].stored
    name = "bias" if what == "bias" else "alibi"

    @_tried
    def change(pipe: Pipeline) -> Pipeline | None:
        own, slopes = pipe.terms.get(name), pipe.problem.alibi_slopes
        if own is None:
            return None
        if what == "alibi_slopes":
            if slopes is None or np.array_equal(stored(slopes), slopes):
                return None
            return pipe.with_term("alibi", alibi(stored(slopes), pipe.offsets))
        if what == "bias" and PRECISIONS[fmt].holds(np.asarray(pipe.problem.bias)):
            return None
        return pipe.with_term(name, lambda run: stored(run.called(own)))

    return change


_ROUNDINGS: tuple[tuple[str, str, Rounding], ...] = (
    ("bfloat16", "rounded to bfloat16", PRECISIONS["bfloat16"].stored),
    ("float16", f"rounded to {_FORMATS['float16']},", PRECISIONS["float16"].stored),
    ("tf32_truncated", "cut to 11 bits, as in TF32,", truncated_to_tf32),
)
for _fmt, (_name, _names) in product(_SHORT, _INPUTS.items()):
    _words = " and ".join(_names)
    PRODUCTS.add(
        f"{_name}_in_{_fmt}",
        _inputs_in(_names, PRECISIONS[_fmt].stored),
        stage=(stages.PRODUCTS if _name == "cache" else stages.STORED_INPUTS),
    )
PRODUCTS.add("query_key_in_tf32_truncated", _inputs_in(("query", "key"), truncated_to_tf32))
PRODUCTS.add("scaled_query_in_{}", _scaled_query, values=_SHORT)
PRODUCTS.add(
    "{}_in_{}",
    _term_in,
    values=[
        (what, fmt, words)
        for fmt in _SHORT
        for what, words in (
            ("bias", "the bias is"),
            ("alibi_slopes", "the ALiBi slopes are"),
            ("alibi", "slope · distance is"),
        )
    ],
    stage=stages.STORED_SCORES,
)
PRODUCTS.add(
    "weights_in_{}",
    lambda fmt: _weights_in(PRECISIONS[fmt].stored),
    values=_SHORT,
    stage=stages.PRODUCTS,
)


def _of(block: int) -> str:
    """Return the end of a name."""
    return f"_of_{block}" if block else ""


def _words_of(block: int) -> str:
    """Return what a kernel multiplies with the values."""
    so_far = f" so far, of blocks of {block} keys" if block else ""
    return f"exp(score − largest score{so_far})"


for _powers, _summed in (
    ("exponentials", False),
    ("summed_exponentials", True),
):
    PRODUCTS.add(
        f"{_powers}_in_{{0}}{{2}}",
        lambda value, summed=_summed: _exponentials(
            PRECISIONS[value[0]].stored, value[1], summed=summed
        ),
        values=[(f, n, _of(n), _words_of(n)) for f in _SHORT for n in _BLOCKS],
        stage=stages.STORED_EXPONENTIALS,
        variant_of=lambda value, summed=_summed: (
            (f"exponentials_in_{value[0]}{value[2]}",) * summed
        ),
    )
for _when, _unscaled in (("scores", False), ("unscaled_scores", True)):
    PRODUCTS.add(
        f"{_when}_in_{{}}",
        lambda fmt, unscaled=_unscaled: _scores_in(PRECISIONS[fmt].stored, unscaled=unscaled),
        values=_SHORT,
        stage=stages.STORED_SCORES,
    )


def _context_product(value: tuple[str, str, Rounding, int | None, str, str]) -> Change:
    """Round values, and weights or exponentials beside the largest of blocks of so many keys."""
    rounding, block = value[2], value[3]
    of_values = _inputs_in(("value",), rounding)
    other = _weights_in(rounding) if block is None else _exponentials(rounding, block)

    def change(pipe: Pipeline) -> Pipeline | None:
        changed = of_values(pipe)
        return None if changed is None else other(changed)

    return change


PRODUCTS.add(
    "{4}_in_{0}{5}",
    _context_product,
    values=[
        (*rounded, block, name, end, words)
        for rounded in _ROUNDINGS
        for block, name, end, words in (
            (None, "weights_value", "", "the weights"),
            *((n, "exponentials_value", _of(n), _words_of(n)) for n in _BLOCKS),
        )
    ],
    stage=stages.STORED_EXPONENTIALS,
)
_EXACT = tuple(row.name for row in PRODUCTS)
PRODUCTS.add(
    "products_in_{}",
    lambda value: _factors_in(value[2], value[3]),
    values=(
        ("tf32", "rounded to 11 bits, as in TF32 and float16", TF32, TF32.stored),
        ("tf32_truncated", "cut to 11 bits, as in TF32", TF32, truncated_to_tf32),
        (
            *("bfloat16", "rounded to 8 bits, as in bfloat16"),
            *(PRECISIONS["bfloat16"], PRECISIONS["bfloat16"].stored),
        ),
    ),
    stage=stages.PRODUCTS,
    variant_of=_EXACT,
    roughly=True,
)


# Inputs and weights of 8 bits.


class Grid(NamedTuple):
    """The numbers of a format: its name, the largest that is used, and the nearest of others."""

    name: str
    largest: float
    nearest: Callable[[Array], Array]

    def stored(self, array: Array, size: Array | None) -> Array:
        """Return numbers as they are after they went through the format.

        The largest magnitude of those that share a scale becomes the largest number of the format.
        Without a scale, what is too large becomes that.
        """
        if size is None:
            return np.clip(self.nearest(array), -self.largest, self.largest)
        scale = np.where(size == 0, 1, size).astype(array.dtype) / array.dtype.type(self.largest)
        return np.asarray(self.nearest(array / scale) * scale)


def _float8(mantissa: int, least: int) -> Callable[[Array], Array]:
    """Return how to round to floats with so many bits behind the point and that least exponent."""

    def nearest(array: Array) -> Array:
        exponent = np.frexp(array)[1] - 1
        step = np.ldexp(array.dtype.type(1), np.maximum(exponent, least) - mantissa)
        return np.asarray(np.rint(array / step) * step)

    return nearest


# Symmetric schemes leave the number of int8 out that has no positive counterpart.
_INT8 = Grid("int8", 127.0, np.rint)
_E4M3, _E5M2 = (
    Grid("float8_e4m3fn", 448.0, _float8(3, -6)),
    Grid("float8_e5m2", 57344.0, _float8(2, -14)),
)
_GRIDS = (_INT8, _E4M3, _E5M2)
# Which numbers share a scale: the axes of (B, H, L or S, D); None for no scale.
_SHARING: tuple[tuple[str, str, tuple[int, ...] | None], ...] = (
    ("", "without a scale", None),
    ("_scaled", "with one scale, by the largest magnitude", (0, 1, 2, 3)),
    ("_by_head", "with a scale for each head", (0, 2, 3)),
    ("_by_entry", "with a scale for each head of each batch entry", (2, 3)),
    ("_by_token", "with a scale for each token of each head", (3,)),
    ("_by_channel", "with a scale for each column of each head", (2,)),
)
# What is quantized; each after those beside which it says nothing more.
_QUANTIZED = {
    "key": ("the keys are", ("key",)),
    "value": ("the values are", ("value",)),
    "cache": ("keys and values are", ("key", "value")),
    "query_key": ("query and key are", ("query", "key")),
    "inputs": ("query, key and value are", ("query", "key", "value")),
}
QUANTIZED = Rows(stages.QUANTIZED)


def _size(pipe: Pipeline, name: str, axes: tuple[int, ...] | None) -> Array | None:
    """Return the largest magnitude of those that share a scale, in the whole problem."""
    if axes is None:
        return None
    key = "size", name, axes, id(pipe.query), id(pipe.key), id(pipe.value), id(pipe.rope)
    memory = pipe.file.memory
    if key not in memory:
        array = getattr(turned_inputs(pipe), name)
        memory[key] = pipe, np.abs(array).max(axis=axes, keepdims=True)
    made: Array = memory[key][1]
    return made


def _quantized(grid: Grid, names: tuple[str, ...], axes: Any, factor: Any = None) -> Change:
    """Put some inputs on a grid, as they are when they are multiplied; perhaps by a wrong scale."""

    def change(pipe: Pipeline) -> Pipeline | None:
        arrays = [getattr(pipe, name) for name in names]
        if pipe.score not in ("dot", "cosine") or any(
            array is None or array.size > 2 * _MOST_NUMBERS for array in arrays
        ):
            return None
        made = pipe.but(codes=factor is None)
        for name in names:
            times = 1.0 if factor is None else factor(pipe, name)
            made = made.then("operands", (name, _on_grid(pipe, grid, name, axes, times)))
        return made

    return change


def _on_grid(pipe: Pipeline, grid: Grid, name: str, axes: Any, times: float) -> Any:
    given = getattr(pipe.problem, name)
    dtype = np.float64 if given.dtype == np.float64 else np.float32
    size = None if axes == (3,) else _size(pipe, name, axes)

    def stored(run: Run, rows: Array) -> Array:
        own = np.abs(rows).max(axis=-1, keepdims=True) if axes == (3,) else size
        if own is not None and axes != (3,):
            batch, _head, _ = run.part.index
            own = own if len(own) == 1 else own[batch]
            shared = pipe.shape[1] // own.shape[1] if own.shape[1] > 1 else 1
            if own.shape[1] > 1 and run.part.head is not None:
                own = own[:, run.part.head // shared : run.part.head // shared + 1]
        return np.asarray(grid.stored(rows.astype(dtype), own).astype(np.float64) * times)

    return stored


def _other_scale(pipe: Pipeline, name: str) -> float:
    """Return the factor of the scale of the other of key and value."""
    key, value = (float(np.max(np.asarray(_size(pipe, n, (0, 1, 2, 3))))) for n in ("key", "value"))
    if not (key and value):
        return 1.0
    return value / key if name == "key" else key / value


def _of_key(pipe: Pipeline, name: str) -> float:
    return 1.0 if name == "key" else _other_scale(pipe, name)


def _simpler(names: tuple[str, ...]) -> list[str]:
    """Return the parts that consist of fewer inputs."""
    return [part for part, (_, others) in _QUANTIZED.items() if {*others} < {*names}]


for _grid in _GRIDS:
    _sharings = _SHARING[1:] if _grid is _INT8 else _SHARING
    for _part, (_words, _names) in _QUANTIZED.items():
        QUANTIZED.add(
            f"{_part}_in_{_grid.name}{{0}}",
            lambda value, grid=_grid, names=_names: _quantized(grid, names, value[2]),
            values=_sharings,
            variant_of=lambda value, grid=_grid, part=_part, names=_names, all_=_sharings: (
                *(f"{other}_in_{grid.name}{value[0]}" for other in _simpler(names)),
                *(f"{part}_in_{grid.name}{one[0]}" for one in all_[: all_.index(value)]),
            ),
        )
QUANTIZED.add(
    "cache_in_{}_{}",
    lambda value: _quantized(value[3], ("key", "value"), (0, 1, 2, 3), value[4]),
    values=[
        (grid.name, *words, grid, factor)
        for grid in _GRIDS
        for words, factor in (
            (("scales_exchanged", "multiplied by the scale of the other"), _other_scale),
            (("values_by_k_scale", "both multiplied by the scale of the keys"), _of_key),
        )
    ],
)


class _Storing(NamedTuple):
    """How exponentials are stored in 8 bits.

    ``times`` is what they are multiplied with, so that small ones keep their bits; ``block`` how
    many keys are beside one largest score so far (0: all), ``backwards`` the last block first.
    """

    grid: Grid
    times: int
    block: int
    backwards: bool

    @property
    def name(self) -> str:
        """The end of a name."""
        scaled = f"_times_{self.times}" if self.times > 1 else ""
        return f"{self.grid.name}{scaled}{_of(self.block)}{'_backwards' * self.backwards}"

    @property
    def meaning(self) -> str:
        """As a sentence goes on behind "rounded to"."""
        scaled = f", times {self.times}" if self.times > 1 else ""
        beside = (
            f"so far of blocks of {self.block} keys{', the last block first' * self.backwards}"
            if self.block
            else "of the row"
        )
        return f"{self.grid.name}{scaled}, beside the largest score {beside}"

    def stored(self, _: Run, weights: Array) -> Array:
        """Return the weights as they are when their exponentials went through the format."""
        top = tops(weights)
        if self.block:
            top = tops_so_far(weights, self.block, backwards=self.backwards)
        scaled = (weights / top).astype(np.float32) * np.float32(self.times)
        return np.asarray(self.grid.stored(scaled, None) / np.float64(self.times) * top)


def _weights_stored(storing: _Storing, axes: Any = "exact") -> Change:
    """Store the exponentials, and the inputs, too, if they share a scale along some axes."""
    inputs = _quantized(storing.grid, ("query", "key", "value"), axes)

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.value is None or pipe.shape[3] <= storing.block:
            return None
        made = pipe.but(codes=True) if axes == "exact" else inputs(pipe)
        return made and made.then("after", storing.stored)

    return change


SHORT_WEIGHTS = Rows(stages.SHORT_WEIGHTS)
_STORINGS = [
    _Storing(grid, times, block, backwards)
    for grid, times, block, backwards in product(
        (_E4M3, _E5M2), (1, 256), (0, 64, 128), (False, True)
    )
    # E5M2 has small numbers enough, and one block is seen in any order.
    if not (grid is _E5M2 and times > 1) and not (backwards and block == 0)
]
for _storing in _STORINGS:
    SHORT_WEIGHTS.add(f"weights_in_{_storing.name}", _weights_stored(_storing))
    if _storing.grid is _E4M3:
        SHORT_WEIGHTS.add(
            f"inputs_in_float8_e4m3fn{{0}}_weights_in_{_storing.name}",
            lambda value, storing=_storing: _weights_stored(storing, value[2]),
            values=_SHARING[:4],
            variant_of=lambda value, storing=_storing: tuple(
                f"inputs_in_float8_e4m3fn{one[0]}_weights_in_{storing.name}"
                for one in _SHARING[: _SHARING.index(value)]
            ),
        )


def _normalised_in(grid: Grid) -> Change:
    """Store the weights behind the softmax; int8 with steps of 1/127."""

    def stored(_: Run, weights: Array) -> Array:
        size = np.asarray(1.0) if grid is _INT8 else None
        return grid.stored(weights, size)

    return lambda pipe: None if pipe.value is None else pipe.but(codes=True).then("after", stored)


SHORT_WEIGHTS.add(
    "normalised_weights_in_{}",
    lambda value: _normalised_in(value[1]),
    values=[(grid.name, grid) for grid in _GRIDS],
)


# Sums of 16 bits.

SHORT_SUMS = Rows(
    stages.SHORT_SUMS,
    fix="keep what is added up in float32, and round the quotient once",
    shows="more keys than are added up at once",
)
_SPLIT = np.float32(2.0**16 + 1)


def _bfloat16_in_loops(array: Array) -> Array:
    """Return the nearest numbers of float32; what lies in the middle may go either way."""
    more = array * _SPLIT
    return np.asarray(more - (more - array))


# Of a few numbers of float32, again and again, where `Precision.rounded` takes five times as long.
_IN_LOOPS: dict[str, Callable[[Array], Array]] = {
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


def _mixed(fmt: str, *, later: bool) -> Callable[[Run, Array, Array], Array]:
    """Add up weights, or exponentials that are divided then, times values in 16 bits."""

    def mix(_: Run, weights: Array, value: Array) -> Array:
        top = tops(weights) if later else np.float64(1)
        return np.asarray(_short_sum(fmt, weights / top, value) * top)

    return mix


def _short_denominator(fmt: str) -> Callable[[Run, Array], Array]:
    def after(_: Run, weights: Array) -> Array:
        powers = weights / tops(weights)
        total = _short_sum(fmt, powers, np.ones((1, 1, powers.shape[-1], 1)))
        return powers / np.where(total == 0, 1, total)

    return after


def _accumulated(value: tuple[str, str, str, Any]) -> Change:
    """Add up in 16 bits, unless the files are of another such format."""
    fmt, name = value[:2]
    others = {PRECISIONS[other].largest for other in _SHORT if other != fmt}

    def change(pipe: Pipeline) -> Pipeline | None:
        total = name in ("denominator", "accumulation_of_both")
        long = pipe.shape[3] > _MOST_ROUNDINGS or pipe.value is None
        if pipe.file.largest in others or long or (total and pipe.sinks is not None):
            return None
        made = pipe.but(codes=True)
        if total:
            made = made.then("after", _short_denominator(fmt))
        if name != "denominator":
            made = made.but(mix=_mixed(fmt, later=name != "accumulation"))
        return made

    return change


SHORT_SUMS.add(
    "{}_{}",
    _accumulated,
    meaning="{2}",
    values=[
        (fmt, name, words.format(fmt))
        for fmt in _SHORT
        for name, words in (
            ("accumulation", "the weighted sum is accumulated in {}, key after key"),
            (
                "accumulation_divided_later",
                (
                    "the weighted sum is accumulated in {}, key after key, and divided by the "
                    "denominator then"
                ),
            ),
            ("denominator", "the denominator is accumulated in {}, key after key"),
            (
                "accumulation_of_both",
                "numerator and denominator are both accumulated in {}, key after key",
            ),
        )
    ],
    fix="accumulate in float32, and round the sum, or the quotient, once",
    shows="many keys",
)


class _Holding(NamedTuple):
    """How sums are held from block to block of keys.

    ``block``: they are rounded after so many keys; 0: after each, beside the largest score of the
    row. ``denominator``: so is the denominator; ``rescaled``: also where they are rescaled.
    """

    fmt: str
    block: int
    denominator: bool
    rescaled: bool

    @property
    def name(self) -> str:
        """The name of the mistake."""
        what = "sums" if self.denominator else "accumulator"
        return f"{'rescaled_' * self.rescaled}{what}_in_{self.fmt}{_of(self.block)}"

    @property
    def meaning(self) -> str:
        """What is rounded, and when."""
        what = f"the sum of the values{' and the denominator are' if self.denominator else ' is'}"
        if not self.block:
            return (
                f"{what} rounded to {self.fmt} after each key, beside the largest score of the row"
            )
        each = "key" if self.block == 1 else f"block of {self.block} keys"
        also = ", and before it where rescaled" if self.rescaled else ""
        return f"{what} rounded to {self.fmt} after each {each}{also}"

    @property
    def simpler(self) -> tuple[str, ...]:
        """The names of those that round less."""
        less = product(*({False, one} for one in (self.denominator, self.rescaled)))
        names = (self._replace(denominator=d, rescaled=r).name for d, r in less)
        return tuple(name for name in names if name != self.name)

    def held(self, weights: Array, value: Array, *, short: bool = False) -> Array:
        """Return the sum of weight · value, with every rounding of exp(score − maximum) · value.

        With ``short``, the exponentials are rounded before they meet the values, too.
        """
        size, rounded = self.block or 1, _IN_LOOPS[self.fmt]
        top = tops_so_far(weights, size) if self.block else tops(weights)
        powers = (weights / top).astype(np.float32)
        powers = rounded(powers) if short else powers
        value = np.repeat(value, max(1, weights.shape[1] // value.shape[1]), axis=1)
        added = _in_blocks(powers, size, 3) @ _in_blocks(value.astype(np.float32), size, 2)
        rows = np.broadcast_to(top[..., ::size], (*top.shape[:-1], len(added)))
        rows = np.moveaxis(rows, -1, 0)
        before = np.concatenate([rows[:1], rows[:-1]])
        held = np.zeros(added.shape[1:], np.float32)
        for more, factor in zip(added, (before / rows)[..., None].astype(np.float32), strict=True):
            held = held * factor
            held = rounded(held) if self.rescaled else held
            held = rounded(held + more)
        return np.asarray(held * top[..., -1:])


def _in_blocks(array: Array, size: int, axis: int) -> Array:
    """Return blocks of keys one after the other, the last one filled with zeros."""
    ends = [(0, -array.shape[axis] % size if at == axis else 0) for at in range(array.ndim)]
    whole = np.pad(array, ends)
    shape = (*whole.shape[:axis], -1, size, *whole.shape[axis + 1 :])
    return np.moveaxis(whole.reshape(shape), axis, 0)


def _holding(value: tuple[str, str, _Holding]) -> Change:
    holding = value[2]

    def change(pipe: Pipeline) -> Pipeline | None:
        keys, largest = pipe.shape[3], pipe.file.largest
        wide = largest >= PRECISIONS["float32"].largest
        fits = wide or largest == PRECISIONS[holding.fmt].largest
        if holding.block > 1:  # of sizes that hold all keys, the smallest
            fits = fits and keys > holding.block // 2
        else:
            # In 16 bits, sums beside the largest score of the row are those of rounded products.
            fits = fits and 1 < keys <= _MOST_ROUNDINGS and (wide or holding.block == 1)
        if pipe.value is None or not fits or (holding.denominator and pipe.sinks is not None):
            return None
        # Tensor cores take both factors in one format; a loop over the keys multiplies in float32.
        short = holding.block > 1 and PRECISIONS[holding.fmt].holds(pipe.value)
        made = pipe.but(
            mix=lambda _, weights, values: holding.held(weights, values, short=short), codes=True
        )
        if not holding.denominator:
            return made
        inner, ones = pipe.softmax, np.ones((1, 1, keys, 1))

        def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
            weights, lse = inner(run, scores)
            total = holding.held(weights, ones)
            total = np.where(total == 0, 1, total)  # a row that sees no key has none
            return weights / total, lse + np.log(total[..., 0])

        return made.but(softmax=softmax)

    return change


_HOLDINGS = [
    _Holding(*each)
    for each in product(_SHORT, (0, 1, 16, 32, 64, 128), (False, True), (False, True))
    # Beside the largest score of the row nothing is rescaled.
    if each[1] or not each[3]
]
SHORT_SUMS.add(
    "{}",
    _holding,
    meaning="{1}",
    values=[(holding.name, holding.meaning, holding) for holding in _HOLDINGS],
    variant_of=lambda value: value[2].simpler,
)
