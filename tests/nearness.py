"""The comparison of large arrays, in a tenth of the time that NumPy's own takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["assert_near"]


def assert_near(
    found: npt.ArrayLike,
    truth: npt.ArrayLike,
    *,
    rtol: float = 1e-7,
    atol: float = 0,
    err_msg: str = "",
) -> None:
    """Assert what `numpy.testing.assert_allclose` does, and leave to it what seems to differ."""
    found, truth = np.asarray(found), np.asarray(truth)
    if truth.shape in {found.shape, ()}:
        with np.errstate(invalid="ignore"):
            error = np.abs(found - truth)
        allowed = np.abs(truth) * rtol + atol
        # Not where one is NaN, or either is infinite.
        if (error <= allowed).all() and np.isfinite(allowed).all():
            return
    np.testing.assert_allclose(found, truth, rtol=rtol, atol=atol, err_msg=err_msg)
