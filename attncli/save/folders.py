"""Folders that appear whole or not at all, as Zarr's."""

from __future__ import annotations

import atexit
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["refuse_unwritable_folder", "whole_folder"]

# Temporary folders that may be there.
_BEGUN: set[Path] = set()


@contextmanager
def whole_folder(path: str) -> Iterator[str]:
    """Give a temporary folder that becomes `path` when the block ends well."""
    refuse_unwritable_folder(path)
    target = Path(path).resolve()
    temporary = target.with_name(f".attncli-{os.urandom(8).hex()}.tmp")
    _BEGUN.add(temporary)
    try:
        temporary.mkdir()
        yield str(temporary)
        old = temporary.with_suffix(".old")
        if target.exists():
            target.rename(old)
        temporary.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        _remove(temporary)


def refuse_unwritable_folder(path: str, inputs: Iterable[str] = ()) -> None:
    """Refuse a place where no folder can be made, and one of the inputs, before work starts."""
    target = Path(path).resolve()
    for file in inputs:
        if target == Path(file).resolve() or target in Path(file).resolve().parents:
            raise OutputError(f"the output {path} holds the input {file}")
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {path}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: the folder {target.parent} takes no new folders")
    known = ("zarr.json", ".zgroup", ".zarray")
    if target.exists() and not any((target / name).is_file() for name in known):
        raise OutputError(
            f"cannot write {path}: something else than a folder of Zarr stands there",
            hint="name another folder, or remove it first",
        )


@atexit.register
def _remove_the_rest() -> None:
    """Remove temporary folders whose removal a signal has interrupted."""
    for temporary in tuple(_BEGUN):
        _remove(temporary)


def _remove(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    _BEGUN.discard(temporary)
