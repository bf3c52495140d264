"""Entries of a file that are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["LazyEntries"]


class LazyEntries(Mapping[str, object]):
    """A mapping that knows its names, and reads a value each time it is asked for.

    Parameters
    ----------
    names : iterable of str
    read : callable
        Takes one of the names and returns its value.
    """

    def __init__(self, names: Iterable[str], read: Callable[[str], object]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> object:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:  # the inherited one would read the value
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
