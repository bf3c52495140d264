"""Number formats: how to round to them, and how to tell which one a file was computed in.

The dtype alone does not tell how exact a file is: text has no dtype, NumPy has no bfloat16, and
printing drops digits. So the numbers are looked at, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import LARGEST_FLOAT16, dtype_name, nearest, parts, truncated, widen
from attncli.problem import arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_SHORT = ("bfloat16", "float16")
# How many numbers of a file have their digits counted; how many numbers are rounded at once.
_SAMPLE, _PART = 1000, 2**14
# Fewer numbers than this may fit a narrow format by chance.
_TELLING = 4
# Numbers with at most 1 decimal were rounded if 4 of them are no multiples of 1/8; with at most 2
# decimals, if 3 of them are not.
_ENOUGH = {1: 4, 2: 3}
# Numbers were rounded if the longest has at least this many decimals or digits, and at most 15.
_LEAST = 3
# Multiples of this are exact in every format.
_COARSE = 2.0**-8
# The most significant digits of rounded float64 and float32, and of exact float32. Exact float64
# have 16 or 17 digits, and most exact float32 have 7 to 9.
_MOST_SIGNIFICANT, _MOST_OF_SINGLE, _DIGITS_OF_SINGLE = 15, 6, 9
# Nine digits tell a float32 from its neighbours; some programs print a few more.
_FEW_DIGITS = 12
# How many low bits of float32 these formats drop.
_DROPPED = {"bfloat16": 16, "tf32": 13}


@dataclass(frozen=True)
class Precision:
    """A number format; every step of a computation is rounded to it."""

    name: str  # float16, bfloat16, float32 or float64; tf32 only for factors of products
    eps: float  # the distance from 1 to the next number
    largest: float  # the largest finite number
    fused: bool = False  # scores are never stored: they stay in the computing dtype

    @property
    def short(self) -> bool:
        """Whether it is float16 or bfloat16."""
        return self.name in _SHORT

    @cached_property
    def computing(self) -> np.dtype[Any]:
        """The dtype of sums: float32 for 16-bit formats, as in PyTorch."""
        return np.dtype(np.float64 if self.name == "float64" else np.float32)

    def score(self, array: Array) -> Array:
        """Return scores as they are stored for the next step."""
        return array.astype(self.computing, copy=False) if self.fused else self.rounded(array)

    def holds(self, array: Array) -> bool:
        """Return whether all numbers are exact in the format."""
        wide = (widen(part, np.float64) for part in parts(array, _PART))
        return all(np.array_equal(self.stored(part), part, equal_nan=True) for part in wide)

    def rounded(self, array: Array) -> Array:
        """Return the nearest numbers of the format, in the computing dtype."""
        if array.dtype != self.computing:
            array = array.astype(self.computing)
        if self.name == "float16":
            with np.errstate(over="ignore"):
                return array.astype(np.float16).astype(np.float32)
        if self.name not in _DROPPED:
            return array
        return nearest(np.atleast_1d(array), _DROPPED[self.name]).reshape(array.shape)

    def stored(self, array: Array) -> Array:
        """Return float64 numbers as the format stores them."""
        with np.errstate(over="ignore"):
            return self.rounded(array.astype(np.float32)).astype(np.float64)


FLOAT64 = Precision("float64", 2.0**-52, float(np.finfo(np.float64).max))
PRECISIONS = {
    "float16": Precision("float16", 2.0**-10, LARGEST_FLOAT16),
    "bfloat16": Precision("bfloat16", 2.0**-7, float.fromhex("0x1.fep127")),
    "float32": Precision("float32", 2.0**-23, float(np.finfo(np.float32).max)),
    "float64": FLOAT64,
}
# Tensor cores round float32 to it; no file has this format.
TF32 = Precision("tf32", 2.0**-10, PRECISIONS["float32"].largest)


def truncated_to_tf32(array: Array) -> Array:
    """Return float64 numbers truncated toward 0 to the bits that TF32 has."""
    single = array.astype(np.float32)
    return np.where(np.isfinite(single), truncated(single, _DROPPED["tf32"]), single).astype(
        np.float64
    )


def narrowest(values: Array, given: Precision) -> Precision:
    """Return the 16-bit format in which all numbers are exact, or else the given format."""
    if given.short or (narrow := short_of((values,))) is None:
        return given
    finite = widen(values, np.float64)
    finite = finite[np.isfinite(finite)]
    telling = np.unique(finite[np.abs(finite) % 0.125 != 0])
    return narrow if telling.size >= _TELLING else given


def short_of(arrays: Iterable[Array]) -> Precision | None:
    """Return the 16-bit format in which all arrays are exact, if there is one."""
    arrays = tuple(arrays)
    both = (PRECISIONS[name] for name in _SHORT)
    return next((narrow for narrow in both if all(map(narrow.holds, arrays))), None)


@dataclass(frozen=True)
class Digits:
    """The rounding error of printed numbers: half a unit of their last digit."""

    absolute: float = 0.0  # of numbers with a fixed number of decimals
    relative: float = 0.0  # of numbers with a fixed number of significant digits
    significant: int = 17  # the most digits of a number


def printed_digits(
    values: npt.NDArray[np.float64], form: str | None = None, dtype: npt.DTypeLike = np.float64
) -> Digits:
    """Return the rounding error of numbers that were printed with few digits, like ``%.4f``.

    >>> printed_digits(np.array([0.7311, 0.2689]))
    Digits(absolute=5e-05, relative=0.0, significant=4)
    >>> printed_digits(np.array([7.311e-01, 2.689e-05]))
    Digits(absolute=0.0, relative=0.0005, significant=4)
    >>> printed_digits(np.array([1 / 3, 2 / 3]))
    Digits(absolute=0.0, relative=0.0, significant=17)
    """
    flat = values.reshape(-1)
    given = flat[:: max(1, flat.size // _SAMPLE)].astype(dtype)
    some = np.array([float(str(number)) for number in given[np.isfinite(given)]])
    counts = list(_decimal_parts(some))
    decimals, all_decimals = _longest([places for places, _ in counts])
    significant, all_significant = _longest([count for _, count in counts])
    if significant > _MOST_SIGNIFICANT:
        return Digits()
    if form is not None and all(float(form % number) == number for number in some.tolist()):
        half = float(f"5e-{int(form[2:-1]) + 1}")
        absolute, relative = (half, 0.0) if form.endswith("f") else (0.0, half)
        return Digits(absolute, relative, significant)
    relative = float(f"5e-{significant}") if significant >= _LEAST else 0.0
    if all_significant > all_decimals and relative:
        return Digits(relative=relative, significant=significant)
    telling = sum((number * 8) % 1 != 0 for number in some.tolist())
    if decimals < _LEAST and telling < _ENOUGH.get(decimals, math.inf):
        return Digits(significant=significant)
    # Numbers of one decade below 1 have as many decimals as digits: either rounding may be true.
    either = all_significant == all_decimals and significant < decimals
    return Digits(float(f"5e-{decimals + 1}"), relative if either else 0.0, significant)


def _longest(counts: list[int]) -> tuple[int, int]:
    longest = max(counts, default=0)
    return longest, counts.count(longest)


def _decimal_parts(values: npt.NDArray[np.float64]) -> Iterable[tuple[int, int]]:
    """Yield the decimal places and significant digits of each number's shortest text."""
    for number in islice(values.tolist(), _SAMPLE):
        _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
        if isinstance(exponent, int):
            yield max(0, -exponent), len(digits)


