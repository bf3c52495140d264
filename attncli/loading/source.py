"""The bytes of a file, a pipe or standard input."""

from __future__ import annotations

import gc
import io
import itertools
import os
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.errors.text import did_you_mean, printable, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

# The name of standard input in messages; on the command line it is -.
STANDARD_INPUT = "standard input"

# Bytes. A pipe may never end, so reading ends here with an error.
STREAM_LIMIT = 256 * 2**20
# The most bytes of a text, and the most numbers, words and lists in it: these are read in seconds
# and 500 MB. Tables of plain numbers are read ten times as fast, so their limits are higher.
TEXT_LIMIT, MOST_CELLS = 32 * 2**20, 2_000_000
NUMBERS_LIMIT, MOST_NUMBERS = 64 * 2**20, 5_000_000
# The hint for a missing file looks at this many names in its folder, and names the nearest one if
# their similarity (0 to 1) is at least this.
_MOST_ENTRIES, _ALIKE = 2000, 0.75
# Paths that begin so lead to open files, as /dev/stdin and the shell's <(command) do.
_OF_STREAMS = ("/dev/", "/proc/")
# Characters; no operating system takes a longer path.
_LONGEST_PATH = 2**16
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# A folder with one of these files is a Zarr group or array, of format 3 or 2.
_ZARR = ("zarr.json", ".zgroup", ".zarray")
BOM = b"\xef\xbb\xbf"
_AS_UTF8 = (
    "save text as UTF-8. For raw numbers, write an NPY file in Python: "
    'np.save("x.npy", np.fromfile(file, np.float32).reshape(shape))'
)


