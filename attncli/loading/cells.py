"""The cells of one row of CSV or TSV: numbers, or true and false."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from attncli.errors import InputError
from attncli.loading.headings import is_spaced
from attncli.loading.number import (
    DECIMAL_POINTS,
    MINUS,
    TRUTHS,
    NumberOverflowError,
    has_decimal_comma,
    is_date,
    is_decorated,
    is_error,
    is_foreign,
    is_hole,
    is_numeric,
    is_truth,
    parse_number,
)
from attncli.text import quoted

__all__ = ["EMPTY_ROWS", "FILL", "NUMBERED", "SEPARATE", "read_numbers", "read_truths"]

# 1,000 is a thousand to some and one to others.
_THOUSANDS = r"[-+]?\d{1,3}(,\d{3})+"
_BARS = r"[-+.\deE\s|]*\|[-+.\deE\s|]*"
_SEMICOLONS = r"(?s).*\d;\s*[-+\d].*"
SEPARATE = "separate the columns with commas, semicolons or tabs"
NUMBERED = "labels that are numbers must count 0, 1, 2, …, or be the same of rows and columns"
EMPTY_ROWS = "delete the rows whose cells are all empty"
_ONE_ZERO = "in a mask, write 1 for true and 0 for false, in every cell"
FILL = "fill the hole with a number, or leave out its row (pandas: fillna, dropna)"

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
    numbers = cells[start:]
    joined = "".join(numbers)
    if joined.isascii() and "_" not in joined:
        try:
            values = list(map(float, numbers))
        except ValueError:
            values = [math.inf]  # to be looked at one by one
        if math.inf not in values and -math.inf not in values:
            return values
    return [_number(cells, at, start, refusal) for at in range(start, len(cells))]


def _number(cells: list[str], at: int, start: int, refusal: Refusal) -> float:
    cell, column = cells[at], at + 1
    try:
        value = parse_number(cell)
    except NumberOverflowError as error:
        raise refusal(str(error), column=column) from None
    if value is not None:
        return value
    if not cell.strip():
        what = "expected a number; found an empty cell"
        raise refusal(what, column=column, hint=_hole_hint(cells, at, start))
    raise refusal(f"expected a number; found {quoted(cell)}", column=column, hint=_hint(cell))


def _hole_hint(cells: list[str], at: int, start: int) -> str | None:
    """Return how an empty cell of a row, whose numbers begin at `start`, is probably mended."""
    if len(cells) - start > 1 and not any(map(str.strip, cells[start:])):
        label = "".join(cells[:start]).strip()
        return f"fill in the numbers of {quoted(label)}, or delete its row" if label else EMPTY_ROWS
    if at == start == 0 and len(cells) > 1 and all(map(is_numeric, cells[1:])):
        return f"if the first row and column hold labels: {NUMBERED}"
    return FILL if at > start else None


def _hint(cell: str) -> str | None:
    """Return how a cell that is no number is probably mended."""
    found = (hint for is_such, hint in _HINTS if is_such(cell))
    return next(found, None)


def _is_quoted(cell: str) -> bool:
    bare = cell.strip().strip("\"'")
    return bare != cell.strip() and is_numeric(bare)


def _is_bracketed(cell: str) -> bool:
    bare = cell.strip().strip("[]()")
    return bare != cell.strip() and is_numeric(bare)


# The first that is true of a cell.
_HINTS: tuple[tuple[Callable[[str], object], str], ...] = (
    (
        lambda cell: not is_numeric(cell) and is_numeric(cell.translate(MINUS)),
        "write the minus of the keyboard, -, not a longer sign",
    ),
    (is_hole, FILL),
    (lambda cell: "∞" in cell, "write infinity as inf, and -inf"),
    (
        is_decorated,
        "write numbers in plain digits, as in -1234.5, without thousands separators",
    ),
    (
        is_error,
        "a spreadsheet had an error there: mend its formula, and save the table again",
    ),
    (
        is_date,
        "a spreadsheet made a date of it, it seems: format the column as text, and type it again",
    ),
    (is_foreign, "write numbers in plain digits, as in -1234.5, not 50% or 1/2"),
    (is_spaced, f'{SEPARATE}, not with spaces (np.savetxt: delimiter=",")'),
    (re.compile(_BARS).fullmatch, f"{SEPARATE}, not with |"),
    (
        lambda cell: re.fullmatch(_THOUSANDS, cell.strip()),
        "write no thousands separators, and decimal points instead of decimal commas",
    ),
    (has_decimal_comma, DECIMAL_POINTS),
    (re.compile(_SEMICOLONS).fullmatch, DECIMAL_POINTS),
    (lambda cell: cell.strip().lower() in TRUTHS, _ONE_ZERO),
    (
        _is_bracketed,
        'write the numbers without brackets, or save the array, in Python: numpy.save("q.npy", q)',
    ),
    (_is_quoted, "delete the spaces before the quotation mark, or the quotation marks"),
    (is_numeric, "write the digits 0 to 9, without underscores"),
)
