"""The formats in which results are written, by name and by suffix."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import OutputError
from attncli.errors.late import late
from attncli.save.files import is_direct, whole_file
from attncli.save.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

__all__ = ["FORMATS", "Results", "format_of", "save", "write"]


class Format(NamedTuple):
    """How results become bytes; ``hold`` raises an error for results that it cannot hold."""

    write: Callable[[BinaryIO, Results], None]
    suffixes: tuple[str, ...]
    hold: Callable[[Results], object] = lambda _: None
    single: bool = False


_write_table = late("attncli.save.matrices", "write_table")
_hold_table = late("attncli.save.matrices", "hold_table")


def _table(suffix: str, separator: str) -> Format:
    return Format(
        lambda stream, results: _write_table(stream, results, separator),
        (suffix,),
        lambda results: _hold_table(results, separator),
        single=True,
    )


def _refuse_zarr(_stream: BinaryIO, _results: Results) -> None:
    """Refuse to write a folder into a stream."""
    raise OutputError("Zarr is a folder, which compute --save NAME.zarr alone writes")


FORMATS = {
    "csv": _table(".csv", ","),
    "tsv": _table(".tsv", "\t"),
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
    """Return the name of the format that the name of a file asks for."""
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

    Tables hold one array or one list of figures, NPY one array, NPZ arrays and labels, JSON and
    YAML everything; in JSON, −inf is null.
    """
    FORMATS[name].write(stream, results)


def save(files: Iterable[tuple[str, Results, str]]) -> None:
    """Write each of the results to its file in its format: all of them whole, or none at all."""
    with ExitStack() as opened:
        # What is written directly comes last; no file is replaced before all are on the disk.
        for path, results, name in sorted(files, key=lambda file: is_direct(file[0])):
            stream = opened.enter_context(whole_file(path))
            write(stream, results, name)
            stream.flush()
            if not is_direct(path):
                os.fsync(stream.fileno())
