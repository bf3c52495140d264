"""A few lines of NumPy to make wrong attention with, and to ask the referee about it.

Nothing here knows the package's own way of making mistakes: softmax is written out,
and every test writes its own wrong line.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from process import long_but

from attncli import pose
from attncli.referee import CheckReport, check

__all__ = ["SEEDS", "as_bfloat16", "ask", "draw", "named", "only", "plain", "scaled", "softmax"]


# What is found is promised; when, on a machine with other work, is not.
_LONG = 100.0
# Of the problems that a mistake is tried on; the default run takes one.
SEEDS = long_but(range(3), 0)


def draw(seed: int, *shapes: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    """Return random arrays, by default a query, key and value of (2, 4, 6, 8)."""
    random = np.random.default_rng(seed)
    return [random.normal(size=s).astype(dtype) for s in shapes or [(2, 4, 6, 8)] * 3]


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a row that is hidden whole is NaN, as everywhere
        exponentials = np.exp(scores - scores.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


def scaled(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return QKᵀ/√D in float64."""
    return q.astype("f8") @ k.astype("f8").swapaxes(-1, -2) / np.sqrt(q.shape[-1])


def as_bfloat16(array: Any) -> np.ndarray:
    """Return the nearest numbers of bfloat16, as float32."""
    bits = np.asarray(array, "f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view("f4")


def plain(q: Any, k: Any, v: Any, keep: Any = True, scale: float | None = None) -> np.ndarray:
    """Return softmax(QKᵀ/√D, −inf where not kept) V; rows that keep nothing are zeros."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = np.where(keep, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(softmax(scores)) @ v


def ask(
    inputs: Any, expected: Any, dtype: str = "float32", *, diagnose: bool = True, **options: Any
) -> CheckReport:
    """Pose the problem and check an output, or a mapping of outputs, rounded to a dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = pose(*inputs, **options)
    if isinstance(expected, dict):
        expected = {name: np.asarray(array).astype(dtype) for name, array in expected.items()}
    else:
        expected = np.asarray(expected).astype(dtype)
    return check(expected, problem, diagnose=diagnose, time_limit=_LONG)


def named(report: CheckReport) -> set[str]:
    """Return the names of all explanations."""
    if report.diagnosis is None:
        return set()
    return {explanation.name for explanation in report.diagnosis.explanations}


def only(report: CheckReport) -> Any:
    """Return the only convention of the only explanation."""
    (explanation,) = report.diagnosis.explanations
    (convention,) = explanation.conventions
    return convention
