"""Tell the names of rows and columns in a table from its numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import InputError, warn
from attncli.errors.text import quoted
from attncli.loading.contents import LoadedArray
from attncli.loading.number import (
    has_decimal_comma,
    is_attempt,
    is_numeric,
    is_truth,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

# The name that pandas gives to a column without a name.
_UNNAMED = re.compile(r"Unnamed: \d+(?:\.\d+)?")
# Headings of a column that counts the rows; R writes ...1.
_INDICES = re.compile(r"index|idx|id|row|level_0|\.\.\.1|unnamed: [\d.]+")
# Headings that mean this only beside a column of labels; R writes X.
_SECOND_INDICES = re.compile(rf"|x(?:\.\d+)?|v1|rownames|{_INDICES.pattern}")
# Headings of a column of labels.
_CORNERS = re.compile(
    r"index|idx|id|row|tokens?|words?|labels?|name|#|n[or]\.?|rownames|\.\.\.1|token_?ids?|input_ids"
)
# Three consecutive whole numbers below 2**31 are a count. Two may be chance.
_COUNT, _MOST = 3, 2**31
PLAINLY = (
    "write numbers in plain digits, as in -1234.5; if the first column holds labels, leave the "
    "first cell of the header empty"
)


class Headings(NamedTuple):
    """Whether the first row and column hold names; ``certain`` names may look like numbers."""

    row: bool
    column: bool
    certain: bool = False


def find_headings(
    first: list[str], second: list[str] | None, labels: Sequence[str], header: str = "auto"
) -> Headings:
    """Return where the names are, by the first two rows and the first column."""
    wide, corner = len(first) > 1, first[0].strip()
    if wide and header != "no" and (not corner or _UNNAMED.fullmatch(corner)):
        if header == "yes" or _are_names(first[1:], labels):
            return Headings(row=True, column=True, certain=True)
        if corner:
            return Headings(row=True, column=False)
    if header != "no" and second is not None:
        labelled = _is_labelled(second)
        counted = _CORNERS.fullmatch(corner.lower()) and _counts(first[1:])
        if wide and counted and (labelled or second[0].strip() == "0"):
            return Headings(row=True, column=True, certain=True)
        if header == "yes" or _is_header(first, second):
            return Headings(row=True, column=wide and labelled)
    return Headings(row=False, column=wide and _is_labelled(first))


def _are_names(cells: list[str], labels: Sequence[str]) -> bool:
    """Whether the cells beside an empty corner are names."""
    if not all(map(is_numeric, cells)):
        return any(cell.strip() for cell in cells)
    if _counts(cells) or (_counts(cells, 1) and _counts(labels, 1)) or cells == [*labels]:
        return True
    return any(not is_attempt(label) for label in labels)


def _counts(cells: Sequence[str], start: int = 0) -> bool:
    return [cell.strip() for cell in cells] == [str(at + start) for at in range(len(cells))]


def _is_labelled(row: list[str]) -> bool:
    """Whether a row begins with a label; 50% is a label only if numbers follow it."""
    first, *others = row
    numbers = all(map(is_numeric, first.split()))  # true for an empty cell, too
    if numbers or is_truth(first) or has_decimal_comma(first):
        return False
    return not is_attempt(first) or any(map(is_numeric, others))


def _is_header(first: list[str], second: list[str]) -> bool:
    """Whether the first row holds names: no numbers, or 0, 1, 2, … above fractions."""
    if any(map(is_numeric, first)):
        fractions = all(re.search(r"[.eE]", cell) and is_numeric(cell) for cell in second)
        return len(first) >= _COUNT and _counts(first) and fractions
    # In a table of true and false, another word is misspelt; it is not a name.
    if any(map(is_truth, first)) and any(map(is_truth, second)):
        return False
    return not all(map(is_attempt, first))


def names_behind_index(rows: Sequence[list[str]]) -> bool:
    """Whether the first column counts the rows and the second one holds their labels."""
    first, below = rows[0], rows[1:]
    if len(first) < 3 or any(len(row) != len(first) for row in below):
        return False
    name = first[1].strip().lower()
    named = _SECOND_INDICES.fullmatch(name) or _CORNERS.fullmatch(name)
    counts = any(_counts([row[0] for row in below], start) for start in (0, 1))
    return bool(named and counts and below) and all(_is_labelled(row[1:]) for row in below)


def settle(found: LoadedArray, header: str = "auto") -> LoadedArray:
    """Remove columns that count the rows; warn if a row or column of numbers may be names."""
    _refuse_numbers_as_names(found, header)
    while found.column_labels and found.values.shape[1] > 1 and _is_index(found):
        found = _without_first(found)
    if found.values.dtype != np.bool_ and found.values.size:
        _advise(found, header)
    return found


def _is_index(found: LoadedArray) -> bool:
    """Whether the first column counts the rows."""
    name = (found.column_labels or ("",))[0].strip()
    counts, rows = _start(found.values[:, 0]) in (0, 1), len(found.values)
    if _UNNAMED.fullmatch(name):
        return True
    if (_SECOND_INDICES if found.row_labels else _INDICES).fullmatch(name.lower()):
        return counts and rows > 1
    return bool(found.row_labels) and counts and rows >= _COUNT and _fractions(found.values[:, 1:])


def _without_first(found: LoadedArray) -> LoadedArray:
    """Remove the first column; its numbers become row labels if there are none."""
    values, labels, names = found.values, found.row_labels, found.column_labels or ()
    start, taken = _start(values[:, 0]), "is left out: it counts the rows"
    if start not in (0, 1):
        taken = "is left out: pandas gives this name to an index"
    elif labels is None:
        labels = tuple(str(int(number)) for number in values[:, 0])
        taken = f"counts {start:g}, {start + 1:g}, … and is read as row labels"
    warn(f"{found.name}: the column {quoted(names[0])} {taken}. If it is data, rename it")
    return LoadedArray(values[:, 1:], found.name, labels, names[1:])


def _refuse_numbers_as_names(found: LoadedArray, header: str) -> None:
    """Refuse names that all look like numbers, such as 50% and 1.5 dB."""
    rows, columns = found.row_labels, found.column_labels
    if header == "yes" or (rows and columns):
        return
    for which, names in (("row", columns), ("column", rows)):
        if names and all(map(is_attempt, names)) and not _counts(names):
            raise InputError(
                f"{found.name}: line 1, column 1: expected a number; found {quoted(names[0])}, "
                f"and all of the first {which} looks like mistyped numbers",
                hint=PLAINLY,
            )


def _advise(found: LoadedArray, header: str) -> None:
    """Warn of a first row or column that counts, as a header or an index does."""
    values, unnamed = found.values, found.column_labels is None
    if unnamed and header == "auto" and len(values) > 1 and _may_be_header(values):
        first = values[0]
        warn(
            f"{found.name}: the first row counts {first[0]:g} to {first[-1]:g}, as a header "
            "might; it is read as numbers. --header yes reads it as names, --header no reads it "
            "as numbers without this warning"
        )
    first, named = values[:, 0], found.row_labels is not None
    if not named and (not unnamed or header == "auto") and _counts_beside(first, values[:, 1:]):
        warn(
            f"{found.name}: the first column counts {first[0]:g}, {first[1]:g}, …, as an "
            "index might; it is read as numbers. If it is an index, write the file without it "
            "(pandas: index=False), or with a header whose first cell is empty"
        )


def _may_be_header(values: npt.NDArray[Any]) -> bool:
    """Whether the first row counts, and belongs neither to a mask nor to a table that counts."""
    first, below = values[0], values[1:]
    if _counts_beside(first, below):
        return True
    mask = len(first) == 2 and not _fractions(below) and not (below > 1).any()
    alone = not np.array_equal(values.ravel(), np.arange(values.size))
    return _start(first) == 0 and len(first) > 1 and not mask and alone


def _counts_beside(numbers: npt.NDArray[Any], others: npt.NDArray[Any]) -> bool:
    return len(numbers) >= _COUNT and _start(numbers) is not None and _fractions(others)


def _start(numbers: npt.NDArray[Any]) -> float | None:
    """Return the first of consecutive whole numbers; None where they are not consecutive."""
    first = float(numbers[0])
    whole = abs(first) < _MOST and first.is_integer()
    return first if whole and np.array_equal(numbers, first + np.arange(len(numbers))) else None


def _fractions(numbers: npt.NDArray[Any]) -> bool:
    return not np.array_equal(numbers, np.rint(numbers))
