"""How much larger a file's denominators are than the right ones, by how much less keys weigh."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["added_to_denominators", "typical"]

Array = npt.NDArray[Any]
_OUTPUTS = ("context", "weights")
# How far a shorter number may lie, beside how unsure the median is, and that at least.
_AS_LIKELY, _LEAST = 16.0, 1e-16


def added_to_denominators(case: Case) -> Array | None:
    """Return what was added to the denominator of each row.

    What weighs in a row and has the value 0, such as a sink, makes each number Z / (Z + r) of
    what is right, Z = exp(lse) being the right denominator.

    Parameters
    ----------
    case : Case
        Small enough to be evaluated.

    Returns
    -------
    ndarray of float64 (B, H, L), or None
        r, with NaN and infinities where a row says nothing; None where the files say nothing.
    """
    name = next((name for name in _OUTPUTS if name in case.files), None)
    mixed = name == "context" and case.recipe.problem.output is not None
    if name is None or mixed or not case.comparable:
        return None
    found, right = case.canonical(name), case.right[name]
    if found.shape != right.shape:  # averaged weights
        return None
    with np.errstate(all="ignore"):
        shares = (found * right).sum(-1) / np.square(right).sum(-1)
        return np.asarray((1 / shares - 1) * np.exp(case.right["lse"][..., 0]))


def typical(numbers: Array) -> float:
    """Return the median of numbers, with as few digits as their scatter tells, or 0.

    Parameters
    ----------
    numbers : ndarray of float64 (n,)
        Finite, n at least 1.
    """
    middle = float(np.median(numbers))
    scatter = float(np.median(np.abs(numbers - middle))) / math.sqrt(len(numbers))
    tried = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    near = _AS_LIKELY * max(scatter, _LEAST)
    return next((one for one in (0.0, *tried) if abs(one - middle) <= near), middle)
