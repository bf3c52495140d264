"""What softcap, ALiBi and sinks do, whichever layout scores and sums are in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["cap", "factors_with_sinks", "log_denominators", "penalties"]

Array = npt.NDArray[Any]


def cap(scores: Array, softcap: float) -> None:
    """Write softcap · tanh(scores / softcap) in place (Gemma 2, section 2)."""
    np.divide(scores, softcap, out=scores)
    np.tanh(scores, out=scores)
    np.multiply(scores, softcap, out=scores)


def penalties(slopes: Array, first: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Return slope · |i + offset − j| (Press et al. 2022, section 3).

    Parameters
    ----------
    slopes : ndarray (N,)
        Of N heads.
    first : int
        i + offset − j of the first query and the last key.
    shape : (queries, keys)
    dtype : dtype

    Returns
    -------
    ndarray (N, queries, keys)
        A view of one row of penalties for each head, because they depend only on i − j: to read.
    """
    distance = np.abs(np.arange(first, first + sum(shape) - 1))
    penalty = np.multiply(distance, slopes[:, None], dtype=dtype, casting="same_kind")
    step = penalty.itemsize
    return np.ndarray(
        (len(slopes), *shape),
        penalty.dtype,
        penalty,
        (shape[1] - 1) * step,
        (penalty.strides[0], step, -step),
    )


def factors_with_sinks(total: Array, above: Array) -> tuple[Array, Array]:
    """Return two factors whose product is 1 / (total + e^above); one alone might be too small.

    Parameters
    ----------
    total : ndarray
        Sums of exponentials under a shift; 0 where a query sees no key.
    above : ndarray
        By how much the sinks are above the shift, in nats.

    Returns
    -------
    two ndarrays
        Of the shape of both. The second is 0 where the total is 0.
    """
    # 1 / (d + e^a) = e^(-a/2) · e^(-a/2) / (d e^(-a) + 1), for a > 0
    half = np.exp(np.maximum(above, 0) / -2)
    denominator = total * half * half + np.exp(np.minimum(above, 0))
    # The denominator of a query that sees no key may be 0 as well: of a sink far below the shift.
    return half, np.divide(half, denominator, out=np.zeros_like(half), where=total != 0)


def log_denominators(total: Array, shift: Array, sinks: Array | None) -> Array:
    """Return ln(total · e^shift + e^sinks): the lse.

    Parameters
    ----------
    total : ndarray
        Sums of exponentials under a shift.
    shift : ndarray
        In nats.
    sinks : ndarray, or None
        Added without the shift: far above it they would lose their digits.
    """
    logarithm: Array = np.log(total) + shift
    if sinks is None:
        return logarithm
    return np.asarray(np.logaddexp(logarithm, sinks.astype(logarithm.dtype)))
