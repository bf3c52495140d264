"""Whether embeddings are what a layer reads: in many models, what a norm in front of it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.array_likes import as_ndarray
from attncli.dtypes import widen
from attncli.text import printable
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["advise_on_norm"]

Array = npt.NDArray[Any]
# Rows that are looked at. Half of them may be others: padding, or so short that what is added to
# the squares makes them shorter still.
_ROWS = 64
# How far the root mean squares of the rest are from 1.
_NEAR = 0.1


def advise_on_norm(
    x: object, source: str, file: str, weight: str, fetch: Callable[[str], Array], *, biased: bool
) -> None:
    """Warn of embeddings that cannot have come out of the norm in front of a layer.

    Parameters
    ----------
    x : array_like (..., W)
    source : str
        How a warning names it.
    file : str
        The checkpoint.
    weight : str
        The member that holds the weight of the norm.
    fetch : callable
        Takes the name of a member and returns its array.
    biased : bool
        Whether the norm has a bias, the member beside its weight.

    Warns
    -----
    AttnWarning
    """
    rows = as_ndarray("x", x)
    gain = widen(fetch(weight), np.float64).ravel()
    if rows.ndim not in (2, 3) or rows.shape[-1] != gain.size or not gain.all():
        return
    some = widen(rows.reshape(-1, gain.size)[:_ROWS], np.float64)
    shift = (
        widen(fetch(weight.removesuffix("weight") + "bias"), np.float64).ravel() if biased else 0.0
    )
    # Gemma stores the weight less 1.
    if any(_have_length_1((some - shift) / each) for each in (gain, 1 + gain) if each.all()):
        return
    name = printable(weight.removesuffix(".weight"))
    warn(
        f"{source} does not look like what {name} gives, the norm through which this layer's input "
        f"goes in {file}: is it from before that norm? Then the weights are not the model's"
    )


def _have_length_1(rows: Array) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.square(rows).mean(axis=1))
    return bool(np.mean(np.abs(lengths - 1) < _NEAR) >= 1 / 2)
