"""Read ``.pt`` and ``.pth`` with PyTorch: tensors, alone or in dicts, tuples and lists.

``torch.load(weights_only=True)`` makes tensors and plain containers, and runs nothing in the file.
"""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

from attncli.errors import InputError
from attncli.errors.text import printable
from attncli.loading.contents import Contents, LazyEntries, LoadedMapping
from attncli.loading.npy import entry_of
from attncli.numerics.dtypes import as_bfloat16

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.loading.source import Source

# The commands also convert parameters, bfloat16, tensors on a GPU, and tensors that share memory.
_CONVERT = (
    "install PyTorch (pip install attncli[torch]), or convert the file in a Python that has it: "
    'x = torch.load("x.pt", map_location="cpu"), then for a tensor '
    'numpy.save("x.npy", x.detach().float().numpy()), or for a dict of tensors '
    'numpy.savez("x.npz", **{n: t.detach().float().numpy() for n, t in x.items()})'
)
# The most bytes of data.pkl, items of a container, and levels of containers; deeper items are left
# out.
_MOST_DESCRIBED, _MOST_TENSORS, _MOST_LEVELS = 16 * 2**20, 100_000, 8


def read(source: Source) -> Contents:
    """Map the tensors of a PyTorch file."""
    _check_archive(source)
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        what = f"{source.name} is a PyTorch file, which only PyTorch reads, and it is not installed"
        raise InputError(what, hint=_CONVERT) from error
    file: Any = io.BytesIO(source.data) if source.path is None else str(source.path)
    try:
        held = torch.load(file, map_location="cpu", weights_only=True, mmap=source.path is not None)
    except Exception as error:
        reason = printable(str(error).strip().splitlines()[0] if str(error).strip() else "damaged")
        raise InputError(
            f"{source.name} holds more than tensors, or is damaged ({reason:.200})",
            hint="save its tensors alone: torch.save(model.state_dict(), file)",
        ) from error
    entries = {"": held} if isinstance(held, torch.Tensor) else dict(_flat(held, "", 0))
    if not any(isinstance(value, torch.Tensor) for value in entries.values()):
        raise InputError(f"{source.name}: expected tensors; found none")

    def entry(name: str) -> object:
        return _entry(entries[name], f"{source.name}#{printable(name)}" if name else source.name)

    return LoadedMapping(LazyEntries(entries, entry), source.name, source.folder, dump=True)


def _check_archive(source: Source) -> None:
    """Refuse an archive that unpacks to more bytes than the file has."""
    try:
        with source.open() as stream, zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise InputError(f"{source.name} is a damaged PyTorch file: {error}") from error
    packed = any(info.compress_type != 0 for info in infos)
    size = sum(info.file_size for info in infos)
    described = sum(info.file_size for info in infos if info.filename.endswith("data.pkl"))
    if packed or size > source.size or described > _MOST_DESCRIBED:
        raise InputError(f"{source.name} is not a PyTorch file as torch.save writes it")


def _flat(held: object, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield nested values under names of their keys, joined by points."""
    if depth > _MOST_LEVELS:
        return
    if not isinstance(held, dict | tuple | list):
        yield name or "value", held
        return
    items = list(held.items() if isinstance(held, dict) else enumerate(held))
    for key, value in items[:_MOST_TENSORS]:
        yield from _flat(value, f"{name}.{key}" if name else str(key), depth + 1)


def _entry(value: Any, name: str) -> object:
    """Return a tensor as an array, and a plain value unchanged."""
    import torch  # noqa: PLC0415

    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, bool | int | float | str | type(None)) else str(value)
    try:
        tensor = value.detach()
        if tensor.dtype == torch.bfloat16:
            return entry_of(as_bfloat16(tensor.contiguous().view(torch.int16).numpy()), name)
        values = tensor.numpy()
    except (RuntimeError, TypeError) as error:
        what = f"found {value.dtype}, {value.layout}"
        raise InputError(f"{name}: expected a dense tensor of real numbers; {what}") from error
    if values.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected real numbers; found dtype {values.dtype.name}")
    return entry_of(values, name)
