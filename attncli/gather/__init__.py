"""Files and options become the arguments of `attncli.pose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.example import EXAMPLE
from attncli.gather.entries import MODELS, PROJECTIONS
from attncli.gather.finished import (
    finished_array,
    finished_document,
    holds_result,
    is_finished,
)
from attncli.gather.gathered import Gathered
from attncli.gather.leaving_out import entry_names, in_no_model, no_problem_file
from attncli.gather.maps import Finished, Kind, looks_finished
from attncli.gather.reader import Reader, refuse_plain_scaled
from attncli.loading import is_stream, refuse_two_streams, split_member
from attncli.loading.contents import LoadedArray
from attncli.loading.number import is_numeric, is_truth
from attncli.loading.source import is_file
from attncli.names import INPUTS, OUTPUTS
from attncli.text import quoted
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["Finished", "Gathered", "advise_on_dtype", "gather"]

_COMMAS = "a list behind an option has commas and no spaces (--show weights,context)"
_QUERY = "the query that explain follows stands behind --query"
_VALUES = f"{_COMMAS}; a switch such as --causal has no value; {_QUERY}"
_PROBLEMS = (".yaml", ".yml", ".json", ".npz", ".safetensors")
_PICTURES = (".png", ".svg", ".pdf")


def gather(
    files: Sequence[str],
    options: Mapping[str, object] | None = None,
    *,
    without: str | Iterable[str] | None = None,
    dtype: str | None = None,
    kind: Kind = "weights",
    saved: bool = False,
    more: Collection[str] = (),
    threads: int | None = None,
) -> Gathered | Finished:
    """Read files and join them with options.

    Parameters
    ----------
    files : sequence of str
        One problem file, or Q K V, or Q K; with projections one embedding file X, or the
        sources of cross-attention. A single array is finished. None is the built-in example,
        or the inputs among the options.
    options : mapping, optional
        Options of `attncli.pose` under their Python names; they win over the same
        option in a problem file. A str in place of an array names a file, or is a
        list such as ``"3,5"``.
    without : str or iterable of str, optional
        Entries of the problem file, of what the configuration says, or ``wo``, ``bo`` and
        ``sinks`` of the checkpoint's layer, that are left out: ``"causal,mask"`` or their names.
    dtype : str, optional
        ``"bfloat16"`` for NPY files of bare 2-byte elements.
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
    options = options or {}
    refuse_two_streams((*files, *options.values(), *more))
    refuse_plain_scaled(options)
    _refuse_strays(files)
    left = entry_names(without)
    if len(files) != 1 and in_no_model(left, _models(options)):
        raise no_problem_file(f"found {len(files)} files" if files else "found none")
    reader = Reader(dtype, left)
    if not files and all(options.get(name) is None for name in (*INPUTS, "x")):
        _refuse_projections(options)
        reader.gathered.arguments.update(EXAMPLE)
    elif len(files) == 1:
        finished = _take_file(reader, files[0], kind, options, saved=saved)
        if finished is not None:
            return finished
    elif len(files) in (2, 3):
        arrays = [reader.read_array(file) for file in files]
        for name, array in zip(INPUTS, arrays, strict=False):
            reader.take_array(name, array)
        _advise_on_weights(arrays)
    elif files:
        raise _too_many(files)
    if options.get("tokens") is not None:
        reader.forget_labels()
    for name, value in options.items():
        reader.take(name, value, folder=".")
    reader.pass_over_strange(more)
    reader.name_tokens()
    reader.embed(threads)
    _refuse_incomplete(reader.gathered)
    return reader.gathered


def _take_file(
    reader: Reader,
    file: str,
    kind: Kind,
    options: Mapping[str, object],
    *,
    saved: bool,
) -> Finished | None:
    """Note what one file holds; return it where it is finished weights or scores."""
    contents = reader.read_problem(file, _models(options))
    if isinstance(contents, LoadedArray) and _projections(options):
        reader.take_array("x", contents)
    elif isinstance(contents, LoadedArray):
        return finished_array(contents, kind, options, reader)
    elif is_finished(contents, kind):
        return finished_document(contents, kind, options, reader)
    elif saved and holds_result(contents, kind, options):
        warn(
            f"{contents.name}: its {kind} are drawn as they were saved; --without {kind} computes "
            "them from its query and key"
        )
        return finished_document(contents, kind, options, reader)
    else:
        reader.take_document(contents)
    return None


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


def _advise_on_weights(arrays: Sequence[LoadedArray]) -> None:
    """Warn where query and key, and value, are outputs that may be meant to be compared."""
    if all(looks_finished(array.values) for array in arrays):
        first, second, *third = (array.name for array in arrays)
        warn(
            f"{_listed([first, second, *third])} look like finished weights, whose rows add up to "
            f"1, and are read as {_listed(INPUTS[: len(arrays)])}; attncli heatmap {first} "
            f"--minus {second} compares {'the first two' if third else 'them'}"
        )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _models(options: Mapping[str, object]) -> list[str]:
    """Return which of a checkpoint and a configuration the options name."""
    return [name for name in MODELS if options.get(name) is not None]


def _projections(options: Mapping[str, object]) -> list[str]:
    """Return the options that make query, key and value out of embeddings."""
    names = (*PROJECTIONS, "checkpoint")
    return [name for name in names if options.get(name) is not None]


def _refuse_projections(options: Mapping[str, object]) -> None:
    for name in _projections(options):
        raise UsageError(
            f"{name} is for embeddings, but no file of embeddings is given",
            hint="name the file: attncli compute x.csv --wq wq.csv --wk wk.csv --wv wv.csv",
        )


def _refuse_incomplete(gathered: Gathered) -> None:
    for name in ("query", "key"):
        if name not in gathered.arguments:
            raise UsageError(
                f"{name} is missing", hint="give query, key and value, or x with wq, wk and wv"
            )


def _too_many(files: Sequence[str]) -> UsageError:
    """Return the error for more than three files: most often a word that belongs to an option."""
    expected = "expected one problem file, or the files Q K V"
    stray = next((f for f in files if not (is_stream(f) or is_file(split_member(f)[0]))), None)
    if stray is None:
        return UsageError(
            f"{expected}; found {len(files)} files",
            hint="a problem file (YAML, JSON, NPZ, safetensors) names query, key and value",
        )
    return UsageError(
        f"{expected}; found {len(files)}, and {quoted(stray)} is no file",
        hint=_VALUES,
    )


def _refuse_strays(files: Sequence[str]) -> None:
    """Refuse words that are no files, but belong to an option: a list with spaces, a value."""
    for file in files:
        if is_stream(file) or is_file(split_member(file)[0]):
            continue
        if file.lower().endswith(_PICTURES):
            raise UsageError(
                f"{file} does not exist",
                hint=f"heatmap draws into the file behind --out: --out {file}",
            )
        if file in OUTPUTS:
            raise UsageError(f"{file} is no file, but an output", hint=_COMMAS)
        if is_numeric(file) or is_truth(file):
            kind = "a number" if is_numeric(file) else "a truth value"
            raise UsageError(f"{quoted(file)} is no file, but {kind}", hint=_VALUES)
        if file != files[0] and files[0].lower().endswith(_PROBLEMS) and is_file(files[0]):
            raise UsageError(
                f"{quoted(file)} is no file, and {files[0]} holds a problem by itself",
                hint=f"{_QUERY}; a text with spaces stands in quotation marks",
            )
