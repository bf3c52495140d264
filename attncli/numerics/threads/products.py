"""The product of many rows with one matrix, over threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Array = npt.NDArray[Any]

# Rows of a piece. BLAS copies the matrix for each piece, at 1/256 of the cost of the product.
_ROWS = 256
# A product of fewer multiplications takes 2 ms, and is not worth a thread.
_SMALL = 1 << 27


def multiply_rows(x: Array, matrix: Array, *, threads: int | None = None) -> Array:
    """Return x · matrix, of (…, rows, in) and (in, out) of the same dtype.

    Large products take several threads. Their pieces do not depend on how many, so neither do the
    last bits.
    """
    if x.size * matrix.shape[1] < _SMALL:
        return np.asarray(np.matmul(x, matrix))
    # A program with only small products starts without these.
    from attncli.numerics.threads.blas import single_blas_thread  # noqa: PLC0415
    from attncli.numerics.threads.cores import available_cores  # noqa: PLC0415
    from attncli.numerics.threads.pool import spread  # noqa: PLC0415

    rows = x.reshape(-1, x.shape[-1])
    made = np.empty((len(rows), matrix.shape[1]), x.dtype)

    def multiply(starts: Iterable[int], check_stopped: Callable[[], None]) -> int:
        for start in starts:
            check_stopped()
            piece = slice(start, start + _ROWS)
            np.matmul(rows[piece], matrix, out=made[piece])
        return 0

    starts = range(0, len(rows), _ROWS)
    with single_blas_thread():
        spread(multiply, starts, min(threads or available_cores(), len(starts)))
    return made.reshape(*x.shape[:-1], matrix.shape[1])