def may_be_single(inputs: Sequence[Array], dtype: np.dtype[Any]) -> bool:
    """Return whether all inputs may be float32: by dtype, by value, or by their printed digits."""
    return dtype.itemsize <= np.dtype(np.float32).itemsize or all(
        array.dtype.itemsize <= np.dtype(np.float32).itemsize
        or PRECISIONS["float32"].holds(array)
        or printed_digits(widen(array, np.float64)).significant <= _DIGITS_OF_SINGLE
        for array in inputs
    )


@dataclass(frozen=True, eq=False)
class File:
    """One output of the other implementation, with its precision."""

    values: npt.NDArray[np.float64]
    precision: Precision
    digits: Digits
    told: str = ""

    @classmethod
    def of(
        cls, name: str, given: object, inputs: Sequence[Array], *, single: bool, printed: str | None
    ) -> File:
        """Find out the precision of a file; ``single``: the inputs may be float32 numbers."""
        array = arguments.real_array(name, given)
        values = widen(array, np.float64)
        precision = _own_precision(array, values, single=single)
        digits, told = Digits(), ""
        if precision.name == "float32" and (printed is None or array.dtype != np.float64):
            digits = printed_digits(values, dtype=np.float32)  # of ``round(4)`` or the like
            digits = digits if digits.significant <= _MOST_OF_SINGLE else Digits()
        elif array.dtype == np.float64:
            digits = printed_digits(values, printed)
            # Few digits do not show in which format they were computed; the inputs do.
            if digits.significant <= _FEW_DIGITS and single:
                precision = PRECISIONS["float32"]
            if digits.significant <= _MOST_OF_SINGLE and (digits.absolute or digits.relative):
                told = f"{digits.significant} digits"
        return cls(values, precision, digits, told)._as_narrow_as(inputs)  # noqa: SLF001 - its own

    @property
    def format(self) -> str:
        """``float32``, or ``4 digits`` of printed numbers."""
        return self.told or self.precision.name

    def _as_narrow_as(self, inputs: Sequence[Array]) -> File:
        """Return the file in the 16-bit format that file and inputs share, if any."""
        if self.precision.short:
            return self
        arrays = [self.values, *inputs]
        telling = any(narrowest(array, self.precision) != self.precision for array in arrays)
        narrow = short_of(arrays) if telling else None
        return self if narrow is None else replace(self, precision=narrow, told="")


def _own_precision(array: Array, values: npt.NDArray[np.float64], *, single: bool) -> Precision:
    if array.dtype != np.float64:
        return PRECISIONS[dtype_name(array.dtype)]
    finite = values[np.isfinite(values)]
    telling = single or bool((finite % _COARSE != 0).any())
    return PRECISIONS["float32"] if telling and PRECISIONS["float32"].holds(finite) else FLOAT64
