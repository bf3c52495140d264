"""The checked inputs of a backward pass: the gradients of context and lse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, ShapeError, UsageError
from attncli.errors.names import GRADIENTS
from attncli.numerics.dtypes import widen
from attncli.problem.arguments import real_array, shape_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]


def upstream(
    problem: Problem, dcontext: npt.ArrayLike, dlse: npt.ArrayLike | None
) -> tuple[Array, Array | None]:
    """Return the gradients of context and lse as (B, H, L, E) and (B, H, L), checked.

    They may hold anything for queries that see no key, and are 0 there.

    Raises
    ------
    AttnError
        One has another shape than its output, or is not finite.
    """
    shapes = problem.output_shapes
    grad = _checked("dcontext", dcontext, shapes["context"])
    grad = widen(problem.layout.split(grad, problem.shape[1], "dcontext"), problem.dtype)
    grad = _seen_rows(problem, grad, "dcontext")
    if dlse is None:
        return grad, None
    rows = _checked("dlse", dlse, shapes["lse"]).reshape(problem.shape[:3])
    return grad, _seen_rows(problem, widen(rows, problem.dtype), "dlse")


def refuse_gradients(problem: Problem, outputs: Collection[str]) -> None:
    """Refuse gradients that attncli does not compute."""
    for name in outputs:
        if name not in GRADIENTS:
            raise UsageError(f"outputs: expected names of {', '.join(GRADIENTS)}; found {name!r}")
        if getattr(problem, GRADIENTS[name]) is None:
            raise UsageError(f"{name}: the problem has no {GRADIENTS[name]}")
    if problem.value is None:
        raise UsageError("gradients need a value")
    if problem.score == "additive":
        raise UsageError("gradients of additive scores are not computed here")
    if problem.output is not None:
        raise UsageError("gradients through an output projection (wo) are not computed here")


def _checked(name: str, given: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a gradient as an array of the shape of its output."""
    array = real_array(name, given)
    if array.shape != shape:
        what = "context" if name == "dcontext" else "lse"
        raise ShapeError(
            f"{name}: expected the shape of the {what}, {shape_text(shape)}; "
            f"found {shape_text(array.shape)}"
        )
    return array


def _seen_rows(problem: Problem, rows: Array, name: str) -> Array:
    """Return rows (B, H, L, …) with zeros for queries that see no key."""
    if np.isfinite(rows).all():
        return rows
    visible, (batch, heads, queries, keys) = problem.visible, problem.shape
    rows = rows.copy()
    for entry in range(batch):
        for row in range(queries):
            seen = visible.tile(entry, slice(0, heads), (row, row + 1), (0, keys))
            if seen is not None:
                empty = ~np.broadcast_to(seen, (heads, 1, keys)).any(axis=(1, 2))
                rows[entry, empty, row] = 0
    if not np.isfinite(rows).all():
        raise DataError(f"{name}: expected finite numbers; found NaN or infinity")
    return rows
