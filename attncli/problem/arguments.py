"""Checks of single arguments.

Each function takes an argument's name, as errors show it, and its value. It returns the value in
the one form that the rest of the code knows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NoReturn, get_args

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, ShapeError, UsageError
from attncli.errors.names import PrecisionName
from attncli.errors.text import counted, did_you_mean
from attncli.numerics.array_likes import as_ndarray
from attncli.numerics.dtypes import BFLOAT16, as_bfloat16, dtype_name, parts, readable
from attncli.problem.layout import LAYOUTS

Array = npt.NDArray[Any]
_FLOATS = (np.float16, np.float32, np.float64)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# The farthest position: positions are 64-bit integers, and sums of a few must stay in range.
_FARTHEST = 2**53 - 1
# How many characters of a wrong value an error shows.
_LONGEST = 60
MOST_AXES = 4
_BIAS_HINT = (
    "numbers that are added to the scores are a bias (--bias), which broadcasts to the weights: "
    "(L, S), or (B, 1, S) or (B, 1, 1, S) for padding"
)

# How errors name an argument: ``query``, or ``query (q.csv)`` where it has a file.
Names = Callable[[str], str]


def names_of(sources: Mapping[str, str] | None = None) -> Names:
    """Return a function from an argument's name to its name in errors, with its file."""
    if sources is not None and not isinstance(sources, Mapping):
        raise UsageError(f"sources: expected a mapping of names; found {shown(sources)}")
    if not sources:
        return str  # the name itself, without a call of Python for each argument
    return lambda argument: f"{argument} ({sources[argument]})" if argument in sources else argument


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as NumPy prints it, without NumPy's own integer types."""
    return str(tuple(int(n) for n in shape))


def fewer_axes(shape: Sequence[int], most: int = MOST_AXES) -> str | None:
    """Return the hint that tells how to save one part of an array with too many axes."""
    over = len(shape) - most
    if over <= 0:
        return None
    return f'save one part of it, in Python: numpy.save("part.npy", array[{", ".join("0" * over)}])'


def real_array(name: str, value: object) -> Array:
    """Return an array of float16, bfloat16, float32 or float64; integers become float64."""
    array = stored_numbers(name, value)
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def stored_numbers(name: str, value: object) -> Array:
    """Return an array of the same dtypes or of integers, in any byte order, without a copy."""
    array = value if type(value) is np.ndarray else as_ndarray(name, value)
    if array.dtype.type in _FLOATS or array.dtype == BFLOAT16 or array.dtype.kind in "iu":
        return array
    if array.dtype.name == "bfloat16":  # ml_dtypes, JAX
        return as_bfloat16(array)
    raise DataError(
        f"{name}: expected real numbers (float16, bfloat16, float32, float64 or integers); "
        f"found {_kind(array)}"
    )


def _readable(name: str, value: object) -> Array:
    """Return an array in a dtype that NumPy calculates with."""
    array = as_ndarray(name, value)
    return readable(as_bfloat16(array) if array.dtype.name == "bfloat16" else array)


def _kind(array: Array) -> str:
    words = {"U": "words", "S": "words", "O": "Python objects"}
    return words.get(array.dtype.kind, dtype_name(array.dtype))


def computing_dtype(name: str, precision: object, *arrays: Array | None) -> np.dtype[Any]:
    """Return the widest of the arrays' dtypes, at least float32, or the one asked for."""
    if precision is not None:
        return np.dtype(choice(name, precision, get_args(PrecisionName)))
    wide = any(array is not None and array.dtype == _DOUBLE for array in arrays)
    return _DOUBLE if wide else _SINGLE


def finite_array(name: str, value: object) -> Array:
    """Return an array of finite float16, bfloat16, float32 or float64."""
    array = real_array(name, value)
    wide = readable(array)
    if not np.isfinite(wide).all():
        refuse_first(name, wide, ~np.isfinite(wide), "finite numbers")
    return array


def refuse_first(
    name: str, array: Array, wrong: npt.NDArray[np.bool_], expected: str, hint: str | None = None
) -> NoReturn:
    """Raise a `DataError` that shows the first of the wrong elements and its index."""
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    found = number_found(float(array[index]))
    raise DataError(f"{name}: expected {expected}; found {found} at index {index}", hint=hint)


