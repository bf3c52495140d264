"""`gradients`: what a backward pass must give, for every rule of `attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from attncli.errors import DataError, ShapeError, UsageError
from attncli.errors.calling import by_known_names, showing, unchecked
from attncli.numerics.array_likes import as_ndarray
from attncli.problem.arguments import shape_text, thread_count
from attncli.problem.posing import RULES, Rules, pose

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from attncli.problem.problem import Problem

__all__ = ["Gradients", "gradients"]

# What a gradient belongs to.
_GRADIENTS = {
    "dquery": "query",
    "dkey": "key",
    "dvalue": "value",
    "dbias": "bias",
    "dsinks": "sinks",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Gradients:
    """The gradients that were asked for, each of the shape of its input; the others are None.

    Attributes
    ----------
    query, key, value, bias, sinks : ndarray or None
    """

    query: npt.NDArray[Any] | None = None
    key: npt.NDArray[Any] | None = None
    value: npt.NDArray[Any] | None = None
    bias: npt.NDArray[Any] | None = None
    sinks: npt.NDArray[Any] | None = None


@by_known_names
@showing(Rules, RULES)
def gradients(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    dcontext: npt.ArrayLike,
    *,
    dlse: npt.ArrayLike | None = None,
    threads: int | None = None,
    outputs: str | Collection[str] = ("dquery", "dkey", "dvalue"),
    **rules: Unpack[Rules],
) -> Gradients:
    """Compute the gradients of a loss from its gradient of the context.

    Parameters
    ----------
    query, key, value
        As in `attncli.attention`.
    dcontext : array_like
        The gradient of the loss by the context, in the context's shape.
    dlse : array_like, optional
        That by the lse, in the lse's shape.
    threads : int, optional
        As in `attncli.attention`.
    outputs : str or collection of str
        Of dquery, dkey, dvalue, dbias and dsinks.
    **rules
        Every rule of `attncli.attention` but ``score="additive"``.

    Returns
    -------
    Gradients
        In the computing dtype. A gradient has the shape of its input: it is summed over the axes
        along which the input was broadcast, and over the query heads that share a key head.

    Raises
    ------
    AttnError
        An argument is wrong, or a gradient is asked for that does not exist.

    References
    ----------
    Dao 2023, "FlashAttention-2", algorithm 2.

    Examples
    --------
    >>> import attncli
    >>> made = attncli.gradients([[1.0]], [[1.0], [0.0]], [[1.0], [3.0]], [[1.0]], scale=1)
    >>> made.value.round(4)
    array([[0.7311],
           [0.2689]])
    """
    problem = unchecked(pose)(query, key, value, **rules)
    inputs: dict[str, Any] = {"query": query, "key": key, "value": value, **rules}
    shapes = {name: np.asarray(inputs.get(of)).shape for name, of in _GRADIENTS.items()}
    asked = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    made = _gradients_of(problem, dcontext, dlse=dlse, outputs=asked, threads=threads)
    return Gradients(
        **{_GRADIENTS[name]: _of_shape(array, shapes[name]) for name, array in made.items()}
    )


def _gradients_of(
    problem: Problem,
    dcontext: npt.ArrayLike,
    *,
    dlse: npt.ArrayLike | None = None,
    outputs: Collection[str] = ("dquery", "dkey", "dvalue"),
    threads: int | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return the gradients of a problem, in the axes of the query's layout.

    Parameters and errors are those of `gradients`.
    """
    _refuse(problem, outputs)
    problem = problem.read()
    layout, shapes = problem.layout, problem.output_shapes
    grad = _checked("dcontext", dcontext, shapes["context"])
    split = layout.split(grad, problem.shape[1], "dcontext")
    split = _seen_rows(problem, np.asarray(split, problem.dtype))
    lse = None
    if dlse is not None:
        given = _checked("dlse", dlse, shapes["lse"])
        lse = np.asarray(given, problem.dtype).reshape(problem.shape[:3])
    from attncli.engine.backward import backward  # noqa: PLC0415 - needed by gradients alone

    made = backward(problem, split, lse, outputs, threads=thread_count(threads))
    for name, array in made.items():
        if not np.isfinite(array).all():
            raise DataError(f"{name} exceeds the range of {problem.dtype.name}")
        if name in ("dquery", "dkey", "dvalue"):
            made[name] = layout.join(array)
    return made


def _refuse(problem: Problem, outputs: Collection[str]) -> None:
    """Refuse what has no gradient here."""
    for name in outputs:
        if name not in _GRADIENTS:
            raise UsageError(f"outputs: expected names of {', '.join(_GRADIENTS)}; found {name!r}")
        if getattr(problem, _GRADIENTS[name]) is None:
            raise UsageError(f"{name}: the problem has no {_GRADIENTS[name]}")
    if problem.value is None:
        raise UsageError("gradients need a value")
    if problem.score == "additive":
        raise UsageError("gradients of additive scores are not computed here")
    if problem.output is not None:
        raise UsageError("gradients through an output projection (wo) are not computed here")


def _checked(name: str, given: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return a gradient as an array of the shape of its output."""
    array = as_ndarray(name, given)
    if array.shape != shape:
        what = "context" if name == "dcontext" else "lse"
        raise ShapeError(
            f"{name}: expected the shape of the {what}, {shape_text(shape)}; "
            f"found {shape_text(array.shape)}"
        )
    return array


def _seen_rows(problem: Problem, dcontext: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the gradient with zeros for queries that see no key; it may hold anything there."""
    if np.isfinite(dcontext).all():
        return dcontext
    visible, (batch, heads, queries, keys) = problem.visible, problem.shape
    dcontext = dcontext.copy()
    for entry in range(batch):
        for row in range(queries):
            seen = visible.tile(entry, slice(0, heads), (row, row + 1), (0, keys))
            if seen is not None:
                empty = ~np.broadcast_to(seen, (heads, 1, keys)).any(axis=(1, 2))
                dcontext[entry, empty, row] = 0
    if not np.isfinite(dcontext).all():
        raise DataError("dcontext: expected finite numbers; found NaN or infinity")
    return dcontext


def _of_shape(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return a gradient summed over the axes along which its input was broadcast."""
    if array.size != int(np.prod(shape)):
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        axes = tuple(n for n, size in enumerate(shape) if size == 1 < array.shape[n])
        array = array.sum(axis=axes, keepdims=True)
    return array.reshape(shape)
