"""Numbers as the shortest text that reads back exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["number_texts"]


def number_texts(row: npt.NDArray[Any]) -> list[str]:
    """Write each number with the fewest digits that give the same number again.

    "The same" holds for whoever reads the text in the dtype of the array, and for
    whoever reads it as float64 and narrows it afterwards.

    Parameters
    ----------
    row : ndarray (N,) of float16, float32 or float64

    Returns
    -------
    list of str
        Decimal numbers as Python writes them, ``inf``, ``-inf`` or ``nan``.

    References
    ----------
    Steele, G. L. and White, J. L. (1990), "How to Print Floating-Point Numbers
    Accurately", PLDI: the digits. Figueroa, S. A. (1995), "When is Double Rounding
    Innocuous?", SIGNUM Newsletter 30(3): why reading through float64 can differ.

    Examples
    --------
    >>> import numpy as np
    >>> number_texts(np.array([0.1, 1e-5, -np.inf], np.float32))
    ['0.1', '1e-05', '-inf']
    """
    if row.dtype == np.float64:
        return list(map(float.__repr__, row.tolist()))
    texts = list(map(str, row))
    reread = np.fromiter(map(float, texts), row.dtype, len(texts))
    # A handful of numbers, such as 7.038531e-26 in float32, are rounded twice on the
    # way through float64 and end one step away; all their digits bring them home.
    for index in np.flatnonzero(reread != row):
        texts[index] = repr(float(row[index]))
    return texts
