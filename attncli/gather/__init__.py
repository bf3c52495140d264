"""Files and options become the arguments of `attncli.pose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import warn
from attncli.gather.entries import MODELS, NORMS, PROJECTIONS, missing_input
from attncli.gather.finished import Finished, is_finished, take_finished
from attncli.gather.reader import Gathered, Reader
from attncli.gather.sources import (
    LeftOut,
    dump_file,
    layers_in,
    one_layer,
    problem_source,
    recorded_calls,
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
    "layers_in",
    "one_layer",
    "recorded_calls",
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
    """Read files and join them with options, which win over a problem file, as in `attncli.load`.

    A single array is of the ``kind``. With ``saved``, an output that a program saved beside its
    queries and keys is meant, not these; ``more`` is what else is read, perhaps of the same file.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    refuse_two_streams((*files, *given.values(), *more))
    left = LeftOut(without)
    reader = Reader(given, left, layer=layer, call=call, dtype=dtype, header=header)
    document = problem_source(files, kind, reader)
    if is_finished(document, kind, reader, saved=saved):
        return take_finished(document, kind, reader)
    strange = reader.take_document(document)
    for name, value in given.items():
        reader.take(name, value, folder=".")
    reader.settle_scale()
    gathered = reader.gathered
    from_embeddings = not _OF_EMBEDDINGS.isdisjoint(gathered.arguments)
    missing = [name for name in ("query", "key") if name not in gathered.arguments]
    if missing and not from_embeddings:
        raise missing_input(missing[0], document)
    reader.tell_of_strange(strange, document, more)
    reader.name_tokens()
    # Most problems have no embeddings: they start without these modules.
    if not {*MODELS}.isdisjoint(gathered.arguments):
        from attncli.gather.layer import add_layer  # noqa: PLC0415

        add_layer(reader)
    left.refuse_unmet(given)
    if from_embeddings:
        from attncli.gather.embedding import project_arguments  # noqa: PLC0415

        project_arguments(gathered, threads=threads)
    else:
        reader.advise_on_features()
    return gathered


def advise_on_dtype(dtype: str | None, *, bfloat16: bool) -> None:
    """Warn where a dtype was asked for, and no array was read with it."""
    if dtype is not None and not bfloat16:
        warn(
            f"dtype {dtype} changes nothing: it is for NPY and NPZ files of 2-byte elements "
            "(V2, uint16, int16), and none was read"
        )
