"""The results of a command, and the formats of files for them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import OutputError
from attncli.errors.late import late
from attncli.errors.names import ROLLOUT, SQUARE
from attncli.save.files import is_direct, whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import BinaryIO

    import numpy.typing as npt

# Arrays with a row for each key.
_OF_KEYS = ("key", "value", "dkey", "dvalue")


class Results(NamedTuple):
    """Named arrays in the order in which they are written, and their labels.

    ``extra`` holds other results for JSON and YAML, such as statistics. ``layout`` is set if
    weights have three axes and the first is the batch. If ``labelled``, tables name their rows and
    columns.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    query_labels: tuple[str, ...] | None = None
    key_labels: tuple[str, ...] | None = None
    extra: Mapping[str, object] = MappingProxyType({})
    layout: str | None = None
    labelled: bool = False

    def names_of(self, name: str, shape: tuple[int, int]) -> tuple[Sequence[str], Sequence[str]]:
        """Return the labels of the rows and columns of an array, or else their indices."""
        rows = self.key_labels if name in _OF_KEYS else self.query_labels
        over_keys = name in (*SQUARE, ROLLOUT)
        columns = self.key_labels if over_keys else (name,) if name == "lse" else None
        return rows or [*map(str, range(shape[0]))], columns or [*map(str, range(shape[1]))]

    def only_arrays(self, kind: str) -> Mapping[str, npt.NDArray[Any]]:
        """Return the arrays; refuse results that are not arrays."""
        if self.extra or not self.arrays:
            found = ", ".join(self.extra) or "none"
            raise OutputError(
                f"{kind} holds only arrays; found {found}",
                hint="use JSON or YAML for it, or choose arrays",
            )
        return self.arrays

    def one_list(self) -> list[Mapping[str, Any]] | None:
        """Return the list of mappings if it is the only result, or None."""
        lists = list(self.extra.values())
        if self.arrays or len(lists) != 1 or not isinstance(lists[0], list):
            return None
        return lists[0]

    def one_array(self, kind: str) -> tuple[str, npt.NDArray[Any]]:
        """Return the name and the values of the only array."""
        names = list(self.only_arrays(kind))
        if len(names) > 1:
            raise OutputError(
                f"{kind} holds one array; found {len(names)}: {', '.join(names)}",
                hint="choose one (--show NAME, --save NAME=PATH), or use NPZ, JSON or YAML",
            )
        return names[0], self.arrays[names[0]]

    def one_matrix(self, kind: str) -> tuple[str, npt.NDArray[Any]]:
        """Return the name of the only array, and its values as a matrix."""
        name, array = self.one_array(kind)
        # lse has an axis less than matrices: (1, L) is the column of one head, not a row.
        natural = 1 if name == "lse" else 2
        while array.ndim > natural and array.shape[0] == 1:
            array = array[0]
        if array.ndim > 2:
            raise OutputError(
                f"{kind} holds a matrix, but {name} has shape {array.shape}",
                hint="choose one matrix with --batch and --head, or use .npy or .json",
            )
        return name, array[:, None] if array.ndim == 1 else array


class Format(NamedTuple):
    """A format of files; ``hold`` raises an error for results that ``write`` cannot write.

    A ``single`` format holds one array.
    """

    write: Callable[[BinaryIO, Results], None]
    suffixes: tuple[str, ...]
    hold: Callable[[Results], object] = lambda _: None
    single: bool = False


def _table(name: str, separator: str) -> Format:
    write_table, kind = late("attncli.save.tables", "write_table"), name.upper()
    return Format(
        lambda stream, results: write_table(stream, results, separator),
        (f".{name}",),
        lambda results: results.one_list() is None and results.one_matrix(kind),
        single=True,
    )


def _refuse_zarr(_stream: BinaryIO, _results: Results) -> None:
    raise OutputError("Zarr is a folder: only compute --save NAME.zarr writes it")


FORMATS = {
    "csv": _table("csv", ","),
    "tsv": _table("tsv", "\t"),
    "npy": Format(
        late("attncli.save.binary", "write_npy"),
        (".npy",),
        lambda results: results.one_array("NPY"),
        single=True,
    ),
    "npz": Format(
        late("attncli.save.binary", "write_npz"),
        (".npz",),
        lambda results: results.only_arrays("NPZ"),
    ),
    "zarr": Format(_refuse_zarr, (".zarr",)),
    "json": Format(late("attncli.save.documents", "write_json"), (".json",)),
    "yaml": Format(late("attncli.save.documents", "write_yaml"), (".yaml", ".yml")),
}


def format_of(path: str, default: str | None = None) -> str:
    """Return the format of a file by the suffix of its name."""
    suffix = Path(path).suffix.lower()
    for name, kind in FORMATS.items():
        if suffix in kind.suffixes:
            return name
    if default is not None and not suffix:
        return default
    known = ", ".join(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
    raise OutputError(
        f"cannot tell the format of {path} from its name: expected one of {known}",
        hint="give the file one of these suffixes",
    )


def write(stream: BinaryIO, results: Results, name: str) -> None:
    """Write results to a stream, which need not be seekable; numbers read back exactly.

    Tables hold one array or one list of mappings, NPY one array, NPZ arrays and labels. JSON and
    YAML hold everything; in JSON, −inf is null.
    """
    FORMATS[name].write(stream, results)


def save(files: Iterable[tuple[str, Results, str]]) -> None:
    """Write results to their files: all of them whole, or none."""
    with ExitStack() as opened:
        # Pipes and devices come last. No file is replaced before all files are on the disk.
        for path, results, name in sorted(files, key=lambda file: is_direct(file[0])):
            stream = opened.enter_context(whole_file(path))
            write(stream, results, name)
            stream.flush()
            if not is_direct(path):
                os.fsync(stream.fileno())
