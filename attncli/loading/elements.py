"""Which stored elements and shapes are read, and how they become an array or a single value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import BFLOAT16, as_bfloat16, looks_like_bfloat16, widen
from attncli.errors import InputError
from attncli.loading.contents import LoadedArray
from attncli.loading.npy_header import MAY_BE_BFLOAT16
from attncli.text import quoted
from attncli.warning import warn

if TYPE_CHECKING:
    from attncli.loading.npy_header import Header

__all__ = [
    "LARGEST",
    "MOST_AXES",
    "check_shape",
    "checked_dtype",
    "entry_of",
    "in_native_order",
    "words_of",
]

# A file can hold no more; and the product of a million sizes takes minutes.
MOST_AXES, LARGEST = 64, 2**63 - 1
_LAST_CHARACTER = 0x10FFFF
_SURROGATES, _SURROGATE_COUNT = np.uint32(0xD800), 0x800
_REFUSED = {
    "O": "objects, which only unpickling could read",
    "c": "complex numbers",
    "S": "text",
    "U": "text",
    "a": "text",
    "M": "dates",
    "m": "time spans",
    "[": "structures",
    "V": "raw bytes",
}


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


def checked_dtype(header: Header, name: str, dtype: str | None) -> np.dtype[Any]:
    """Return the dtype of the elements as stored, or refuse it by its name.

    Raises
    ------
    InputError
        If the elements are not real numbers or booleans.
    """
    stored = header.dtype
    if stored is None or (stored.kind == "V" and dtype != "bfloat16"):
        raise _unreadable(header, name)
    return stored


def _unreadable(header: Header, name: str) -> InputError:
    descr = header.descr
    kind = descr.lstrip("<>|=")[:1]
    what = _REFUSED.get(kind, "elements that attncli does not read")
    word = {"O": "object", "[": "structured"}.get(kind, quoted(descr))
    if kind == "c" and descr[2:].isdigit():
        word = f"complex{8 * int(descr[2:4])}"
    hint = None
    if descr.endswith("V2"):
        hint = "if these are bfloat16, give --dtype bfloat16"
    elif kind == "O":
        hint = "np.savez writes the arrays of a dictionary: np.savez('problem.npz', **arrays)"
    return InputError(
        f"{name}: expected real numbers; found {what} (dtype {word}, shape {header.shape})",
        hint=hint,
    )


def in_native_order(
    values: npt.NDArray[Any], name: str, dtype: str | None = None
) -> npt.NDArray[Any]:
    """Return the stored elements in native byte order, as bfloat16 where asked for.

    Raises
    ------
    InputError
        If a boolean is neither 0 nor 1.
    """
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if dtype == "bfloat16" and values.dtype.str[1:] in MAY_BE_BFLOAT16:
        return as_bfloat16(values)
    if values.dtype.str[1:] in {"u2", "i2"} and looks_like_bfloat16(values):
        warn(
            f"{name} holds 16-bit integers whose bits look like ordinary bfloat16 numbers; if they "
            "are bfloat16, give --dtype bfloat16"
        )
    # NumPy counts such a byte as many times true, and writes past the end of results.
    if values.dtype == np.bool_ and np.max(values.view(np.uint8), initial=0) > 1:
        raise InputError(f"{name} holds booleans that are neither 0 nor 1")
    return values


def entry_of(values: npt.NDArray[Any], name: str) -> object:
    """Return a member as an entry of a mapping: an array, or a single value as Python's."""
    if values.ndim:
        return LoadedArray(values, name)
    if values.dtype == BFLOAT16:
        values = widen(values, np.float64)
    return values.item()


def words_of(values: npt.NDArray[np.str_], name: str) -> str | list[str]:
    """Return a word, or a list of words, that was stored as an array of fixed width.

    Raises
    ------
    InputError
        If what is stored is no text.
    """
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    codes = np.atleast_1d(values).view(np.uint32)
    # Beyond Unicode, or half of a pair: NumPy would fail on the one, and a file on the other.
    if (codes > _LAST_CHARACTER).any() or (codes - _SURROGATES < _SURROGATE_COUNT).any():
        raise InputError(f"{name} holds text that is not Unicode")
    words: str | list[str] = values.tolist()
    return words
