"""One matrix as CSV or TSV, a row a line, perhaps with its labels; or one list of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncli.errors import OutputError
from attncli.save.numbers import number_lines
from attncli.save.records import line_of, write_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    import numpy.typing as npt

    from attncli.save.results import Results

__all__ = ["hold_csv", "hold_tsv", "write_csv", "write_tsv"]


def write_csv(stream: BinaryIO, results: Results) -> None:
    """Write the one array as comma-separated lines, see `attncli.save.formats.write`."""
    _write(stream, results, "CSV", ",")


def write_tsv(stream: BinaryIO, results: Results) -> None:
    """Write the one array as tab-separated lines, see `attncli.save.formats.write`."""
    _write(stream, results, "TSV", "\t")


def hold_csv(results: Results) -> None:
    """Raise what `write_csv` would, without writing."""
    _hold(results, "CSV")


def hold_tsv(results: Results) -> None:
    """Raise what `write_tsv` would, without writing."""
    _hold(results, "TSV")


def _hold(results: Results, kind: str) -> None:
    if results.one_list() is None:
        _matrix(results, kind)


def _write(stream: BinaryIO, results: Results, kind: str, separator: str) -> None:
    records = results.one_list()
    if records is not None:
        write_records(stream, records, separator)
        return
    name, matrix = _matrix(results, kind)
    lines = number_lines(matrix, separator)
    if results.labelled:
        names = results.names_of(name, (matrix.shape[0], matrix.shape[1]))
        lines = _labelled(lines, *names, separator)
    stream.writelines(f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)


def _labelled(
    lines: Iterator[str], rows: Sequence[str], columns: Sequence[str], separator: str
) -> Iterator[str]:
    """Yield a header whose first cell is empty, and each line behind its label."""
    yield line_of(["", *columns], separator)
    for label, line in zip(rows, lines, strict=True):
        yield f"{line_of([label], separator)}{separator}{line}"


def _matrix(results: Results, kind: str) -> tuple[str, npt.NDArray[Any]]:
    """Return the array without leading axes of length 1, a vector as one column, and its name."""
    name, array = results.one_array(kind)
    # lse has one axis less by nature: (1, L) is one head's column, not a row.
    natural = 1 if name == "lse" else 2
    while array.ndim > natural and array.shape[0] == 1:
        array = array[0]
    if array.ndim > 2:
        raise OutputError(
            f"{kind} holds a matrix, but {name} has shape {array.shape}",
            hint="choose one matrix with --batch and --head, or use .npy or .json",
        )
    return name, array[:, None] if array.ndim == 1 else array
