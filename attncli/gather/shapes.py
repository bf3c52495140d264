"""Which shapes an input may have."""

from __future__ import annotations

from attncli.errors import InputError

__all__ = ["check_axes"]

MAX_AXES = 4


def check_axes(shape: tuple[int, ...], name: str) -> None:
    """Refuse an array that cannot be a vector, a matrix, or a batch of matrices.

    Parameters
    ----------
    shape : tuple of int
    name : str
        How the error names the array.

    Raises
    ------
    InputError
        If there is no axis, more than `MAX_AXES`, or one of length zero.
    """
    if not 1 <= len(shape) <= MAX_AXES:
        msg = f"{name}: expected 1 to {MAX_AXES} axes; found {len(shape)} (shape {shape})"
        longer = len(shape) - shape.count(1) <= MAX_AXES < len(shape)
        hint = "leave out axes of length 1: NumPy's squeeze does so" if longer else None
        raise InputError(msg, hint=hint)
    if 0 in shape:
        raise InputError(f"{name} holds no numbers: its shape is {shape}")
