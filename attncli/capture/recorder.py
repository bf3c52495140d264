"""`capture`: a block in which every attention call of PyTorch becomes a file."""

from __future__ import annotations

import threading
import warnings
from contextlib import ExitStack, contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.capture.dumps import on_cpu, size_of, write
from attncli.capture.modules import name_of, watched_modules
from attncli.capture.wrapping import wrapped_doors
from attncli.errors import AttnWarning, OutputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import torch

    from attncli.capture.calls import Call


class Captured:
    """The calls that a block has recorded so far.

    Attributes
    ----------
    folder : Path
    files : list of Path
        The dumps, in the order of the calls.
    bytes : int
        How many bytes their arrays take.
    tokens : sequence of str, or None
        Names of the tokens of the next calls. A call with S keys takes the first S of them; its
        queries are the last L of these.
    unseen : list of str
        What could not be recorded, each once, with what to do.
    gradients : bool
        Whether the gradients of each call are recorded, too.
    """

    def __init__(
        self,
        folder: Path,
        layers: Collection[int] | None,
        limit: int,
        limit_bytes: float,
        tokens: Sequence[str] | None,
        *,
        gradients: bool = False,
    ) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self.bytes = 0
        self.tokens = tokens
        self.unseen: list[str] = []
        self.gradients = gradients
        self._layers = layers
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._full = False
        self._numbers: dict[int, int] = {}
        self._modules: list[torch.nn.Module | None] = []  # kept: an id may be used again
        self._calls: dict[int, int] = {}
        self._lock = threading.Lock()

    def record(self, call: Call) -> None:
        """Write a call into the folder, unless it is left out or the limit is reached."""
        with self._lock:
            layer = self._layer(call.module)
            if self._full or (self._layers is not None and layer not in self._layers):
                return
            number = self._calls.get(layer, 0)
            self._calls[layer] = number + 1
            entries = {name: on_cpu(tensor) for name, tensor in call.entries().items()}
            size = size_of(entries)
            if len(self.files) >= self._limit or self.bytes + size > self._limit_bytes:
                self._stop(f"the limit of {self._limit} calls and {self._limit_bytes:.3g} bytes")
                return
            path = self.folder / f"layer-{layer:03d}-call-{number:04d}.safetensors"
            facts = self._facts(call, layer, number)
            try:
                write(str(path), entries, facts)
            except OutputError as error:
                self._stop(str(error))
                return
            self.files.append(path)
            self.bytes += size
        if self.gradients and call.watched is not None:
            call.watched.then(lambda grads: self._add(path, entries, grads, facts))

    def _add(
        self,
        path: Path,
        entries: dict[str, torch.Tensor],
        grads: dict[str, torch.Tensor],
        facts: dict[str, object],
    ) -> None:
        """Write a dump again, with the gradients of the call."""
        with self._lock:
            made = {
                name: on_cpu(tensor.reshape(entries[name[1:]].shape))
                if name[1:] in entries
                else on_cpu(tensor)
                for name, tensor in grads.items()
            }
            if self._full or self.bytes + size_of(made) > self._limit_bytes:
                self._stop(f"the limit of {self._limit_bytes:.3g} bytes leaves no gradients")
                return
            write(str(path), {**entries, **made}, facts)
            self.bytes += size_of(made)

    def say(self, what: str) -> None:
        """Warn once of what cannot be recorded."""
        with self._lock:
            if what in self.unseen:
                return
            self.unseen.append(what)
        warnings.warn(f"capture cannot see {what}", AttnWarning, stacklevel=5)

    def _stop(self, why: str) -> None:
        self._full = True
        text = f"capture stopped after {len(self.files)} calls: {why}"
        warnings.warn(text, AttnWarning, stacklevel=6)

    def _layer(self, module: torch.nn.Module | None) -> int:
        """Return the number of a layer. Modules are numbered in the order of their first calls."""
        if id(module) not in self._numbers:
            self._numbers[id(module)] = len(self._modules)
            self._modules.append(module)
        return self._numbers[id(module)]

    def _facts(self, call: Call, layer: int, number: int) -> dict[str, object]:
        module = call.module
        facts: dict[str, object] = {
            "schema": 1,
            "options": dict(call.options),
            "layer": layer,
            "call": number,
            "module": "" if module is None else name_of(module),
            "class": "" if module is None else type(module).__name__,
            "layer_idx": getattr(module, "layer_idx", None),
            "kernel": call.kernel,
            "dtype": str(call.query.dtype).removeprefix("torch."),
            "device": str(call.query.device),
        }
        return facts | self._labels(call)

    def _labels(self, call: Call) -> dict[str, object]:
        queries, keys = call.query.shape[-2], call.key.shape[-2]
        if self.tokens is None or not queries <= keys <= len(self.tokens):
            return {}
        names = [str(token) for token in self.tokens[:keys]]
        return {"query_labels": names[keys - queries :], "key_labels": names}


