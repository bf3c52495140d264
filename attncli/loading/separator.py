"""What separates the cells of a table: a comma, a semicolon or a tab, not a decimal comma."""

from __future__ import annotations

import csv
import itertools
import re
from typing import TYPE_CHECKING

from attncli.loading.number import has_decimal_comma, is_numeric

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["column_of_pairs", "find_separator", "other_separator"]

_SEPARATORS = ",;\t"
_SAMPLE = 64 * 2**10
# What stands behind a decimal comma.
_DECIMALS = re.compile(r"\d+(?:[eE][-+]?\d+)?")


def find_separator(data: bytes) -> str:
    """Return the separator that makes the most numbers of the first lines, then the most cells."""
    sample = data[:_SAMPLE].decode("utf-8", "replace")
    lines = [line for line in sample.splitlines()[:20] if line.strip()]

    def merit(delimiter: str) -> tuple[int, int]:
        try:
            cells = list(itertools.chain(*csv.reader(lines, delimiter=delimiter)))
        except csv.Error:  # a cell of absurd length
            return 0, 0
        # Where a comma is the decimal point it separates nothing: that is refused later.
        if delimiter == ",":
            others = -sum(";" in cell or "\t" in cell for cell in cells)
        else:
            others = sum(map(has_decimal_comma, cells))
        return others + sum(map(is_numeric, cells)), len(cells)

    return max(_SEPARATORS, key=merit)


def other_separator(data: bytes, named: str) -> str | None:
    """Return what separates the first rows where the named separator does not."""
    sample = data[:_SAMPLE].decode("utf-8", "replace")
    lines = [line for line in sample.splitlines() if line.strip()][:2]
    if not lines or named in lines[0]:
        return None
    found = find_separator(data)
    if found == "," and all(map(has_decimal_comma, lines)):
        return None
    return found if found != named and all(found in line for line in lines) else None


def column_of_pairs(rows: Sequence[list[str]]) -> int | None:
    """Return where pairs like ``1,50, -2,00`` begin, behind a label or not; None where nowhere.

    What has no space before it, behind a comma, is the decimals of what has one.

    Parameters
    ----------
    rows : sequence of list of str
        The cells of the first rows, cut at commas.
    """
    return next((n for n in (0, 1) if all(_are_pairs(row[n:]) for row in rows)), None)


def _are_pairs(cells: list[str]) -> bool:
    whole, decimals = cells[::2], cells[1::2]
    return (
        len(whole) == len(decimals) > 1
        and all(_DECIMALS.fullmatch(cell) for cell in decimals)
        and is_numeric(whole[0])
        and all(cell.startswith(" ") and is_numeric(cell) and "." not in cell for cell in whole[1:])
    )