class Source(NamedTuple):
    """The bytes of one input: on disk (`path`), or read from a pipe into memory (`data`).

    Messages show the ``name``. File names inside the input are relative to the ``folder``. The last
    three fields are the options of `attncli.loading.read`.
    """

    name: str
    suffix: str
    size: int
    folder: str = "."
    path: Path | None = None
    data: bytes = b""
    dtype: str | None = None
    header: str = "auto"
    skipped: frozenset[str] = frozenset()

    def open(self) -> BinaryIO:
        """Open the bytes for reading and seeking."""
        return io.BytesIO(self.data) if self.path is None else self.path.open("rb")

    def part(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, or fewer where the file ends."""
        with self.open() as stream:
            stream.seek(start)
            return stream.read(length)

    def text(self) -> str:
        """Return the whole text."""
        return self.text_bytes().decode("utf-8")

    def text_bytes(self, limit: int = TEXT_LIMIT) -> bytes:
        """Return the whole text as UTF-8 bytes; refuse other encodings and NUL bytes."""
        if self.size > limit:
            raise too_long(self.name, limit)
        data = self.part(0, self.size)
        if data.startswith(_UTF16):
            raise self._no_text(data, 0, "UTF-8 text; found UTF-16 or UTF-32")
        if b"\0" in data:
            raise self._no_text(data, data.find(b"\0"), "text; found a NUL byte")
        data = data.removeprefix(BOM)
        if not data or data.isspace():
            raise InputError(f"{self.name} is empty")
        try:
            data.isascii() or data.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong = f"found the byte 0x{data[error.start]:02x}"
            raise self._no_text(data, error.start, f"UTF-8 text; {wrong}") from error
        return data

    def _no_text(self, data: bytes, at: int, what: str) -> InputError:
        line, byte = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
        place = f"{self.name}: line {line}: expected {what} (byte {byte} of the line)"
        return InputError(place, hint=_AS_UTF8)

    def array(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        start: int,
        order: Literal["C", "F"] = "C",
    ) -> npt.NDArray[Any]:
        """Return the elements that begin at byte `start`; a file is mapped, not read."""
        if self.path is None:
            count = int(np.prod(shape, dtype=np.int64))
            flat = np.frombuffer(self.data, dtype, count, start)
            return flat.reshape(shape, order=order)
        try:
            return np.asarray(np.memmap(self.path, dtype, "r", start, shape, order))
        except ValueError as error:
            raise InputError(f"{self.name} changed while it was being read") from error


def open_source(path: str, stdin: BinaryIO | None = None) -> Source:
    """Open the file at `path`; streams are read to their end."""
    if path == "-":
        # The parent process may have closed standard input.
        stream = stdin or (None if sys.stdin is None else sys.stdin.buffer)
        if stream is None:
            raise InputError("standard input is closed", hint="name a file")
        with refusals(STANDARD_INPUT):
            data = _drained(stream, STANDARD_INPUT)
        source = Source(STANDARD_INPUT, "", len(data), data=data)
    else:
        with refusals(printable(path[:_LONGEST_PATH])):
            source = _file(path)
    if source.size == 0:
        hint = (
            "nothing came through the pipe: pipe a file in, or name files" if path == "-" else None
        )
        raise InputError(f"{source.name} is empty", hint=hint)
    return source


# Unlike Path, os.path returns False for impossible names.
def is_zarr(path: str) -> bool:
    """Return whether `path` names a folder that holds a Zarr group or array."""
    return any(os.path.isfile(f"{path}/{name}") for name in _ZARR)  # noqa: PTH113


def is_folder(path: str) -> bool:
    """Return whether `path` names a folder that may hold files of recorded calls."""
    return os.path.isdir(path) and not is_zarr(path)  # noqa: PTH112


def is_file(path: str, *, or_pipe: bool = False) -> bool:
    """Return whether `path` names a regular file, or a pipe, such as the shell's ``<(command)``."""
    if path == "-" or not os.path.exists(path):  # noqa: PTH110
        return False
    return Path(path).is_file() or (or_pipe and Path(path).is_fifo())


def too_many_cells(name: str, found: int, most: int = MOST_CELLS) -> InputError:
    """Return the error for a text with too many cells."""
    msg = f"{name}: expected at most {most:,} cells; found about {found:,}"
    return InputError(msg, hint="save large arrays as NPY or NPZ, which a problem in YAML may name")


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the garbage collector, which would only cost time: parsed data has no cycles."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Turn errors of the operating system into an `InputError` about the file `name`."""
    try:
        yield
    except OSError as error:
        msg = f"{name} cannot be read: {error.strerror or error}"
        raise InputError(msg) from error
    except UnicodeError as error:
        raise InputError(f"{name} is not a file name that this system can hold") from error
    except MemoryError as error:
        hint = "give a part of it, or an NPY file: attncli reads only the parts that it needs"
        raise InputError(f"{name} does not fit in memory", hint=hint) from error


def _file(path: str) -> Source:
    name = printable(path[:_LONGEST_PATH])
    if not path or "\0" in path or len(path) > _LONGEST_PATH:
        raise InputError(f"{quoted(path)} is not a file name")
    found = Path(path)
    try:
        status = found.stat()
    except FileNotFoundError as error:
        raise _missing(found, name) from error
    suffix = found.suffix.lower()
    # File names in a text from /dev/stdin or <(command) are relative to the current folder.
    folder = "." if path.startswith(_OF_STREAMS) else str(found.parent)
    is_pipe = stat.S_ISFIFO(status.st_mode)
    if not is_pipe and not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device"
        raise InputError(f"{name}: expected a file; found {kind}")
    with found.open("rb") as stream:  # an unreadable file is refused now, not at its first member
        if not is_pipe:
            return Source(name, suffix, status.st_size, folder, path=found)
        data = _drained(stream, name)
    return Source(name, suffix, len(data), folder, data=data)


def _drained(stream: BinaryIO, name: str) -> bytes:
    whole = io.BytesIO()
    while chunk := stream.read(2**20):
        if whole.tell() + len(chunk) > STREAM_LIMIT:
            raise too_long(name, STREAM_LIMIT)
        whole.write(chunk)
    return whole.getvalue()


def too_long(name: str, limit: int) -> InputError:
    """Return the error for a file or a stream with too many bytes."""
    hint = "save it as an NPY file and give its name: attncli reads only the parts that it needs"
    return InputError(f"{name} is longer than {limit // 2**20} MiB", hint=hint)


def _missing(path: Path, name: str) -> InputError:
    """Return the error for a missing file, with the most similar name as a hint."""
    if path.is_symlink():
        target = printable(str(path.readlink()))
        return InputError(f"{name} is a link to {target}, which does not exist")
    hint = None
    if not path.parent.is_dir():
        hint = f"there is no folder {printable(str(path.parent))}"
    elif name.startswith("-"):
        hint = "the option before it needs a file"
    else:
        with suppress(OSError):
            entries = itertools.islice(path.parent.iterdir(), _MOST_ENTRIES)
            # The first letters must agree: q.csv is no misspelling of k.csv, but one of q.cvs.
            alike = [entry for entry in entries if entry.name[:1] == path.name[:1]]
            names = [entry.name for entry in alike if entry.is_file()]
            hint = did_you_mean(path.name, names, likeness=_ALIKE)
    return InputError(f"{name} does not exist", hint=hint)
