"""The position of a token: sinusoidal encoding, ALiBi slopes, rotary position embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from attncli.errors.names import Pairing

# The base of the frequencies, from both papers.
BASE = 10000.0


def sinusoidal(length: int, width: int, *, first: int = 0) -> npt.NDArray[np.float64]:
    """Return the encoding that is added to embeddings, (length, width), from position ``first`` on.

    Column 2i of position p is sin(p / 10000^(2i/W)), column 2i + 1 its cosine; an odd width
    ends with a sine (Vaswani et al. 2017, "Attention Is All You Need", section 3.5).

    >>> sinusoidal(2, 4).round(4)
    array([[0.    , 1.    , 0.    , 1.    ],
           [0.8415, 0.5403, 0.01  , 1.    ]])
    """
    frequency = BASE ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    position = np.arange(first, first + length, dtype=np.float64)
    angle = np.multiply.outer(position, frequency)
    encoding = np.empty((length, width))
    encoding[:, 0::2] = np.sin(angle)
    encoding[:, 1::2] = np.cos(angle[:, : width // 2])
    return encoding


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return the slope of each head: a penalty per token of distance.

    For n heads, n a power of two, the slopes are 2^(−8/n), 2^(−16/n), …, 2^(−8). Otherwise: those
    of the next lower power of two, then every other slope of the next higher one, as in the
    authors' implementation (Press, Smith, Lewis 2022, "Train Short, Test Long", section 3).

    >>> [round(slope, 4) for slope in alibi_slopes(3)]
    [0.0625, 0.0039, 0.25]
    """
    lower = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / lower) for i in range(lower)]
    between = [2.0 ** (-4.0 * (i + 1) / lower) for i in range(0, 2 * (heads - lower), 2)]
    return tuple(slopes + between)


def rope_frequencies(width: int, base: float) -> npt.NDArray[np.float64]:
    """Return the radians by which each pair of components turns for each position: base^(−2p/D).

    Su et al. 2021, "RoFormer", equation 15. The width D is even, the base 10000 in the paper.

    >>> rope_frequencies(4, 10000.0)
    array([1.  , 0.01])
    """
    exponents = -np.arange(0, width, 2, dtype=np.float64) / width
    frequencies: npt.NDArray[np.float64] = float(base) ** exponents
    return frequencies


def rotate(
    rows: npt.NDArray[Any],
    positions: npt.NDArray[np.int64],
    *,
    pairing: Pairing,
    frequencies: npt.NDArray[np.float64],
    angles: npt.DTypeLike = np.float64,
) -> npt.NDArray[Any]:
    """Rotate each pair of components by its position times the pair's frequency.

    Of n frequencies, the first 2n components are rotated and the others stay as they are.
    ``half`` pairs component p with p + n (GPT-NeoX, Llama in Transformers), ``interleaved``
    pairs 2p with 2p + 1 (the paper, GPT-J, Llama as published).

    Parameters
    ----------
    rows : ndarray (..., S, D), floating
        Queries or keys.
    positions : ndarray (S,), integer
        The position of each row, in tokens.
    pairing : {"half", "interleaved"}
    frequencies : ndarray (n,) of float64
        Radians for each position, n at most D/2.
    angles : dtype
        The dtype in which angles are computed. At position 100,000 an angle in float32, which
        many models use, is off by 0.004 radians.

    Returns
    -------
    ndarray (..., S, D), the dtype of ``rows``

    References
    ----------
    Su et al. 2021, "RoFormer", equation 34.
    """
    return turned(rows, rotation_angles(positions, frequencies, dtype=angles), pairing)


def turned(rows: npt.NDArray[Any], angles: npt.NDArray[Any], pairing: Pairing) -> npt.NDArray[Any]:
    """Return rows (..., S, D) whose pairs are turned by angles (..., S, n), as `rotate` says."""
    cosine, sine = np.cos(angles).astype(rows.dtype), np.sin(angles).astype(rows.dtype)
    count = angles.shape[-1]
    first, second = slice(0, 2 * count, 2), slice(1, 2 * count, 2)
    if pairing == "half":
        first, second = slice(0, count), slice(count, 2 * count)
    made = np.empty_like(rows)
    made[..., first] = rows[..., first] * cosine - rows[..., second] * sine
    made[..., second] = rows[..., second] * cosine + rows[..., first] * sine
    made[..., 2 * count :] = rows[..., 2 * count :]
    return made


def rotation_angles(
    positions: npt.NDArray[np.int64],
    frequencies: npt.NDArray[np.float64],
    *,
    dtype: npt.DTypeLike = np.float64,
) -> npt.NDArray[Any]:
    """Return the angle (S, n) in radians by which each pair turns: position times frequency."""
    angles: npt.NDArray[Any] = np.multiply.outer(positions.astype(dtype), frequencies.astype(dtype))
    return angles
