"""Which of a table's first row and first column are names, not numbers."""

from __future__ import annotations

from typing import NamedTuple

from attncli.loading.number import (
    has_decimal_comma,
    is_decorated,
    is_error,
    is_foreign,
    is_hole,
    is_numeric,
    is_truth,
)

__all__ = [
    "CORNERS",
    "INDEX_NAMES",
    "Headings",
    "find_headings",
    "is_meant_as_numbers",
    "is_spaced",
]

# What pandas makes of an empty corner that it reads, and writes again.
_UNNAMED = "Unnamed: 0"
INDEX_NAMES = {"index", "idx", "id", "row", _UNNAMED.lower()}
# What stands above row labels that have a name.
CORNERS = {
    *INDEX_NAMES, "token", "tokens", "word", "words", "label", "labels", "name", "#", "no", "no.",
    "nr", "nr.", "rownames", "...1", "token_id", "token_ids", "tokenid", "input_ids",
}  # fmt: skip


class Headings(NamedTuple):
    """What of a table is names.

    Attributes
    ----------
    row : bool
        The first row names the columns.
    column : bool
        The first column names the rows.
    certain : bool
        The corner is empty, so that names that are numbers are names as well.
    truths : bool
        What is not names is true or false.
    """

    row: bool
    column: bool
    certain: bool = False
    truths: bool = False


def find_headings(first: list[str], second: list[str] | None) -> Headings:
    """Tell names from numbers by the first two rows of a table.

    An empty corner is how spreadsheets and pandas write both kinds of names; then
    the names may be numbers, but above rows without words a first row of nothing but numbers must
    count 0, 1, 2, … as pandas does, or begin as the rows do, or it is a row of data with a hole in
    it. Without
    an empty corner names are the cells that are neither numbers nor true or false, and 0, 1, 2, …
    behind a word that stands above labels (pandas' ``index_label``).

    Parameters
    ----------
    first, second : list of str
        The cells of two rows; `second` is None where there is one row.

    Examples
    --------
    >>> find_headings(["", "0", "1"], ["0", "0.5", "0.5"])
    Headings(row=True, column=True, certain=True, truths=False)
    >>> find_headings(["TRUE", "FALSE"], None)
    Headings(row=False, column=False, certain=False, truths=True)
    """
    if _are_truths(second or []) and any(map(is_truth, first)):
        # Other words beside true and false, above more of these, are misspelt: no names.
        return Headings(row=False, column=False, truths=True)
    found = _names(first, second)
    data = second if found.row else first
    truths = data is not None and _are_truths(data[int(found.column) :])
    return found._replace(truths=truths)


def _names(first: list[str], second: list[str] | None) -> Headings:
    wide = len(first) > 1
    if wide and _is_corner(first):
        named = _are_names(first[1:], second[0] if second else "")
        return Headings(row=named, column=named, certain=named)
    if second is not None and _are_counted(first) and _begins_labels(second):
        return Headings(row=True, column=True, certain=True)
    if _are_truths(first):
        return Headings(row=False, column=False)
    if _are_truths(first[1:]) and _are_truths((second or first)[1:]):
        return Headings(row=False, column=True)
    if second is not None and _are_headings(first, second):
        return Headings(row=True, column=wide and _is_labelled(second))
    return Headings(row=False, column=wide and _is_labelled(first))


def _is_corner(first: list[str]) -> bool:
    """Return whether a first row begins with an empty corner, or one that pandas gave a name."""
    corner = first[0].strip()
    return not corner or (corner == _UNNAMED and any(map(is_numeric, first[1:])))


def _are_counted(first: list[str]) -> bool:
    """Return whether 0, 1, 2, … stand behind a word that stands above labels."""
    counts = [str(index) for index in range(len(first) - 1)]
    named = len(first) > 1 and first[0].strip().lower() in CORNERS
    return named and [cell.strip() for cell in first[1:]] == counts


def _begins_labels(row: list[str]) -> bool:
    """Return whether a row begins with a word, or with the first index."""
    return _is_labelled(row) or row[0].strip() == "0"


def is_spaced(cell: str) -> bool:
    """Whether a cell is several numbers with spaces between."""
    words = cell.split()
    return len(words) > 1 and all(map(is_numeric, words))


def _is_labelled(row: list[str]) -> bool:
    """Whether a row begins with a word; 50% is one before numbers, but not before 25%."""
    first, *others = row
    if not first.strip() or is_truth(first) or is_meant_as_numbers(first):
        return False
    return not (is_foreign(first) and any(map(is_foreign, others)))


def _are_headings(first: list[str], second: list[str]) -> bool:
    """Whether a first row without an empty corner names the columns.

    Nothing in it is a number; 50% and #N/A are names beside words, and 50% above 0.5.
    """
    if any(map(_is_attempt, first)) or all(is_error(cell) or is_hole(cell) for cell in first):
        return False
    strange = all(is_foreign(cell) or is_error(cell) for cell in first)
    return not (strange and any(map(is_foreign, second)))


def is_meant_as_numbers(cell: str) -> bool:
    """Whether a cell is a number, or an attempt at one that is refused."""
    return _is_attempt(cell) or is_error(cell)


def _is_attempt(cell: str) -> bool:
    meant = is_numeric, is_spaced, has_decimal_comma, is_decorated
    return any(is_one(cell) for is_one in meant)


def _are_truths(cells: list[str]) -> bool:
    return bool(cells) and all(map(is_truth, cells))


def _are_names(cells: list[str], below: str) -> bool:
    """Whether cells beside an empty corner are names; ``below`` is the cell under the corner."""
    if all(map(is_numeric, cells)):
        if below.strip() and not is_meant_as_numbers(below):
            return True
        return cells[0] == below or cells == [str(index) for index in range(len(cells))]
    return any(cell.strip() for cell in cells)
