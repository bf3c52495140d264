"""Two common mistakes at once: every two that come from different steps."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from referee.case import Case, _given, parts_of, posed, stored
from referee.plain import rotate, softmax

__all__ = ["pair", "pair_names"]

SLOPES = np.array([0.5, 0.25, 0.125, 1.0])[:, None, None]
SINKS = np.array([0.5, 1.5, -0.7, 1.0])
TILED = [0, 1, 0, 1]
L, S = 10, 12

# Each step: what the problem states, and each mistake as what it changes.
STEPS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "scale": (
        {},
        {
            "unscaled": {"scale": 1.0},
            "one_over_width": {"scale": 1 / 16},
            "scale_inverted": {"scale": 4.0},
        },
    ),
    "inputs": ({}, {"key_value_exchanged": {"order": "qvk"}}),
    "softmax": ({}, {"softmax_base_2": {"base": 2}, "softmax_over_heads": {"axis": 1}}),
    "causal": (
        {"causal": True, "causal_align": "bottom-right"},
        {
            "causal_missing": {"last": S},
            "causal_one_late": {"last": S - L + 1},
            "diagonal_hidden": {"last": S - L - 1},
            "causal_top_left": {"last": 0},
        },
    ),
    "padding": (
        {"key_padding_mask": np.arange(S) < np.array([[8], [11]])},
        {
            "key_padding_mask_ignored": {"padding": None},
            "key_padding_mask_inverted": {"padding": np.arange(S) >= np.array([[8], [11]])},
        },
    ),
    "bias": (
        {"bias": np.random.default_rng(7).normal(size=(4, L, S))},
        {"bias_ignored": {"bias": 0.0}, "bias_subtracted": {"bias": -1.0}},
    ),
    "alibi": (
        {"alibi_slopes": SLOPES.ravel()},
        {
            "alibi_ignored": {"slopes": 0 * SLOPES},
            "alibi_slopes_reversed": {"slopes": SLOPES[::-1]},
        },
    ),
    "softcap": ({"softcap": 0.9}, {"softcap_missing": {"cap": None}}),
    "sinks": (
        {"sinks": SINKS},
        {"sinks_ignored": {"sinks": None}, "sinks_of_0": {"sinks": 0 * SINKS}},
    ),
    "rope": (
        {"rope": "half"},
        {
            "rope_missing": {"rope": None},
            "rope_pairing": {"rope": "interleaved"},
            "rope_backwards": {"sign": -1},
        },
    ),
    "groups": ({}, {"heads_tiled": {"heads": TILED}}),
    "shape": (
        {},
        {
            "axes_blhx": {"shape": lambda c: c.swapaxes(1, 2)},
            "heads_packed": {"shape": lambda c: c.swapaxes(1, 2).reshape(2, L, -1)},
            "heads_transposed_twice": {"shape": lambda c: c.reshape(2, L, 4, 16).swapaxes(1, 2)},
        },
    ),
}


def context(g: Any, told: dict[str, Any]) -> np.ndarray:
    """Return the context of all that is told, or of what is stated where nothing is told."""
    stated = g.options
    arrays = dict(zip("qkv", (array.astype("f8") for array in g.inputs), strict=True))
    q, k, v = (arrays[name] for name in told.get("order", "qkv"))
    heads = told.get("heads", [0, 0, 1, 1])
    k, v = (k[:, heads], v[:, heads])
    rope = told.get("rope", stated.get("rope"))
    first = S - L if "causal_align" in stated and told.get("last") != 0 else 0
    if rope:
        sign = told.get("sign", 1)
        q = rotate(q, np.arange(L) + first, rope, sign=sign)
        k = rotate(k, np.arange(S), rope, sign=sign)
    scores = q @ k.swapaxes(-1, -2) * told.get("scale", 0.25)
    cap = told.get("cap", stated.get("softcap"))
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    if "bias" in stated:
        scores = scores + told.get("bias", 1.0) * stated["bias"]
    i, j = np.arange(L)[:, None], np.arange(S)
    if "alibi_slopes" in stated:
        scores = scores - told.get("slopes", SLOPES) * np.abs(i + first - j)
    keep = np.ones((2, 1, L, S), bool)
    if "causal" in stated:
        keep = keep & (j <= i + told.get("last", S - L))
    padding = told.get("padding", stated.get("key_padding_mask"))
    keep = keep if padding is None else keep & padding[:, None, None]
    scores = np.where(keep, scores, -np.inf)
    sinks = told.get("sinks", stated.get("sinks"))
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (2, 4, L, 1))
        scores = np.concatenate([scores, column], -1)
    powers = softmax(scores * (np.log(2) if told.get("base") == 2 else 1), told.get("axis", -1))
    return told.get("shape", lambda made: made)(np.nan_to_num(powers)[..., :S] @ v)


@cache
def _all() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return what is stated and what is told, by the names of two mistakes."""
    made = {}
    for (_, (one, first)), (_, (other, second)) in combinations(STEPS.items(), 2):
        for a in first:
            for b in second:
                made[f"{a}+{b}"] = (one | other, first[a] | second[b])
    return made


def pair_names(count: int, seed: int = 0, only: str = "") -> list[str]:
    """Return names of pairs, in an order that the seed makes."""
    names = [name for name in _all() if only in name]
    order = np.random.default_rng(seed).permutation(len(names))
    return [names[at] for at in order[:count]]


def pair(name: str) -> Case:
    """Return the case of two mistakes."""
    stated, told = _all()[name]

    def make(seed: int) -> Any:
        shapes = [(2, 4, L, 16), (2, 2, S, 16), (2, 2, S, 16)]
        given = _given(seed, name, shapes, stated, "float32", None)
        with np.errstate(all="ignore"):
            wrong = context(given, told)
        return posed(given.inputs, stated), stored(wrong, "float32"), {}

    return Case(f"pair/{name}", "pairs", frozenset([parts_of(name)]), make)
