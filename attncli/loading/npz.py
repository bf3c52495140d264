"""Read NPZ, a ZIP of NPY arrays, one member at a time and within bounds."""

from __future__ import annotations

import io
import struct
import weakref
import zipfile
import zlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from attncli.errors import AttnError, InputError
from attncli.errors.text import printable, quoted
from attncli.loading.contents import LazyEntries, LoadedMapping, Member
from attncli.loading.npy import Header, entry_of, in_native_order, read_header
from attncli.loading.registry import AS_CSV
from attncli.loading.source import Source, refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_MEMBERS = 10_000
_TOO_MANY = f"it lists more than {_MAX_MEMBERS} members"
# Members of Excel's files, and of LibreOffice's.
_SPREADSHEETS = {"[Content_Types].xml", "mimetype"}
# Bytes. zipfile reads the directory at the end of an archive with a single call.
_DIRECTORY_LIMIT = 2 * 2**20
# Members that unpack to more than 100 times their packed bytes may have 256 MiB together. Numbers
# do not pack so well; a mask may.
_BOMB_SIZE, _BOMB_RATIO = 256 * 2**20, 100
# Bytes read at once from a member.
_CHUNK = 2**20
# The methods of compression that NumPy writes (ZIP specification, section 4.4.5).
_STORED, _DEFLATED = 0, 8


def read(source: Source) -> LoadedMapping:
    """Read the directory of an NPZ file; each member is read when it is asked for."""
    with _damage(source), ExitStack() as files:
        stream: Any = files.enter_context(source.open())
        archive = files.enter_context(zipfile.ZipFile(files.enter_context(_Bounded(stream))))
        names = _member_names(archive, source)
        kept_open = files.pop_all()

    def entry(name: str) -> object:
        full = _full_name(source, name)
        with _damage(source):
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as stream:
                claimed = read_header(cast("Any", stream), full)
                stored = claimed.check(info.file_size, full, source.dtype)
                values = _elements(stream, claimed, stored, full)
        return entry_of(in_native_order(values, full, source.dtype), full)

    def header(name: str) -> Member:
        with _damage(source), archive.open(f"{name}.npy") as stream:
            found = read_header(cast("Any", stream), _full_name(source, name))
        return found.member(name, source.dtype)

    entries = LazyEntries(names, entry)
    # Kept open: reading the directory again for each of thousands of members takes minutes.
    weakref.finalize(entries, kept_open.close)
    return LoadedMapping(entries, source.name, source.folder, dump=True, header=header)


class _Bounded(io.BufferedReader):
    """A file that refuses to read more than `_DIRECTORY_LIMIT` at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        bounded = size is not None and 0 <= size <= _DIRECTORY_LIMIT
        data = super().read(size if bounded else _DIRECTORY_LIMIT + 1)
        if len(data) > _DIRECTORY_LIMIT:
            raise zipfile.BadZipFile(_TOO_MANY)
        return data


@contextmanager
def _damage(source: Source) -> Iterator[None]:
    """Turn errors of zipfile into an `InputError` that names the file."""
    try:
        with refusals(source.name):
            yield
    except AttnError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError) as error:
        raise InputError(f"{source.name} is a damaged NPZ file: {error}") from error
    except (NotImplementedError, RuntimeError, ValueError, LookupError) as error:
        # zipfile raises these for encryption, unknown methods and impossible offsets.
        raise InputError(f"{source.name} is not an NPZ file as NumPy writes it") from error


def _member_names(archive: zipfile.ZipFile, source: Source) -> list[str]:
    infos = archive.infolist()
    if not infos:
        raise InputError(f"{source.name} holds no arrays")
    if len(infos) > _MAX_MEMBERS:
        raise zipfile.BadZipFile(_TOO_MANY)
    if any(info.filename in _SPREADSHEETS for info in infos):
        sheets = f"{source.name} is a spreadsheet or another document, which is not read"
        raise InputError(sheets, hint=AS_CSV)
    for info in infos:
        _check_member(info, source)
    _check_sizes(infos, source)
    names = [info.filename.removesuffix(".npy") for info in infos]
    if len(set(names)) < len(names):
        raise InputError(f"{source.name} holds two members of the same name")
    return names


def _check_sizes(infos: list[zipfile.ZipInfo], source: Source) -> None:
    """Refuse archives whose members unpack to far more than the file holds."""
    packed = sum(info.compress_size for info in infos)
    if packed > source.size:
        what = f"claims members of {packed} packed bytes; the file has {source.size}"
        raise InputError(f"{source.name} {what}")
    dense = [info for info in infos if info.file_size > _BOMB_RATIO * info.compress_size]
    total, packed = sum(i.file_size for i in dense), sum(i.compress_size for i in dense)
    if total > _BOMB_SIZE:
        what = f"holds {packed} bytes that would unpack to {total}"
        raise InputError(f"{source.name} {what}: no arrays of numbers compress so well")


def _check_member(info: zipfile.ZipInfo, source: Source) -> None:
    what = f"the member {quoted(info.filename)} of {source.name}"
    if not info.filename.endswith(".npy"):
        raise InputError(f"{what} is not an NPY array")
    if info.flag_bits & 1 or info.compress_type not in {_STORED, _DEFLATED}:
        raise InputError(f"{what} is encrypted, or compressed in a way that NumPy does not write")
    if info.compress_type == _STORED and info.file_size > source.size:
        raise InputError(f"{what} claims {info.file_size} bytes; the file has {source.size}")


def _elements(stream: Any, header: Header, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    values = np.empty(header.shape, dtype, order="F" if header.fortran else "C")
    room = values.ravel(order="K").view(np.uint8).data
    done = 0
    while done < len(room):
        got = stream.readinto(room[done : done + _CHUNK])
        if not got:
            raise InputError(f"{name} ends after {done} of {len(room)} bytes")
        done += got
    return values


def _full_name(source: Source, name: str) -> str:
    return f"{source.name}#{printable(name)}"
