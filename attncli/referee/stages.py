"""The steps of attention on whole arrays, each exchangeable for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import LARGEST_FLOAT16

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = [
    "CAPS",
    "limited",
    "over_heads",
    "present",
    "present_average",
    "product_of",
    "shared",
    "softmax_over",
    "step_function",
]

Array = npt.NDArray[Any]
# Products of a sum that is made a term at a time.
_AT_ONCE = 2**18
_LOWEST = {np.dtype(kind): np.finfo(kind).min for kind in (np.float32, np.float64)}


def _scale(recipe: Recipe, scores: Array) -> Array:
    scaled: Array = scores * scores.dtype.type(recipe.problem.scale)
    return scaled


def _cap(recipe: Recipe, scores: Array) -> Array:
    cap = recipe.problem.softcap
    return scores if cap is None else cap * np.tanh(scores / cap)


def _hide(recipe: Recipe, scores: Array) -> Array:
    if not recipe.rules:
        return scores
    return np.where(recipe.seen, scores, scores.dtype.type(recipe.fill))


def _add(step: str) -> Callable[[Recipe, Array], Array]:
    def add(recipe: Recipe, scores: Array) -> Array:
        term = recipe.terms.get(step)
        return scores if term is None else scores + term.astype(scores.dtype, copy=False)

    return add


def _overflow(_: Recipe, scores: Array) -> Array:
    return limited(scores, LARGEST_FLOAT16)


def limited(array: Array, largest: float) -> Array:
    """Return numbers as a format holds them that has none beyond the largest but infinities."""
    return np.where(np.abs(array) > largest, np.copysign(np.inf, array), array)


def _times_mask(recipe: Recipe, scores: Array) -> Array:
    product: Array = scores * recipe.terms["times_mask"].astype(scores.dtype)
    return product


def _cap_undivided(recipe: Recipe, scores: Array) -> Array:
    return scores if (cap := recipe.problem.softcap) is None else cap * np.tanh(scores)


def _cap_unmultiplied(recipe: Recipe, scores: Array) -> Array:
    return scores if (cap := recipe.problem.softcap) is None else np.tanh(scores / cap)


def _clip(recipe: Recipe, scores: Array) -> Array:
    return scores if (cap := recipe.problem.softcap) is None else np.clip(scores, -cap, cap)


CAPS = ("cap", "cap_undivided", "cap_unmultiplied", "clip")
_STEPS: dict[str, Callable[[Recipe, Array], Array]] = {
    "scale": _scale,
    "cap": _cap,
    "cap_undivided": _cap_undivided,
    "cap_unmultiplied": _cap_unmultiplied,
    "clip": _clip,
    "overflow": _overflow,
    "times_mask": _times_mask,
    "hide": _hide,
}


def step_function(step: str) -> Callable[[Recipe, Array], Array]:
    """Return what a step of a recipe's order does to the scores."""
    return _STEPS.get(step) or _add(step)


def softmax_over(recipe: Recipe, scores: Array, axis: int = -1) -> tuple[Array, Array]:
    """Return weights and lse, the softmax running over an axis; sinks count where it is the keys.

    Fully masked rows get weights 0 and lse −inf.
    """
    sinks = recipe.problem.sinks if axis == -1 else None
    top = np.maximum.reduce(scores, axis, keepdims=True)
    if sinks is not None:
        sink = over_heads(sinks).astype(scores.dtype)
        top = np.maximum(top, sink)
    shift = np.maximum(top, _LOWEST[scores.dtype])
    share = scores - shift
    np.exp(share, out=share)
    total = total_of(share, axis, one_by_one=recipe.one_by_one)
    if sinks is not None:
        total = total + np.exp(sink - shift)
    lse = np.log(total) + shift
    # A total is 0, or at least the 1 of what the shift comes from.
    weights = np.divide(share, np.maximum(total, 1), out=share)
    # Over another axis no query has a denominator of its own: report the usual lse.
    return weights, lse[..., 0] if axis == -1 else softmax_over(recipe, scores)[1]


def total_of(terms: Array, axis: int, *, one_by_one: bool = False) -> Array:
    """Return the sum over an axis, which stays; in pairs, as NumPy does, or in turn."""
    if one_by_one:
        return np.take(np.cumsum(terms, axis), [-1], axis)
    return np.asarray(np.add.reduce(terms, axis, keepdims=True))


def product_of(left: Array, right: Array, *, one_by_one: bool = False) -> Array:
    """Return left · right (B, H, L, N) · (B or 1, G, N, M), (B, H, L, M); as BLAS sums, or in turn.

    Heads that share a right one are its rows together: nothing is repeated.
    """
    times = left.shape[1] // right.shape[1]
    if times > 1:
        batch, heads, rows, terms = left.shape
        stacked = left.reshape(batch, heads // times, times * rows, terms)
        made = product_of(stacked, right, one_by_one=one_by_one)
        return made.reshape(batch, heads, rows, right.shape[-1])
    if not one_by_one:
        return np.asarray(left @ right)
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    total = np.zeros((*shape, left.shape[-2], right.shape[-1]), left.dtype)
    terms = left.shape[-1]
    block = max(1, _AT_ONCE // max(1, total.size))
    for start in range(0, terms, block):
        part = slice(start, start + block)
        products = left[..., part, None] * right[..., None, part, :]
        products[..., 0, :] += total
        total = np.cumsum(products, axis=-2, out=products)[..., -1, :]
    return total


def over_heads(per_head: Array) -> Array:
    """Return (H,) as (H, 1, 1)."""
    return per_head[:, None, None]


def present(problem: Problem, name: str, array: Array) -> Array:
    """Return an output (B, H, …) in the axes of the user."""
    if name == "context":
        return problem.layout.join(array)
    return problem.layout.drop(array[..., 0] if name == "lse" else array)


def present_average(problem: Problem, name: str, array: Array) -> Array:
    """Return an output in the axes of the user, weights as the mean of the heads."""
    if name != "weights":
        return present(problem, name, array)
    averaged: Array = array.mean(axis=1)
    return averaged if "b" in problem.layout.weight_axes else averaged[0]


def shared(problem: Problem, array: Array) -> Array:
    """Return keys or values (B or 1, H, S, ·), repeated for each head of a group."""
    times = problem.query.shape[1] // array.shape[1]
    return array if times == 1 else np.asarray(np.repeat(array, times, axis=1))