def number_found(number: float) -> str:
    """Return a wrong number as text; −inf may have been null in JSON or YAML."""
    return "-inf (null in JSON and YAML)" if number == -math.inf else f"{number:g}"


def truth_array(name: str, value: object) -> npt.NDArray[np.bool_]:
    """Return an array of booleans from booleans or exact 0 and 1."""
    array = truth_numbers(name, value)
    truth: npt.NDArray[np.bool_] = array if array.dtype == np.bool_ else array == 1
    return truth


def truth_numbers(name: str, value: object) -> Array:
    """Return an array of booleans, or of numbers that are exactly 0 or 1."""
    array = _readable(name, value)
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind not in "iuf":
        raise DataError(f"{name}: expected booleans, or 0 and 1; found {_kind(array)}")
    # A part at a time: a mask may be as large as the weights.
    if not all(((part == 0) | (part == 1)).all() for part in parts(array)):
        odd = (array != 0) & (array != 1)
        refuse_first(name, array, odd, "booleans, or 0 and 1", _BIAS_HINT)
    return array.view(np.bool_) if array.dtype.itemsize == 1 else array


def finite_number(name: str, value: object) -> float:
    """Return a finite float."""
    value = _unwrap(value)
    # A float is a Real, too; but a check against the abstract class takes ten times as long.
    if isinstance(value, bool) or not isinstance(value, (float, Real)) or not _in_range(value):
        raise UsageError(f"{name}: expected a finite number; found {shown(value)}")
    return float(value)


def _in_range(value: Any) -> bool:
    # Not math.isfinite: it cannot take an integer of more than 308 digits.
    return bool(abs(value) <= sys.float_info.max)


def not_negative(name: str, value: object) -> float:
    """Return a finite float of at least 0."""
    number = finite_number(name, value)
    if number < 0:
        raise UsageError(f"{name}: expected a number of at least 0; found {number:g}")
    return number


def positive_number(name: str, value: object) -> float:
    """Return a finite float above zero."""
    number = finite_number(name, value)
    if number <= 0:
        raise UsageError(f"{name}: expected a number above 0; found {number:g}")
    return number


def positive_int(name: str, value: object) -> int:
    """Return an int of at least 1."""
    value = _unwrap(value)
    # An int is Integral, too; but a check against the abstract class takes ten times as long.
    if isinstance(value, bool) or not isinstance(value, (int, Integral)) or value < 1:
        raise UsageError(f"{name}: expected a whole number of at least 1; found {shown(value)}")
    return int(value)


def thread_count(value: object) -> int | None:
    """Return how many threads to use, or None for all cores."""
    return None if value is None else positive_int("threads", value)


def flag(name: str, value: object) -> bool:
    """Return a bool."""
    value = _unwrap(value)
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name}: expected true or false; found {shown(value)}")
    return bool(value)


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        # A word with other digits, such as float16, is no misspelling.
        is_word = isinstance(value, str) and not value[-1:].isdigit()
        raise UsageError(
            f"{name}: expected one of {', '.join(allowed)}; found {shown(value)}",
            hint=did_you_mean(str(value), allowed) if is_word else None,
        )
    return value


def layout_axes(name: str, value: object) -> str:
    """Return one of `LAYOUTS`."""
    return choice(name, value, tuple(LAYOUTS))


def whole_numbers(
    name: str,
    value: object,
    count: int,
    *,
    of: str,
    low: int = -_FARTHEST,
    high: int = _FARTHEST,
) -> tuple[int, ...]:
    """Return one whole number for all, or one for each of ``count`` things.

    Parameters
    ----------
    name : str
    value : int or sequence of int
        A float that is a whole number counts; a matrix of one row or column is a list.
    count : int
    of : str
        The noun for one of them, for the error: "batch entry".
    low, high : int, optional
        Inclusive bounds.
    """
    numbers = _in_one_axis(name, whole_array(name, value, low=low, high=high))
    if len(numbers) not in (1, count):
        raise ShapeError(
            f"{name}: expected one number, or one for each {of} ({count}); found {len(numbers)}"
        )
    return tuple(numbers.tolist())


