"""The contents of a file: one array, or a mapping of named entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.numerics.dtypes import dtype_name

if TYPE_CHECKING:
    import numpy.typing as npt

    from attncli.loading.info import Survey


@dataclass(frozen=True, eq=False)
class LoadedArray:
    """One array: real numbers or booleans as they are stored; float64 from text files.

    Error messages show the ``name``: ``q.csv``, ``dump.npz#q``. Only tables have labels.
    ``printed`` is the C format, such as ``%.2f``, if all numbers of a text file have it. If
    ``is_table``, the file was a table: even a single row or column has two axes.
    """

    values: npt.NDArray[Any]
    name: str
    row_labels: tuple[str, ...] | None = None
    column_labels: tuple[str, ...] | None = None
    printed: str | None = None
    is_table: bool = False


class Member(NamedTuple):
    """The name, shape, dtype and numbers of one entry of a file.

    The ``name`` is empty if the file is one array; the ``shape`` is empty if the entry is one
    value. If attncli cannot read the elements, the ``dtype`` is the format's own word, such as
    ``F8_E4M3``. The ``note`` is the value, the labels, or the reason why the entry is not read.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    numbers: Survey | None = None
    note: str | None = None


@dataclass(frozen=True, eq=False)
class LoadedMapping:
    """Named entries of a file; binary formats read an entry when it is asked for.

    An entry is a `LoadedArray`, a bool, int, float, str, None, a list of labels, or `Unread`. File
    names in it are relative to the ``folder``. A ``dump`` is a file that a program wrote: it may
    hold entries that no problem has, and its texts never name files. ``metadata`` comes from the
    header of a safetensors file. ``header`` describes an entry without reading it.
    """

    entries: Mapping[str, object]
    name: str
    folder: str = "."
    dump: bool = False
    metadata: Mapping[str, str] | None = None
    header: Callable[[str], Member] | None = None

    def member(self, name: str) -> Member:
        """Return name, shape and dtype of an entry, from its header if there is one."""
        return self.header(name) if self.header else member_of(name, self.entries[name])


class LazyEntries(Mapping[str, object]):
    """A mapping that knows its names, and reads a value each time it is asked for."""

    def __init__(self, names: Iterable[str], read: Callable[[str], object]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> object:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:  # the inherited method would read the value
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Unread:
    """Stands for an entry that is not read: one to skip, or a summary by attncli itself."""

    def __str__(self) -> str:
        return "not read"


def member_of(name: str, entry: object) -> Member:
    """Describe an entry that was read."""
    if isinstance(entry, LoadedArray):
        return Member(name, entry.values.shape, dtype_name(entry.values.dtype))
    if isinstance(entry, list):
        return Member(name, (len(entry),), "text", note=", ".join(map(str, entry)))
    return Member(name, (), kind_of(entry), note=None if entry is None else str(entry))


def kind_of(entry: object) -> str:
    """Return the word for the kind of a single value: ``text``, ``null``, ``bool``."""
    words = {str: "text", list: "text", type(None): "null", Unread: "summary"}
    return words.get(type(entry), type(entry).__name__)


Contents = LoadedArray | LoadedMapping
