"""The cells of one row of CSV or TSV: numbers, or true and false."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from attncli.errors import InputError
from attncli.loading.headings import is_spaced
from attncli.loading.number import (
    TRUTHS,
    NumberOverflowError,
    has_decimal_comma,
    is_decorated,
    is_truth,
    parse_number,
)
from attncli.text import quoted

__all__ = ["read_numbers", "read_truths"]

# 1,000 is a thousand to some and one to others.
_THOUSANDS = r"[-+]?\d{1,3}(,\d{3})+"
_BARS = r"[-+.\deE\s|]*\|[-+.\deE\s|]*"
_SEMICOLONS = r"(?s).*\d;\s*[-+\d].*"
_ONE_ZERO = "in a mask, write 1 for true and 0 for false, in every cell"

Refusal = Callable[..., InputError]


def read_truths(cells: list[str], start: int, refusal: Refusal) -> list[float]:
    """Return 1 for each true and 0 for each false from column `start` on.

    Raises
    ------
    InputError
        What `refusal` makes of a problem, a column and a hint.
    """
    for at, cell in enumerate(cells[start:], start + 1):
        if not is_truth(cell):
            what = f"expected true or false; found {quoted(cell)}"
            raise refusal(what, column=at, hint=_ONE_ZERO)
    return [float(cell.strip().lower() == "true") for cell in cells[start:]]


def read_numbers(cells: list[str], start: int, refusal: Refusal) -> list[float]:
    """Return the numbers of a row from column `start` on.

    Raises
    ------
    InputError
        What `refusal` makes of a problem, a column and a hint.
    """
    cells = cells[start:]
    joined = "".join(cells)
    if joined.isascii() and "_" not in joined:
        try:
            values = list(map(float, cells))
        except ValueError:
            values = [math.inf]  # to be looked at one by one
        if math.inf not in values and -math.inf not in values:
            return values
    return [_number(cell, start + at, refusal) for at, cell in enumerate(cells, 1)]


def _number(cell: str, column: int, refusal: Refusal) -> float:
    try:
        value = parse_number(cell)
    except NumberOverflowError:
        what = f"{quoted(cell)} is beyond the range of float64"
        raise refusal(what, column=column) from None
    if value is not None:
        return value
    if not cell.strip():
        raise refusal("expected a number; found an empty cell", column=column)
    hint = None
    if is_decorated(cell):
        hint = "write numbers in plain digits, as in -1234.5, without thousands separators"
    elif is_spaced(cell):
        hint = (
            "separate the columns with commas, semicolons or tabs, not with spaces (np.savetxt: "
            'delimiter=",")'
        )
    elif re.fullmatch(_BARS, cell):
        hint = "separate the columns with commas, semicolons or tabs, not with |"
    elif re.fullmatch(_THOUSANDS, cell.strip()):
        hint = "write no thousands separators, and decimal points instead of decimal commas"
    elif has_decimal_comma(cell) or re.fullmatch(_SEMICOLONS, cell):
        hint = "write decimal points instead of decimal commas"
    elif cell.strip().lower() in TRUTHS:
        hint = _ONE_ZERO
    raise refusal(f"expected a number; found {quoted(cell)}", column=column, hint=hint)
