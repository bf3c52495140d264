"""Files and options become the arguments of `attncli.pose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import warn
from attncli.gather.entries import MODELS, NORMS, PROJECTIONS, missing_input
from attncli.gather.finished import Finished, is_finished, take_finished
from attncli.gather.reader import Gathered, Reader, refuse_plain_scaled
from attncli.gather.sources import (
    LeftOut,
    dump_file,
    one_layer,
    problem_source,
    recorded_calls,
    recorded_layers,
)
from attncli.loading import refuse_two_streams

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from attncli.gather.finished import Kind

__all__ = [
    "Finished",
    "Gathered",
    "advise_on_dtype",
    "dump_file",
    "gather",
    "one_layer",
    "recorded_calls",
    "recorded_layers",
]

# What makes query, key and value out of embeddings, or belongs to it.
_OF_EMBEDDINGS = {"x", "positions", "transposed", *MODELS, *PROJECTIONS, *NORMS}


def gather(
    files: Sequence[str],
    options: Mapping[str, object] | None = None,
    *,
    without: str | Iterable[str] | None = None,
    dtype: str | None = None,
    layer: int | None = None,
    header: str = "auto",
    call: int | None = None,
    kind: Kind = "weights",
    saved: bool = False,
    more: Collection[str] = (),
    threads: int | None = None,
) -> Gathered | Finished:
    """Read files and join them with options.

    Parameters
    ----------
    files : sequence of str
        One problem file, or a folder that `attncli.capture` wrote, or Q K V, or Q K; with
        projections one embedding file X, or the sources of cross-attention. A single array is
        finished. None is the built-in example, or the inputs among the options.
    options : mapping, optional
        Options of `attncli.pose` under their Python names; they win over the same
        option in a problem file, which is not read then. A str in place of an array names a
        file, or is a list such as ``"3,5"``.
    without : str or iterable of str, optional
        Entries of the problem file, of what the configuration says, or ``wo``, ``bo`` and
        ``sinks`` of the checkpoint's layer, that are left out: ``"causal,mask"`` or their names.
    dtype : str, optional
        ``"bfloat16"`` for NPY files of bare 2-byte elements.
    layer : int, optional
        The layer, counted from 0, of inputs or outputs whose first axis counts layers, or of a
        folder of recorded calls.
    call : int, optional
        Which call of that layer, counted from 0.
    header : {"auto", "yes", "no"}
        Whether the first row of a table names its columns.
    kind : {"weights", "scores"}
        What a single array is, and what counts in a document without query and key.
    saved : bool
        An output that a program saved beside its queries and keys is meant, not these.
    more : collection of str
        What else is read, perhaps out of the same file.
    threads : int, optional
        For projections.

    Raises
    ------
    InputError
        A file cannot be read as what it should be.
    UsageError
        A wrong number of files, or an unknown option in a problem file.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    refuse_two_streams((*files, *given.values(), *more))
    refuse_plain_scaled(given)
    left, reader = LeftOut(without), Reader(dtype, layer, call, header)
    document = problem_source(files, given, kind, left, reader)
    if is_finished(document, kind, given, left, saved=saved):
        return take_finished(document, kind, given, left, reader)
    strange = reader.take_document(document, given, left)
    for name, value in given.items():
        reader.take(name, value, folder=".")
    gathered = reader.gathered
    from_embeddings = not _OF_EMBEDDINGS.isdisjoint(gathered.arguments)
    missing = [name for name in ("query", "key") if name not in gathered.arguments]
    if missing and not from_embeddings:
        raise missing_input(missing[0], document)
    reader.tell_of_strange(strange, document, more)
    reader.name_tokens()
    if from_embeddings:
        _make_inputs(reader, left, given, threads)
    else:
        reader.advise_on_features()
        left.refuse_unmet(given)
    return gathered


def _make_inputs(
    reader: Reader, left: LeftOut, given: Collection[str], threads: int | None
) -> None:
    """Read the layer of a checkpoint, and make query, key and value from embeddings."""
    # Most problems have none of it: they start without these modules.
    from attncli.gather.embedding import project_arguments  # noqa: PLC0415

    if not reader.gathered.arguments.keys().isdisjoint(MODELS):
        from attncli.gather.layer import add_layer  # noqa: PLC0415

        add_layer(reader, left)
    left.refuse_unmet(given)
    project_arguments(reader.gathered, threads=threads)


def advise_on_dtype(dtype: str | None, *, bfloat16: bool) -> None:
    """Warn where a dtype was asked for, and no array was read with it.

    Parameters
    ----------
    dtype : str or None
        What was asked for.
    bfloat16 : bool
        Whether any array that was read is of this dtype.

    Warns
    -----
    AttnWarning
    """
    if dtype is not None and not bfloat16:
        warn(
            f"dtype {dtype} changes nothing: it is for NPY and NPZ files of 2-byte elements "
            "(V2, uint16, int16), and none was read"
        )
