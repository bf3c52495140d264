"""What in a table may be a header or labels although it is read as numbers, and the other way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.loading.contents import LoadedArray
from attncli.loading.headings import CORNERS, INDEX_NAMES
from attncli.loading.number import begins_as_number, is_foreign, is_hole, is_numeric
from attncli.text import quoted
from attncli.warning import warn

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "EMPTY_CORNER",
    "advise_on_header",
    "advise_on_index",
    "advise_on_names",
    "advise_on_numbers_above_words",
    "without_index",
]

EMPTY_CORNER = "leave the first cell of the header empty"
# So many numbers that follow each other are hardly chance.
_COUNT = 3
# Rows below the first that are looked at.
_LOOKED_AT = 8


def without_index(table: LoadedArray) -> LoadedArray:
    """Return a table whose column named as an index, and counting as one, is its labels.

    Warn of another whose name is one that stands above labels.
    """
    values, columns = table.values, table.column_labels
    if not columns or len(columns) < 2:
        return table
    above = columns[0].strip().lower()
    if above not in CORNERS and not _counts_on(values[:, 0]):
        return table
    start, named = int(values[0, 0] == 1), above in INDEX_NAMES
    counts = np.array_equal(values[:, 0], np.arange(start, len(values) + start))
    if not named or not counts or len(values) < 2:
        warn(
            f"{table.name}: the column {quoted(columns[0])} is read as numbers. If it holds "
            f"labels, {EMPTY_CORNER}"
        )
        return table
    warn(
        f"{table.name}: the column {quoted(columns[0])} counts {start}, {start + 1}, … and is read "
        "as row labels. If it is data, give it another name"
    )
    labels = tuple(str(number) for number in range(start, len(values) + start))
    return LoadedArray(values[:, 1:], table.name, labels, columns[1:])


def _counts_on(numbers: npt.NDArray[Any]) -> bool:
    """Return whether whole numbers count on from any first one, as a column of indices does."""
    first = numbers[0]
    if len(numbers) < _COUNT or not abs(first) < 2**31 or first != np.rint(first):
        return False
    return np.array_equal(numbers, np.arange(first, first + len(numbers)))


def advise_on_header(name: str, first: list[str], found: LoadedArray, *, labelled: bool) -> None:
    """Warn of a first row 0, 1, 2, … as pandas heads columns without names."""
    cells = [cell.strip() for cell in first[int(labelled) :]]
    if len(cells) < 2 or cells != list(map(str, range(len(cells)))):
        _advise_on_counting_row(name, first, found, labelled=labelled)
        return
    if labelled:
        may_be_data, mend = True, "leave its first cell empty (pandas: no index_label)"
    else:
        # A mask of two columns may begin with 0, 1; no mask holds a 2.
        may_be_data = bool(np.isin(found.values[1:], (0, 1)).all())
        mend = "write the file without it (pandas: header=False)"
    goes_on = np.array_equal(found.values.ravel(), np.arange(found.values.size))
    if not goes_on and not (len(cells) == 2 and may_be_data):
        warn(
            f"{name}: the first row counts 0 to {len(cells) - 1} as a header might; it is read as "
            f"numbers. If it is a header, {mend}"
        )


def _advise_on_counting_row(
    name: str, first: list[str], found: LoadedArray, *, labelled: bool
) -> None:
    """Warn of a first row like 2019, 2020, 2021 above numbers that are not all whole."""
    below = found.values[1 : 1 + _LOOKED_AT]
    if not len(below) or np.array_equal(below, np.rint(below)) or not _counts_on(found.values[0]):
        return
    mend = (
        "leave its first cell empty (pandas: no index_label)"
        if labelled
        else "write the file without it (pandas: header=False)"
    )
    warn(
        f"{name}: the first row counts {first[int(labelled)].strip()} to {first[-1].strip()} as a "
        f"header might; it is read as numbers. If it is a header, {mend}"
    )


def advise_on_index(found: LoadedArray) -> None:
    """Warn of a first column 0, 1, 2, … or 1, 2, 3, … beside numbers that are not all whole."""
    if found.row_labels or found.values.shape[1] < 2 or found.values.dtype == np.bool_:
        return
    first, others = found.values[:, 0], found.values[:_LOOKED_AT, 1:]
    if first[0] in (0, 1) and _counts_on(first) and not np.array_equal(others, np.rint(others)):
        warn(
            f"{found.name}: the first column counts {first[0]:g}, {first[1]:g}, … as an index "
            "might; it is read as numbers. If it is an index, write the file without it (pandas: "
            "index=False), or with a header whose first cell is empty"
        )


def advise_on_numbers_above_words(found: LoadedArray) -> None:
    """Warn of names of columns that are numbers, and do not count, above other names of rows."""
    columns = found.column_labels or ()
    if columns == found.row_labels:
        return
    counts = [[str(index + start) for index in range(len(columns))] for start in (0, 1)]
    if all(map(is_numeric, columns)) and list(columns) not in counts:
        warn(
            f"{found.name}: the first row, {quoted(columns[0])}, … is read as the names of the "
            "columns, since its first cell is empty. If it holds numbers, write its label there"
        )


def advise_on_names(found: LoadedArray, corner: str) -> None:
    """Warn of names that may all be numbers in another notation, if nothing says they are names."""
    rows, columns = found.row_labels or (), found.column_labels or ()
    headed = corner.strip().lower() in CORNERS
    for which, names, others, sure in (
        ("column", rows, columns, headed),
        ("row", columns, rows, False),
    ):
        if names and all(map(_may_be_number, names)) and not sure and names != others:
            warn(
                f"{found.name}: the first {which}, {quoted(names[0])}, … is read as labels. If it "
                "holds numbers, write them in plain digits"
            )


def _may_be_number(name: str) -> bool:
    return is_foreign(name) or is_hole(name) or begins_as_number(name)
