"""Words and tables as Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attncli.errors.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["markdown_table", "words"]

_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|~$&^@])")


def words(text: str) -> str:
    r"""Return a text that Markdown shows as it is.

    Examples
    --------
    >>> print(words("[CLS] a_b | $x$"))
    \[CLS\] a\_b \| \$x\$
    """
    return _SIGNS.sub(r"\\\1", printable(text))


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int] = (0,)
) -> str:
    """Return a table of texts that are Markdown already; some columns are aligned to the left."""
    marks = ("---" if number in left else "---:" for number in range(len(headings)))
    return "\n".join([_row(headings), f"|{'|'.join(marks)}|", *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
