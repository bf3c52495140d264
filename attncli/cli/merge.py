"""``attncli merge``: results over parts of the keys become the result over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import typer

from attncli.cli.declaring import (
    LIST,
    MOST_USED,
    SHAPES,
    argument,
    number,
    one_of,
    option,
)
from attncli.cli.options import ScreenOptions
from attncli.cli.terminal import note
from attncli.errors import InputError, UsageError
from attncli.errors.text import counted, first_few, printable
from attncli.problem.layout import LAYOUTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from attncli.problem.layout import Layout

    Array = npt.NDArray[Any]

# Names of the context in files; `attncli.capture` writes out.
_CONTEXT = ("context", "out")


def _base(text: str) -> float:
    base = number(text)
    if not 0 < base < float("inf") or base == 1:
        raise typer.BadParameter(f"expected a base above 0, as 2; found {text}")
    return base


class PartOptions(ScreenOptions):
    """The parts, and where the whole goes."""

    files: list[str] | None = argument(
        "Files that hold context (or out) and lse of the same queries over parts of the keys: "
        "NPZ, safetensors, JSON, YAML. compute --show context,lse --save part.npz writes one."
    )
    save: list[str] | None = option(
        MOST_USED,
        "[NAME=]PATH",
        "Required: the whole, context=c.npy, lse=lse.npy, or whole.npz with both. Repeatable.",
    )
    lse_base: float | None = option(
        MOST_USED,
        "BASE",
        "The base of the logarithms lse, read and written: 2 for kernels that work with exp2. "
        "Default: e.",
        parser=_base,
    )
    sinks: str | None = option(
        MOST_USED, LIST, "Logits that count in the denominator only, one for each head, in nats."
    )
    sinks_in: Literal["one", "none", "every"] | None = option(
        MOST_USED,
        None,
        "Which parts count the sinks already; the whole counts them once. Default: one, as "
        "compute --keys does, or none where --sinks is given.",
    )
    layout: str | None = option(
        SHAPES,
        "AXES",
        "Order of the axes of context, as of compute: bhsd unless given, or (batch, sequence, "
        "heads side by side) where lse has as many axes.",
        autocompletion=one_of(*LAYOUTS),
    )


def merge(options: PartOptions) -> None:
    """Merge results over parts of the keys into the whole result.

    Each part has its own softmax: the whole is the mean of the contexts, weighted by exp(lse). A
    part that saw no key for a query has the lse -inf there.

    Example: attncli merge part*.npz --save whole.npz

    Example: attncli merge part*.npz --lse-base 2 --save whole.npz
    """
    from attncli.cli.output import save_of, write
    from attncli.engine.merging import merge as merged
    from attncli.problem.arguments import shape_text
    from attncli.save.files import refuse_inputs, refuse_unwritable
    from attncli.save.formats import Results

    files = options.files or []
    if not files:
        raise UsageError("merge needs files", hint="attncli merge part*.npz --save whole.npz")
    if twice := sorted({file for file in files if files.count(file) > 1}):
        raise UsageError(f"{first_few([*map(printable, twice)])} is given twice")
    if not options.save:
        raise UsageError("merge writes the whole into a file: --save whole.npz")
    names = ("context", "lse")
    saves = [save_of(text, names, chosen=False) for text in options.save]
    if others := {name for save in saves for name in save.names} - {*names}:
        raise UsageError(f"--save: merge gives context and lse; found {', '.join(sorted(others))}")
    if any(save.format == "zarr" for save in saves):
        raise UsageError("--save: merge writes no Zarr: name an .npz or .npy file")
    refuse_inputs([save.path for save in saves], files)
    refuse_unwritable(save.path for save in saves)
    sinks = None if options.sinks is None else _numbers("sinks", options.sinks)
    read = [_read(file, options.layout) for file in files]
    _refuse_unlike(files, read)
    whole = merged(
        [(context, lse) for context, lse, _ in read],
        sinks=sinks,
        sinks_in=options.sinks_in or ("one" if sinks is None else "none"),
        lse_base=options.lse_base,
    )
    form = read[0][2]
    arrays = {"context": form.join(whole.context), "lse": form.drop(whole.lse)}  # type: ignore[arg-type]
    results = [(save, Results({name: arrays[name] for name in save.names})) for save in saves]
    write(results)
    shape = shape_text(arrays["context"].shape)
    note(f"{counted(len(files), 'part')} merged: context {shape} and lse", quiet=options.quiet)


def _numbers(name: str, text: str) -> Any:
    from attncli.gather.lists import number_list
    from attncli.loading import read_array

    listed = number_list(name, text)
    return read_array(text).values if listed is None else listed


def _read(file: str, layout: str | None) -> tuple[Array, Array, Layout]:
    """Return context (B, H, L, E), lse (B, H, L) and the layout of a file."""
    import numpy as np

    from attncli.loading import LoadedArray, read
    from attncli.numerics.dtypes import readable
    from attncli.problem.arguments import layout_axes, real_array
    from attncli.problem.layout import Layout

    name, contents = printable(file), read(file)
    entries = {} if isinstance(contents, LoadedArray) else contents.entries
    own = next((entry for entry in _CONTEXT if entry in entries), "context")
    arrays = []
    for entry in (own, "lse"):
        held = entries.get(entry)
        if not isinstance(held, LoadedArray):
            found = first_few([*map(printable, entries)]) if entries else "one array"
            raise InputError(
                f"{name}: expected context and lse; {entry} is missing (found {found})",
                hint="attncli compute --show context,lse --save part.npz writes both",
            )
        arrays.append(readable(real_array(f"{name}#{entry}", held.values)))
    context, lse = arrays
    if not (lse < np.inf).all():
        raise InputError(f"{name}#lse: expected numbers or -inf; found NaN or inf")
    if not 2 <= context.ndim <= 4 or context.ndim - lse.ndim not in (0, 1):
        raise _misshapen(name, context, lse)
    axes = None if layout is None else layout_axes("layout", layout)
    packed = context.ndim == lse.ndim
    form = Layout.of(context.ndim, axes, packed=packed)
    context = form.split(context, lse.shape[-2] if packed else 1, f"{name}#{own}")
    lse = lse[tuple(slice(None) if axis in form.weight_axes else None for axis in "bh")]
    if context.shape[:3] != lse.shape:
        raise _misshapen(name, *arrays)
    return context, lse, form


def _misshapen(name: str, context: Array, lse: Array) -> InputError:
    from attncli.problem.arguments import shape_text

    return InputError(
        f"{name}: expected an lse for each query and head of the context; found context "
        f"{shape_text(context.shape)} and lse {shape_text(lse.shape)}",
        hint="lse is (batch, heads, queries); --layout bshd says that the heads of the context "
        "stand behind the queries",
    )


def _refuse_unlike(files: list[str], read: list[tuple[Array, Array, Layout]]) -> None:
    first = read[0][0].shape
    for file, (context, _, _) in zip(files, read, strict=True):
        if context.shape != first:
            raise InputError(
                f"{printable(file)}: expected a context (batch, heads, queries, width) of shape "
                f"{first}, as in {printable(files[0])}; found {context.shape}",
                hint="parts are of the same queries over different keys",
            )