def whole_array(
    name: str, value: object, *, low: int = -_FARTHEST, high: int = _FARTHEST
) -> npt.NDArray[np.int64]:
    """Return an array of whole numbers of any shape; floats that are whole numbers count."""
    array = _numbers(name, value, "whole numbers")
    right = (array >= low) & (array <= high) & (array == np.floor(array))
    if not right.all():
        refuse_first(name, array, ~right, f"whole numbers from {low} to {high}")
    return array.astype(np.int64)


def vector(name: str, value: object) -> npt.NDArray[np.float64]:
    """Return float64 (n,) from a number, a list, or a matrix of one row or one column."""
    return _in_one_axis(name, _numbers(name, value, "numbers"))


def _numbers(name: str, value: object, expected: str) -> npt.NDArray[np.float64]:
    """Return numbers of any shape as float64; integers beyond 2⁵³ are rounded."""
    array = _readable(name, value)
    long = array.dtype.kind == "O" and all(isinstance(n, (int, float)) for n in array.flat)
    if not long and array.dtype.kind not in "iuf":
        raise DataError(f"{name}: expected {expected}; found {_kind(array)}")
    try:
        return array.astype(np.float64)
    except OverflowError:  # an integer of Python beyond 1e308
        raise DataError(f"{name}: expected {expected} within the range of float64") from None


def _in_one_axis(name: str, array: Array) -> Array:
    if array.size != max(array.shape, default=1):
        raise ShapeError(
            f"{name}: expected a list of numbers; found an array of shape {shape_text(array.shape)}"
        )
    return array.reshape(-1)


def window_pair(name: str, value: object) -> tuple[int | None, int | None]:
    """Return (left, right) from one number n for (n, n) or a pair; −1 or None is unbounded."""
    value = _unwrap(value)
    sides: Sequence[object]
    if value is None or isinstance(value, (int, float)):
        sides = [value]
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        sides = value
    else:
        sides = vector(name, value).tolist()
    if len(sides) == 1:
        sides = [*sides, *sides]
    if len(sides) != 2:
        raise UsageError(
            f"{name}: expected one number or a pair (left, right); "
            f"found {counted(len(sides), 'number')}"
        )
    return _window_side(name, sides[0]), _window_side(name, sides[1])


def _window_side(name: str, side: object) -> int | None:
    side = _unwrap(side)
    if side is None:
        return None
    if isinstance(side, bool) or not isinstance(side, (int, float)):
        raise UsageError(
            f"{name}: expected whole numbers, or −1 for unbounded; found {shown(side)}"
        )
    # null in a problem file's list of numbers is read as −inf.
    if side in (-1, -math.inf) or side > _FARTHEST:
        return None
    if not side >= 0 or side % 1:
        raise UsageError(
            f"{name}: expected whole numbers of at least 0, or −1 for unbounded; "
            f"found {shown(side)}"
        )
    return int(side)


def label_list(
    name: str, value: object, count: int, *, of: str, hint: str | None = None
) -> tuple[str, ...]:
    """Return ``count`` labels; ``hint`` is for the error when their number is wrong.

    One text is split at its blanks if several labels are expected.
    """
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, (list, tuple)) and len(value) == 1 < count and " " in str(value[0]):
        value = str(value[0]).split()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UsageError(f"{name}: expected a list of labels; found {shown(value)}")
    if len(value) != count:
        raise ShapeError(
            f"{name}: expected {counted(count, 'label')}, one for each {of}; found {len(value)}",
            hint=hint,
        )
    return tuple(str(label) for label in value)


def shown(value: object) -> str:
    """Return a wrong value as a user would write it, in one line, cut where it is long."""
    try:
        text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return "a number of thousands of digits"
    except Exception:  # noqa: BLE001 - deep nesting, or a faulty repr of the user's class
        return f"something of type {type(value).__name__}"
    if "\n" in text:  # the repr of a tensor
        text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _unwrap(value: object) -> object:
    """Return the Python number in an array of one element, or in a tensor without axes."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.item() if value.size == 1 else value
    try:
        # Tensors of other libraries have ``item``, too.
        return value.item() if getattr(value, "shape", None) == () else value  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # without numbers
        return value