class _Wrappers:
    """The wrapped functions, which all open blocks of `capture` share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: list[Captured] = []
        self._stack = ExitStack()

    @contextmanager
    def to(self, captured: Captured) -> Iterator[None]:
        """Report every call to `captured`, too, while the block runs."""
        with self._lock:
            if not self._open:
                self._stack.enter_context(watched_modules())
                self._stack.enter_context(wrapped_doors(self._record, self._say, self._gradients))
            self._open.append(captured)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(captured)
                if not self._open:
                    self._stack.close()

    def _record(self, call: Call) -> None:
        for captured in [*self._open]:
            captured.record(call)

    def _gradients(self) -> bool:
        return any(captured.gradients for captured in self._open)

    def _say(self, what: str) -> None:
        for captured in [*self._open]:
            captured.say(what)


_WRAPPERS = _Wrappers()


@contextmanager
def capture(
    folder: str | PathLike[str],
    *,
    layers: int | Collection[int] | None = None,
    limit: int = 1000,
    limit_bytes: float = 4e9,
    tokens: Sequence[str] | None = None,
    gradients: bool = False,
) -> Iterator[Captured]:
    """Record every attention call inside the block as a problem file.

    It sees `torch.nn.functional.scaled_dot_product_attention`, `torch.nn.MultiheadAttention`, and
    the attention functions of Transformers' models. A model keeps the kernel that it uses. Each
    call becomes one safetensors file with ``query``, ``key``, ``value``, what masks it (``mask``,
    ``bias``, ``sinks``), and the kernel's own output ``out``. The options (scale, causal, softcap,
    …), the module's name, the layer's number, the dtype and the device are in its metadata. Every
    command of attncli reads the folder.

    Parameters
    ----------
    folder : str or path
        Made if missing. It may hold no dumps yet.
    layers : int or collection of int, optional
        Record these layers only. Layers count in the order of their first calls.
    limit : int
        The largest number of calls to record.
    limit_bytes : float
        The largest number of bytes to record. A warning says when a limit stops the recording.
    tokens : sequence of str, optional
        Names of the tokens. `Captured.tokens` can be set between calls, too.
    gradients : bool
        Record ``dcontext``, ``dquery``, ``dkey`` and ``dvalue``, too, when the backward pass
        reaches a call: ``attncli check`` judges them. Call ``backward`` inside the block.

    Yields
    ------
    Captured

    Raises
    ------
    OutputError
        The folder cannot be made, or it already holds dumps.

    Warns
    -----
    AttnWarning
        Something cannot be seen, such as a compiled graph; a limit is reached; the disk is full.
        The model runs on in each case, and earlier dumps stay.

    Notes
    -----
    A dump holds the user's text as numbers, and as tokens if they are given.

    Examples
    --------
    >>> import attncli
    >>> with attncli.capture("dumps/") as captured:  # doctest: +SKIP
    ...     model(**inputs)
    >>> len(captured.files)  # doctest: +SKIP
    12
    """
    place = Path(fspath(folder))
    _prepare(place)
    chosen = {layers} if isinstance(layers, int) else layers
    captured = Captured(place, chosen, limit, limit_bytes, tokens, gradients=gradients)
    with _WRAPPERS.to(captured):
        yield captured
    if not captured.files and not captured.unseen and layers is None and limit > 0:
        captured.say(
            "any attention call: kernels of other libraries pass by PyTorch's functions; run the "
            'model with attn_implementation="sdpa" or "eager"'
        )


def _prepare(folder: Path) -> None:
    """Make the folder, and refuse one that holds the dumps of another run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = next(folder.glob("layer-*.safetensors"), None)
    except OSError as error:
        raise OutputError(
            f"cannot make the folder {folder}: {error.strerror}",
            hint="name a folder that you may write",
        ) from error
    if found is not None:
        raise OutputError(
            f"{folder} already holds dumps, such as {found.name}",
            hint="name a new folder, or remove these files",
        )
