"""Files and options become a problem: `attncli.load`, and `gather` for the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from attncli.errors import UnknownArgumentError, UsageError, warn
from attncli.errors.names import INPUTS
from attncli.gather.entries import (
    KNOWN,
    MODELS,
    NORMS,
    PROJECTIONS,
    missing_input,
    nearest_name,
)
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
from attncli.loading import read_array, refuse_two_streams

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from attncli.gather.finished import Kind
    from attncli.problem.problem import Problem

__all__ = [
    "Finished",
    "Gathered",
    "advise_on_dtype",
    "dump_file",
    "gather",
    "layers_in",
    "load",
    "load_output",
    "one_layer",
    "recorded_calls",
]

# Arguments that only a problem with embeddings has.
_OF_EMBEDDINGS = {"x", "positions", "transposed", *MODELS, *PROJECTIONS, *NORMS}
_AVERAGED = "attncli.check(…, average_heads=True) judges the mean of the heads"
# Options of the command line that `load` does not take, and the hint that says which function does.
_TAKEN_BY = {
    **{name: f"problem.select({name}=1) takes a part of it" for name in ("batch", "head")},
    "average_heads": _AVERAGED,
    "average_attn_weights": _AVERAGED,
    "threads": "attncli.solve(problem, threads=…) takes it",
}
# Options for display and output files: for them, `load` suggests no similar name.
_SHOWING = frozenset({"color", "minus", "out", "quiet", "save", "with_labels"})


def load(
    *files: str | os.PathLike[str],
    dtype: str | None = None,
    layer: int | None = None,
    header: str = "auto",
    call: int | None = None,
    without: str | Iterable[str] | None = None,
    **options: object,
) -> Problem:
    """Return the problem that the command line would read.

    Parameters
    ----------
    *files : str or path
        One problem file, or Q K V, or Q K; with ``wq``, ``wk``, ``wv`` or ``checkpoint``
        one file of embeddings X, or the sources of cross-attention. ``FILE#NAME`` takes one
        member, ``-`` is standard input. Without files, the options ``query``, ``key`` and
        ``value``, or ``x``, are the problem; without these, it is the built-in example.
    dtype : {"bfloat16"}, optional
        Read 2-byte elements of NPY and NPZ files (V2, uint16, int16) as bfloat16.
    layer : int, optional
        The layer, counted from 0, of inputs whose first axis counts layers, or of a folder of
        recorded calls.
    call : int, optional
        The recorded call of that layer, counted from 0.
    header : {"auto", "yes", "no"}
        Whether the first row of a table names its columns.
    without : str or iterable of str, optional
        Names of entries to leave out, as ``"causal,mask"`` or as an iterable: entries of the
        problem file, options from the configuration, or ``wo``, ``bo`` and ``sinks`` of the
        checkpoint's layer.
    **options
        ``queries=(0, 4096)`` and ``keys=(8192, 16384)`` take these positions of the whole problem.
        All other options that belong to the problem have their Python names (``causal=True``,
        ``alibi_slopes=True`` for ``--alibi``, ``checkpoint="model.safetensors#layer.0"``,
        ``tokens="a,b,c"``). Their values are arrays, or names of files.

    Returns
    -------
    Problem
        The checked problem, for `attncli.solve`.

    Raises
    ------
    AttnError
        A file cannot be read, or an option is wrong.
    TypeError
        An option has an unknown name.

    Warns
    -----
    AttnWarning
        The problem is valid but probably not the intended one, or `dtype` changes nothing.

    Examples
    --------
    >>> from attncli import load, solve
    >>> solve(load(scale=1)).weights.round(4)
    array([[0.5761, 0.2119, 0.2119],
           [0.2119, 0.2119, 0.5761]])
    """
    for name in options:
        if name not in (*KNOWN, "queries", "keys"):
            meant = None if name in _SHOWING else _TAKEN_BY.get(name) or nearest_name(name)
            raise UnknownArgumentError(
                f"load() got an unexpected keyword argument {name!r}", hint=meant
            )
    names = [_name(file) for file in files]
    for name in INPUTS[: len(names)] if len(names) > 1 else ():
        if options.get(name) is not None:
            raise UsageError(f"{name} is given twice: in the files and as {name}=")
    given = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in options.items()
    }
    gathered = gather(
        names, given, without=without, dtype=dtype, header=header, layer=layer, call=call
    )
    if isinstance(gathered, Finished):
        raise gathered.refusal("embeddings need wq, wk and wv, or a checkpoint")
    advise_on_dtype(dtype, bfloat16=gathered.bfloat16)
    return gathered.posed()


def load_output(file: str, member: str) -> Any:
    """Return the output that a problem file holds under the name ``member``."""
    return read_array(f"{file}#{member}").values


def _name(file: object) -> str:
    if isinstance(file, (str, os.PathLike)):
        return str(os.fspath(file))
    raise UsageError(
        f"expected the name of a file; found {type(file).__name__}",
        hint="arrays go by name, as x=… or query=…, key=…, value=…; or to attncli.pose",
    )


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
    """Read files and join them with options; an option wins over an entry of a problem file.

    A file of a single array holds the output ``kind``. With ``saved``, the output in a dump is
    not computed again. ``more`` are names of outputs that are read later, perhaps from the same
    file.
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
    # Imported late: most problems have no embeddings.
    if not {*MODELS}.isdisjoint(gathered.arguments):
        from attncli.gather.layer import add_layer  # noqa: PLC0415

        add_layer(reader)
    left.refuse_unmet(given)
    if from_embeddings:
        from attncli.gather.embedding import project_arguments  # noqa: PLC0415

        project_arguments(gathered, threads=threads)
    return gathered


def advise_on_dtype(dtype: str | None, *, bfloat16: bool) -> None:
    """Warn if a dtype was given and no array was read with it."""
    if dtype is not None and not bfloat16:
        warn(
            f"dtype {dtype} changes nothing: it is for NPY and NPZ files of 2-byte elements "
            "(V2, uint16, int16), and none was read"
        )
