"""`gradients`: the backward pass of `attention`, for every rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from attncli.engine.gradients import gradients_of, of_shape
from attncli.errors.calling import by_known_names, showing, unchecked
from attncli.errors.names import GRADIENTS
from attncli.problem.posing import RULES, Rules, pose

if TYPE_CHECKING:
    from collections.abc import Collection

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Gradients:
    """The gradients that were asked for, each of the shape of its input; the others are None.

    Attributes
    ----------
    query, key, value, bias, sinks : ndarray or None
    """

    query: Array | None = None
    key: Array | None = None
    value: Array | None = None
    bias: Array | None = None
    sinks: Array | None = None


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
        The gradient of the loss with respect to the context, in the context's shape.
    dlse : array_like, optional
        The gradient of the loss with respect to the lse, in the shape of the lse.
    threads : int, optional
        As in `attncli.attention`.
    outputs : str or collection of str
        Any of dquery, dkey, dvalue, dbias and dsinks.
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
    shapes = {name: np.shape(inputs.get(of, ())) for name, of in GRADIENTS.items()}
    asked = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    made = gradients_of(problem, dcontext, dlse=dlse, outputs=asked, threads=threads)
    return Gradients(
        **{GRADIENTS[name]: of_shape(array, shapes[name]) for name, array in made.items()}
    )
