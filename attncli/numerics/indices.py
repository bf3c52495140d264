"""One rule for indices that a user gives: of queries, heads and batch entries."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, TypeAlias

from attncli.errors import UsageError
from attncli.errors.text import first_few, number_words, quoted, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable

# A single index drops its axis, as in NumPy; several keep it, in their order.
Indices: TypeAlias = int | tuple[int, ...]


class Picked(NamedTuple):
    """The batch entries and heads that are picked: one, several in an order, or all.

    Attributes
    ----------
    batch, head : int, tuple of int, or None
    """

    batch: Indices | None = None
    head: Indices | None = None

    def place(self, batch: int | None, head: int | None) -> tuple[int | None, int | None]:
        """Turn indices among the picked batch entries and heads into indices among all."""
        return _among(self.batch, batch), _among(self.head, head)

    def within(self, counts: tuple[int, int]) -> Picked:
        """Return the picks for arrays with these counts: none where they hold only the picked ones.

        Raises
        ------
        UsageError
            The arrays hold other batch entries or heads, but not the picked ones.
        """
        batch, head = (
            _unless_all(name, indices, count)
            for name, indices, count in zip(("--batch", "--head"), self, counts, strict=True)
        )
        return Picked(batch, head)

    @property
    def alone(self) -> dict[str, int | None]:
        """The index of the batch entry and of the head, each only if it is the only one picked."""
        return {name: _only(indices) for name, indices in self._asdict().items()}

    @property
    def mean(self) -> str:
        """How a title calls the mean of the heads."""
        heads = self.head if isinstance(self.head, tuple) else ()
        return f"mean of heads {first_few([*map(str, heads)])}" if heads else "mean of the heads"


EVERYTHING = Picked()


def _unless_all(name: str, picked: Indices | None, count: int) -> Indices | None:
    several = (picked,) if isinstance(picked, int) else picked or ()
    if len(several) in (0, count):
        return None
    return tuple(index_of(name, index, count) for index in several)


def _only(picked: Indices | None) -> int | None:
    if isinstance(picked, tuple):
        return picked[0] if len(picked) == 1 else None
    return picked


def _among(picked: Indices | None, index: int | None) -> int | None:
    if isinstance(picked, int):
        return picked
    return index if picked is None or index is None else picked[index]


def index_of(name: str, value: SupportsIndex, count: int) -> int:
    """Return an index from 0 to ``count - 1``; a negative one counts from the end.

    Raises
    ------
    UsageError
        It is no whole number, or out of range.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        index = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}: expected a whole number; found {value!r}") from None
    if not -count <= index < count:
        raise UsageError(
            f"{name}: expected an index from {-count} to {count - 1}; found {number_words(index)}"
        )
    return index % count


def indices_of(name: str, values: Iterable[SupportsIndex], count: int) -> tuple[int, ...]:
    """Return one or more different indices, each as `index_of` does, in their order."""
    indices = tuple(index_of(name, value, count) for value in values)
    if not indices:
        raise UsageError(f"{name}: expected one or more indices; found none")
    if len(set(indices)) < len(indices):
        twice = next(index for at, index in enumerate(indices) if index in indices[:at])
        raise UsageError(f"{name}: expected each index once; found {twice} twice")
    return indices


def range_of(option: str, ends: tuple[int | None, int | None], count: int) -> tuple[int, int]:
    """Return the start and stop of a range, as in a Python slice; refuse an empty one."""
    for end, most in zip(ends, (count - 1, count), strict=True):
        if end is not None and not -count <= end <= most:
            raise UsageError(
                f"{option}: expected a range within 0:{count}; found {number_words(end)}"
            )
    start, stop, _ = slice(*ends).indices(count)
    if start >= stop:
        raise UsageError(f"{option}: expected a range within 0:{count}; found an empty one")
    return start, stop


def indices_in(option: str, words: str, count: int) -> Indices:
    """Read indices and ranges, separated by commas: ``3``, ``-1``, ``0,3``, ``4:8``."""
    parts = words.split(",")
    if len(parts) == 1 and ":" not in words:
        return index_of(option, _whole(option, words, words), count)
    indices: list[int] = []
    for part in parts:
        if ":" in part:
            first, _, last = part.partition(":")
            ends = (
                _whole(option, words, first) if first.strip() else None,
                _whole(option, words, last) if last.strip() else None,
            )
            indices += range(*range_of(option, ends, count))
        else:
            indices.append(index_of(option, _whole(option, words, part), count))
    return indices_of(option, indices, count)


def _whole(option: str, words: str, part: str) -> int:
    number = whole_number(part)
    if number is None:
        raise UsageError(
            f"{option}: expected an index, several (0,3) or a range (4:8); found {quoted(words)}"
        )
    return number
