"""What is written: named arrays, labels and what else was computed."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import OutputError
from attncli.errors.names import ROLLOUT, SQUARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = ["Results"]

# Arrays with a row for each key.
_OF_KEYS = ("key", "value", "dkey", "dvalue")


class Results(NamedTuple):
    """Named arrays in the order in which they are written, and what belongs to them.

    ``extra`` is what else JSON and YAML say, such as statistics. ``layout`` is there where three
    axes of weights begin with the batch; ``labelled`` tables name rows and columns.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    query_labels: tuple[str, ...] | None = None
    key_labels: tuple[str, ...] | None = None
    extra: Mapping[str, object] = MappingProxyType({})
    layout: str | None = None
    labelled: bool = False

    def names_of(self, name: str, shape: tuple[int, int]) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the rows and columns of an array, its indices where it has none."""
        rows = self.key_labels if name in _OF_KEYS else self.query_labels
        over_keys = name in (*SQUARE, ROLLOUT)
        columns = self.key_labels if over_keys else (name,) if name == "lse" else None
        return rows or [*map(str, range(shape[0]))], columns or [*map(str, range(shape[1]))]

    def only_arrays(self, kind: str) -> Mapping[str, npt.NDArray[Any]]:
        """Return the arrays, for a format that can hold nothing but arrays."""
        if self.extra or not self.arrays:
            found = ", ".join(self.extra) or "none"
            raise OutputError(
                f"{kind} holds only arrays; found {found}",
                hint="use JSON or YAML for it, or choose arrays",
            )
        return self.arrays

    def one_list(self) -> list[Mapping[str, Any]] | None:
        """Return the list of mappings that is all there is; None where it is not so."""
        lists = list(self.extra.values())
        if self.arrays or len(lists) != 1 or not isinstance(lists[0], list):
            return None
        return lists[0]

    def one_array(self, kind: str) -> tuple[str, npt.NDArray[Any]]:
        """Return the name and the values of the array, for a format that holds one."""
        names = list(self.only_arrays(kind))
        if len(names) > 1:
            raise OutputError(
                f"{kind} holds one array; found {len(names)}: {', '.join(names)}",
                hint="choose one (--show NAME, --save NAME=PATH), or use NPZ, JSON or YAML",
            )
        return names[0], self.arrays[names[0]]
