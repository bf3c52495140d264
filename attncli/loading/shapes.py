"""Which shapes NumPy has arrays of."""

from __future__ import annotations

import math

from attncli.errors import InputError

__all__ = ["LARGEST", "MOST_AXES", "check_shape"]

# A file can hold no more; and the product of a million sizes takes minutes.
MOST_AXES, LARGEST = 64, 2**63 - 1


def check_shape(shape: tuple[int, ...], itemsize: int, name: str) -> None:
    """Refuse a shape that a header may claim, but that NumPy has no array of.

    Parameters
    ----------
    shape : tuple of int
    itemsize : int
        The size of an element in bytes.
    name : str
        How the error names the array.

    Raises
    ------
    InputError
        If there are more than `MOST_AXES`, or the axes beside one of length zero are too long.
    """
    if len(shape) > MOST_AXES or math.prod(filter(None, shape)) * itemsize > LARGEST:
        raise InputError(f"{name}: no array has the shape {shape}")
