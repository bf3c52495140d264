"""The gradients of a problem, checked and in the axes of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.backward import backward
from attncli.errors import DataError
from attncli.problem.arguments import thread_count
from attncli.problem.upstream import refuse_gradients, upstream

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]


def gradients_of(
    problem: Problem,
    dcontext: npt.ArrayLike,
    *,
    dlse: npt.ArrayLike | None = None,
    outputs: Collection[str] = ("dquery", "dkey", "dvalue"),
    threads: int | None = None,
) -> dict[str, Array]:
    """Return the gradients of a problem, in the axes of the query's layout.

    Parameters and errors are those of `gradients`.
    """
    refuse_gradients(problem, outputs)
    problem = problem.read()
    given = upstream(problem, dcontext, dlse)
    made = backward(problem, *given, outputs, threads=thread_count(threads))
    for name, array in made.items():
        if not np.isfinite(array).all():
            raise DataError(f"{name} exceeds the range of {problem.dtype.name}")
        inner = name not in ("dbias", "dsinks")
        made[name] = of_shape(
            problem.layout.join(array) if inner else array, problem.gradient_shapes[name]
        )
    return made


def of_shape(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a gradient summed over the axes along which its input was broadcast."""
    if array.size != int(np.prod(shape)):
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        axes = tuple(n for n, size in enumerate(shape) if size == 1 < array.shape[n])
        array = array.sum(axis=axes, keepdims=True)
    return array.reshape(shape)
