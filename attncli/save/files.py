"""Write files and Zarr folders that appear whole or not at all.

The bytes go to a temporary file in the folder of the target. It gets the name of the target only
when it is complete and on the disk. Devices, named pipes and open descriptors are written directly.
"""

from __future__ import annotations

import atexit
import errno
import os
import shlex
import shutil
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attncli.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAY, _ROOM = "name a file that you may write", "free some space, or name a file on another disk"
_HINTS = {
    errno.ENOTDIR: "name a file in a folder",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _MAY),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or save less",
    errno.EBUSY: "name another file and copy it there afterwards",
}
# Without this flag, Windows writes the end of a line as two bytes.
_BINARY = getattr(os, "O_BINARY", 0)
# What tells a folder of Zarr, format 3 and format 2.
_ZARR = ("zarr.json", ".zgroup", ".zarray")
# Temporary files and folders that may still exist.
_BEGUN: set[Path] = set()


@contextmanager
def whole_file(path: str) -> Iterator[BinaryIO]:
    """Yield a stream; its bytes become the file at `path` if the block ends well.

    After an exception, Ctrl-C included, the old file is unchanged and no temporary file is left.
    The new file gets the permissions of the old one. A symbolic link stays, and its target is
    replaced. A file in a folder that takes no new files is refused, since writing into the old file
    could leave half of the result.
    """
    opened = _direct(path) if is_direct(path) else _replacement(path)
    try:
        with opened as stream:
            yield stream
            stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # A failed write has no file name. An error with another comes from reading, in the caller.
        if error.filename not in (None, path):
            raise
        raise _refusal(path, error) from error


@contextmanager
def whole_folder(path: str) -> Iterator[str]:
    """Yield a temporary folder; it becomes the Zarr folder at `path` if the block ends well."""
    refuse_unwritable_folder(path)
    target = Path(path).resolve()
    temporary = _beside(target)
    try:
        temporary.mkdir()
        yield str(temporary)
        old = temporary.with_suffix(".old")
        if target.exists():
            target.rename(old)
        temporary.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise _refusal(path, error) from error
    finally:
        _remove(temporary)
        # A thread that writes on makes the folder anew; it is removed again at exit.
        _BEGUN.add(temporary)


def is_direct(path: str) -> bool:
    """Return whether `path` is a device, a pipe, or an open file such as ``/dev/stdout``."""
    status = _status(path)
    if path.endswith("/") or (status is not None and stat.S_ISDIR(status.st_mode)):
        raise OutputError(
            f"cannot write {path}: expected a file; found a folder",
            hint=f"name a file in it: {path.rstrip('/')}/NAME",
        )
    regular = status is None or stat.S_ISREG(status.st_mode)
    return not regular or _own_descriptor(path) is not None


