"""One rule for indices that a user gives: of queries, heads and batch entries."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from attncli.errors import UsageError
from attncli.text import number_words

__all__ = ["index_of"]


def index_of(name: str, value: SupportsIndex, count: int, *, from_end: bool = True) -> int:
    """Return an index from 0 to ``count - 1``.

    Parameters
    ----------
    name : str
        What is counted, as an error should say it.
    value : int
        A negative one counts from the end.
    count : int
    from_end : bool
        Whether negative ones are allowed.

    Raises
    ------
    UsageError
        It is no whole number, or there are not so many.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        index = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}: expected a whole number; found {value!r}") from None
    least = -count if from_end else 0
    if not least <= index < count:
        raise UsageError(
            f"{name}: expected an index from {least} to {count - 1}; found {number_words(index)}"
        )
    return index % count
