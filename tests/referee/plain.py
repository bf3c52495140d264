"""Attention in plain NumPy and float64, whose every step a test can do wrongly.

Nothing here uses the package: the corpus measures it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

__all__ = [
    "FORMATS",
    "Given",
    "as_bfloat16",
    "as_float16",
    "cut",
    "draw",
    "joined",
    "log_sum",
    "of_bits",
    "rotate",
    "softmax",
]

Array = np.ndarray


def draw(seed: int, *shapes: tuple[int, ...], dtype: str = "float32") -> list[Array]:
    """Return standard normal arrays."""
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def softmax(scores: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """Return exp(scores) over their sum; a row of −inf is NaN, as everywhere."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)


def log_sum(scores: Array) -> Array:
    """Return the natural logarithm of the sum of exponentials, (…, L)."""
    top = scores.max(-1)
    return top + np.log(np.exp(scores - top[..., None]).sum(-1))


def as_bfloat16(array: Any) -> Array:
    """Return the nearest numbers of bfloat16, ties to even, in float64."""
    bits = np.asarray(array, "f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view("f4").astype("f8")


def as_float16(array: Any) -> Array:
    """Return the nearest numbers of float16, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(array).astype("f2").astype("f8")


def of_bits(array: Any, bits: int, rounding: Any = np.round) -> Array:
    """Keep so many significant bits: 11 for TF32, 8 for bfloat16."""
    mantissa, exponent = np.frexp(np.asarray(array, "f8"))
    return np.ldexp(rounding(mantissa * 2.0**bits), exponent - bits)


FORMATS = {
    "float64": lambda array: np.asarray(array, "f8"),
    "float32": lambda array: np.asarray(array, "f4").astype("f8"),
    "float16": as_float16,
    "bfloat16": as_bfloat16,
}


def rotate(
    rows: Array,
    places: Any,
    pairing: str = "half",
    base: float = 10000.0,
    *,
    sign: int = 1,
    frequencies: Any = None,
) -> Array:
    """Turn pairs of components as complex numbers; places are (L,) or broadcast to (…, L)."""
    rows = np.asarray(rows, "f8")
    if frequencies is None:
        frequencies = base ** (-np.arange(0, rows.shape[-1], 2) / rows.shape[-1])
    turned = 2 * len(frequencies)
    rows, rest = rows[..., :turned], rows[..., turned:]
    half = len(frequencies)
    one, other = (
        (rows[..., :half], rows[..., half:])
        if pairing == "half"
        else (rows[..., ::2], rows[..., 1::2])
    )
    angles = np.asarray(places)[..., None] * np.asarray(frequencies)
    made = (one + 1j * other) * np.exp(1j * sign * angles)
    if pairing == "half":
        return np.concatenate([made.real, made.imag, rest], -1)
    pairs = np.stack([made.real, made.imag], -1).reshape(rows.shape)
    return np.concatenate([pairs, rest], -1)


def cut(packed: Array, heads: int) -> Array:
    """Return (B, L, H·D) as (B, H, L, D)."""
    return packed.reshape(*packed.shape[:2], heads, -1).swapaxes(1, 2)


def joined(heads: Array) -> Array:
    """Return (B, H, L, D) as (B, L, H·D)."""
    return heads.swapaxes(1, 2).reshape(heads.shape[0], heads.shape[2], -1)


@dataclass
class Given:
    """The inputs of one case, and attention whose steps are arguments."""

    inputs: list[Array]  # query, key and value as attncli gets them
    options: dict[str, Any] = field(default_factory=dict)  # of `attncli.pose`; g["mask"] is one
    random: Any = None  # for what a mistake draws
    scale: float | None = None  # unless a step is told another one; 1/√D unless given

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    @cached_property
    def q(self) -> Array:
        return self.inputs[0].astype("f8")

    @cached_property
    def k(self) -> Array:
        """Keys, as many heads as the query has."""
        return self._shared(1)

    @cached_property
    def v(self) -> Array:
        return self._shared(2)

    def _shared(self, which: int) -> Array:
        array = self.inputs[which].astype("f8")
        if array.ndim == 4 and array.shape[1] != self.inputs[0].shape[1]:
            return np.repeat(array, self.inputs[0].shape[1] // array.shape[1], axis=1)
        return array

    @property
    def i(self) -> Array:
        """Places of the queries, (L, 1)."""
        return np.arange(self.inputs[0].shape[-2])[:, None]

    @property
    def j(self) -> Array:
        """Places of the keys, (S,)."""
        return np.arange(self.inputs[1].shape[-2])

    @property
    def tril(self) -> Array:
        """What a causal rule shows that is aligned at the first key."""
        return self.j <= self.i

    def scores(self, *, scale: Any = None, q: Any = None, k: Any = None) -> Array:
        q, k = self.q if q is None else q, self.k if k is None else k
        scale = self.scale if scale is None else scale
        scale = self.inputs[0].shape[-1] ** -0.5 if scale is None else scale
        return np.asarray(q, "f8") @ np.asarray(k, "f8").swapaxes(-1, -2) * scale

    def weights(
        self,
        keep: Any = True,
        *,
        add: Any = 0.0,
        cap: float | None = None,
        sinks: Any = None,
        soft: Any = softmax,
        scores: Any = None,
        **more: Any,
    ) -> Array:
        """Return weights; rows that keep nothing are zeros."""
        scores = self.scores(**more) if scores is None else scores
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        scores = np.where(keep, scores + add, -np.inf)
        if sinks is not None:
            column = np.broadcast_to(np.reshape(sinks, (-1, 1, 1)), (*scores.shape[:-1], 1))
            return soft(np.concatenate([scores, column], -1))[..., :-1]
        made = soft(scores)
        return np.where(np.isneginf(scores).all(-1, keepdims=True), 0, made)

    def attend(self, keep: Any = True, *, v: Any = None, **more: Any) -> Array:
        """Return the context of the rules and changes that are given."""
        return self.weights(keep, **more) @ np.asarray(self.v if v is None else v, "f8")