def refuse_inputs(outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """Refuse an output that is one of the inputs or is named twice, also through links."""
    read = {_identity(path): path for path in inputs}
    written: dict[object, str] = {}
    for path in outputs:
        identity = _identity(path)
        if identity is None or _own_descriptor(path) is not None:
            continue
        if identity in read:
            raise OutputError(
                f"the output {path} is the same file as the input {read[identity]}",
                hint="write to another file; nothing was changed",
            )
        if identity in written:
            raise OutputError(
                f"the outputs {written[identity]} and {path} are the same file",
                hint="give each output a file of its own, or save both in one .npz or .json",
            )
        written[identity] = path


def refuse_unwritable(outputs: Iterable[str]) -> None:
    """Refuse outputs that `whole_file` cannot write, before anything is computed."""
    for path in outputs:
        if not is_direct(path):
            target = Path(path).resolve()
            _old_status(path, target)
            temporary = _beside(target)
            try:
                _created(path, temporary).close()
            finally:
                _remove(temporary)


def refuse_unwritable_folder(path: str, inputs: Iterable[str] = ()) -> None:
    """Refuse a folder that cannot be made or that holds an input, before anything is computed."""
    target = Path(path).resolve()
    for file in inputs:
        if target == Path(file).resolve() or target in Path(file).resolve().parents:
            raise OutputError(f"the output {path} holds the input {file}")
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {path}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: the folder {target.parent} takes no new folders")
    if target.exists() and not any((target / name).is_file() for name in _ZARR):
        raise OutputError(
            f"cannot write {path}: it exists and is not a Zarr folder",
            hint="name another folder, or remove it first",
        )


def _beside(target: Path) -> Path:
    """Return the name of a temporary file or folder beside its target."""
    # The name of the target is not part of it: the result could be too long.
    temporary = target.with_name(f".attncli-{os.urandom(8).hex()}.tmp")
    _BEGUN.add(temporary)
    return temporary


def _remove(temporary: Path) -> None:
    """Remove a temporary file or folder, if it is there."""
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
    with suppress(OSError):
        temporary.unlink()
    # If a thread has written into it meanwhile, it is removed at exit.
    if not os.path.lexists(temporary):
        _BEGUN.discard(temporary)


@atexit.register
def _remove_the_rest() -> None:
    """Remove temporary files and folders that are left because a signal interrupted `_remove`."""
    for temporary in tuple(_BEGUN):
        _remove(temporary)


def _identity(path: str) -> object:
    """Return a key that is equal for two names of one file; None for pipes and devices."""
    status = os.stat(0) if path == "-" else _status(path)
    if status is None:
        return Path(path).resolve()
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _status(path: str) -> os.stat_result | None:
    """Return the status of the file at `path`; None if there is none."""
    if not path:
        raise OutputError("cannot write: the name of the file is empty")
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(path, error) from error
    except ValueError as error:
        raise OutputError(f"cannot write {path!r}: this cannot be a file name ({error})") from error


def _own_descriptor(path: str) -> int | None:
    """Return N where `path` leads to ``/dev/fd/N`` or ``/proc/self/fd/N``."""
    own = {Path("/dev/fd"), Path("/proc/self/fd").resolve()}
    link = Path(path)
    while link.name:
        if link.parent.resolve() in own and link.name.isdecimal():
            return int(link.name)
        if not link.is_symlink():
            break
        link = link.parent / link.readlink()
    return None


@contextmanager
def _direct(path: str) -> Iterator[BinaryIO]:
    descriptor = _own_descriptor(path)
    # A duplicate shares the position in the file, so earlier output is not overwritten.
    opened = os.open(path, os.O_WRONLY | _BINARY) if descriptor is None else os.dup(descriptor)
    with os.fdopen(opened, "wb") as stream:
        yield stream


@contextmanager
def _replacement(path: str) -> Iterator[BinaryIO]:
    """Yield a temporary file beside the target, and move it there at the end."""
    target = Path(path).resolve()
    # The name is known before the file exists, so Ctrl-C can never leave the file behind.
    temporary = _beside(target)
    try:
        old = _old_status(path, target)
        with _created(path, temporary) as stream:
            if old is not None:
                _keep_permissions(stream.fileno(), old)
            yield stream
            stream.flush()
            # Without this, a crash of the machine could leave an empty file under the new name.
            os.fsync(stream.fileno())
        # The file is closed now, as Windows demands of a file to move.
        try:
            temporary.replace(target)
        except OSError as error:
            raise _refusal(path, error) from error
    finally:
        _remove(temporary)


def _old_status(path: str, target: Path) -> os.stat_result | None:
    """Return the status of an old file, if there is one; refuse a write-protected one."""
    # Renaming would replace even a write-protected file; ordinary tools refuse to write to one.
    try:
        descriptor = os.open(target, os.O_WRONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _created(path: str, temporary: Path) -> BinaryIO:
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        return os.fdopen(descriptor, "w+b")
    except OSError as error:
        folder = str(temporary.parent)
        if isinstance(error, FileNotFoundError) and not temporary.parent.exists():
            raise OutputError(
                f"cannot write {path}: the folder {folder} does not exist",
                hint=f"create it first (mkdir -p {shlex.quote(folder)}), or name another",
            ) from error
        raise OutputError(
            f"cannot write {path}: the folder {folder} takes no new files"
            f" ({(error.strerror or str(error)).lower()})",
            hint="name a file in a folder that you may write, or redirect the output of --format",
        ) from error


def _keep_permissions(descriptor: int, old: os.stat_result) -> None:
    if not (hasattr(os, "fchmod") and hasattr(os, "fchown")):  # Windows
        return
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        # Only root may change the owner; other users keep only the permissions.
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _refusal(path: str, error: OSError) -> OutputError:
    """Return the error for a file that the system refuses to write."""
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"cannot write {path}: {reason}", hint=_HINTS.get(error.errno or 0))
