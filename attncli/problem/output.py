"""x · W + b: the checked weights of one linear layer, and the output projection of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import ShapeError, UsageError
from attncli.numerics.dtypes import widen
from attncli.numerics.threads.products import multiply_rows
from attncli.problem import arguments
from attncli.problem.arguments import shape_text

if TYPE_CHECKING:
    from attncli.problem.arguments import Names

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """The output projection of a layer: context · W + b.

    Attributes
    ----------
    weight : ndarray (H·E, out)
    bias : ndarray (out,), or None
        Both as stored: any real floating dtype, bfloat16 included.
    """

    weight: Array
    bias: Array | None

    def __call__(self, context: Array, *, threads: int | None = None) -> Array:
        """Return the projected context, in the dtype of the context."""
        return linear(context, self.weight, self.bias, threads)


def make_output(named: Names, wo: object, bo: object, width: int) -> OutputProjection:
    """Return the checked projection of a context of this width, all heads side by side."""
    weight = matrix_of(named("wo"), wo)
    if weight is None:
        raise UsageError("bo is added to context · wo, but wo is missing")
    refuse_rows(named("wo"), weight, width, f"{width} rows, the width of the context")
    return OutputProjection(weight, offset_of(named, "bo", bo, weight))


def matrix_of(name: str, value: object) -> Array | None:
    """Return a finite matrix (in, out), or None."""
    if value is None:
        return None
    array = arguments.finite_array(name, value)
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(f"{name}: expected a matrix (in, out); found shape {_shape(array)}")
    return array


def offset_of(named: Names, name: str, value: object, weight: Array) -> Array | None:
    """Return the finite bias (out,) of a weight, or None."""
    if value is None:
        return None
    array = arguments.finite_array(named(name), value)
    width = weight.shape[1]
    # A CSV file with a single row or column is a vector too.
    if array.size != width or array.size != max(array.shape, default=1):
        raise ShapeError(
            f"{named(name)}: expected {width} numbers, the columns of {named('w' + name[1])}; "
            f"found shape {_shape(array)}"
        )
    return array.reshape(-1)


def refuse_rows(name: str, weight: Array, width: int, expected: str) -> None:
    """Refuse a weight whose rows are not as many as the columns it multiplies."""
    if weight.shape[0] != width:
        turned = (
            f"{name} fits the other way round: X · W takes it as (in, out), and nn.Linear stores "
            "it as (out, in) (--transposed)"
        )
        raise ShapeError(
            f"{name}: expected {expected}; found shape {_shape(weight)}",
            hint=turned if weight.shape[1] == width else None,
        )


def linear(x: Array, weight: Array, bias: Array | None, threads: int | None) -> Array:
    """Return x · weight + bias in the dtype of x; a later check finds inf and NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        made = multiply_rows(x, widen(weight, x.dtype), threads=threads)
        if bias is not None:
            np.add(made, widen(bias, x.dtype), out=made)
    return made


def _shape(array: Array) -> str:
    return shape_text(array.shape)
