"""What a file turns out to hold: one array, or a mapping of named entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = ["Contents", "LoadedArray", "LoadedMapping", "Member", "Unread"]


@dataclass(frozen=True, eq=False)
class LoadedArray:
    """One array and where it came from.

    Attributes
    ----------
    values : ndarray
        Real numbers or booleans, as stored; text formats give float64.
    name : str
        How errors name it: ``q.csv``, ``dump.npz#q``, ``standard input``.
    row_labels, column_labels : tuple of str or None
        The label column and the header row of a CSV or TSV that has them.
    printed : str or None
        ``%.2f`` or ``%.2e``, where the text of this array alone shows that all its numbers were
        printed so.
    is_table : bool
        It comes from a format that holds two axes, so that others, of length 1, may be left out.
    """

    values: npt.NDArray[Any]
    name: str
    row_labels: tuple[str, ...] | None = None
    column_labels: tuple[str, ...] | None = None
    printed: str | None = None
    is_table: bool = False


@dataclass(frozen=True, eq=False)
class LoadedMapping:
    """Named entries and where they came from.

    Attributes
    ----------
    entries : mapping of str to object
        A `LoadedArray` where the file holds numbers in nested lists or an array
        member; otherwise what the file says: bool, int, float, str, None, or a
        list of str (labels), or an `Unread`. Members of NPZ and safetensors are read
        when asked for.
    name : str
        How errors name the file.
    folder : str
        The folder that relative file names in it are relative to.
    dump : bool
        A program wrote it, NPZ or safetensors, and whatever else it had at hand.
    """

    entries: Mapping[str, object]
    name: str
    folder: str = "."
    dump: bool = False


class Unread:
    """An entry that was passed over: a summary that attncli itself wrote beside the arrays."""

    def __str__(self) -> str:
        return "not read"


class Member(NamedTuple):
    """What one entry of a file is, without its data.

    Attributes
    ----------
    name : str
        Its name in the file; empty where the whole file is one array.
    shape : tuple of int
        Empty for a single value.
    dtype_name : str
        ``float32``, ``bfloat16``, …; ``text`` for words, ``null`` for nothing,
        ``summary`` for what is passed over, and the format's own word (``F8_E4M3``,
        ``<U5``) where attncli cannot read the elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype_name: str


Contents = LoadedArray | LoadedMapping
