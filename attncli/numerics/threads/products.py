"""The product of many rows with one matrix, over threads."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["multiply_rows"]

Array = npt.NDArray[Any]

# BLAS copies the columns for each piece: 1/256 of what it multiplies.
_ROWS, _COLUMNS = 256, 1024
# Multiplications of a product that is not worth a thread: 2 ms.
_SMALL = 1 << 27


def multiply_rows(x: Array, matrix: Array, *, threads: int | None = None) -> Array:
    """Return x · matrix.

    Parameters
    ----------
    x : ndarray (…, rows, in)
    matrix : ndarray (in, out)
        Of the dtype of ``x``.
    threads : int, optional
        The most threads to use for large products; by default one for each core that the
        process may use. Their pieces do not depend on it, so neither do the last bits.

    Returns
    -------
    ndarray (…, rows, out)
    """
    if x.size * matrix.shape[1] < _SMALL:
        return np.asarray(np.matmul(x, matrix))
    return _spread(x, matrix, threads)


def _spread(x: Array, matrix: Array, threads: int | None) -> Array:
    # A program with only small products starts without these.
    from attncli.numerics.threads.blas import single_blas_thread  # noqa: PLC0415
    from attncli.numerics.threads.cores import available_cores  # noqa: PLC0415
    from attncli.numerics.threads.pool import spread  # noqa: PLC0415

    rows = x.reshape(-1, x.shape[-1])
    made = np.empty((len(rows), matrix.shape[1]), x.dtype)
    # NumPy's error state is thread-local.
    errors = np.geterr()

    def multiply(pieces: Iterable[tuple[slice, slice]], check_stopped: Callable[[], None]) -> int:
        with np.errstate(**errors):
            for taken, columns in pieces:
                check_stopped()
                np.matmul(rows[taken], matrix[:, columns], out=made[taken, columns])
        return 0

    pieces = list(product(_cut(made.shape[0], _ROWS), _cut(made.shape[1], _COLUMNS)))
    with single_blas_thread():
        spread(multiply, pieces, min(threads or available_cores(), len(pieces)))
    return made.reshape(*x.shape[:-1], matrix.shape[1])


def _cut(length: int, piece: int) -> list[slice]:
    return [slice(start, start + piece) for start in range(0, length, piece)]
