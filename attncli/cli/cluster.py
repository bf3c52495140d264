"""``--workers``, ``--scheduler`` and Zarr: problems that are computed and judged block by block."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.cli.declaring import RUN, count, option
from attncli.cli.options import QuestionOptions
from attncli.cli.output import Request, write
from attncli.cli.question import gathered
from attncli.cli.terminal import note, progress_bar
from attncli.errors import InputError, UsageError
from attncli.errors.names import OUTPUTS
from attncli.problem.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from attncli.cli.compute import ComputeOptions
    from attncli.cli.options import PickOptions
    from attncli.cli.output import OutputOptions
    from attncli.gather import Gathered
    from attncli.numerics.indices import Picked
    from attncli.summaries.maps import Maps

# Most bytes of Zarr inputs that are held in memory, 256 MiB; more are read block by block.
_MOST_HELD = 1 << 28
# Most bytes of an input that is sent to the workers; a larger input goes through a file.
_SENT = 1 << 24
_INPUTS = ("query", "key", "value")


class ClusterOptions(QuestionOptions):
    """Where the work is done."""

    scheduler: str | None = option(
        RUN,
        "ADDRESS",
        "Send the work to a running Dask cluster: tcp://host:8786. Workers have the same attncli, "
        "and see files of Zarr and dumps under the same names.",
    )
    workers: int | None = count(
        RUN,
        "N",
        "Start N processes on this machine for the call, and stop them afterwards.",
        least=1,
    )

    @property
    def is_asked_for(self) -> bool:
        """Whether the work goes to other processes."""
        return self.scheduler is not None or self.workers is not None

    def takes(self, output: OutputOptions | None = None) -> bool:
        """Return whether the options or the size of the files ask for work block by block.

        Raises
        ------
        UsageError
            Tables of arrays that are too large for memory are asked for.
        """
        if self.is_asked_for:
            return True
        large = _bytes_on_disk(self) > _MOST_HELD
        if output is None:
            return large
        if output.save or not output.is_tables:
            return large or any(path.endswith(".zarr") for path in output.save or ())
        if large:
            raise UsageError(
                "tables of these arrays would take all of them into memory",
                hint="--save context=out.zarr computes them block by block",
            )
        return False


def _bytes_on_disk(options: ClusterOptions) -> int:
    """Return the bytes of the problem's arrays in float64; 0 if no file is Zarr."""
    from attncli.loading import describe, split_member
    from attncli.loading.source import is_zarr

    if not any(is_zarr(split_member(file)[0]) for file in options.files or ()):
        return 0
    sizes = (math.prod(one.shape) for file in options.files or () for one in describe(file))
    return 8 * max(1, sum(sizes))


@contextmanager
def _at_work(
    options: ClusterOptions, files: Sequence[str], words: str | None = "computing"
) -> Iterator[tuple[Any, Any]]:
    """Yield the Dask client and the function that reports progress; both may be None."""
    try:
        from attncli.dask.cluster import running
    except ImportError:
        raise InputError(
            "this needs Dask and Zarr, which are not installed", hint="pip install 'attncli[dask]'"
        ) from None
    with (
        running(options.scheduler, options.workers, files) as client,
        nullcontext() if words is None else progress_bar(words, quiet=options.quiet) as told,
    ):
        yield client, told


def _read(options: ClusterOptions) -> tuple[Gathered, dict[str, Any], str]:
    """Return the gathered files, the arguments of `attention`, and the axes of its inputs."""
    from attncli.gather import Finished

    found = gathered(options)
    if isinstance(found, Finished):
        raise found.refusal("give query, key and value")
    arguments: dict[str, Any] = {**found.arguments}
    for name in ("wo", "bo", "heads", "kv_heads"):
        if arguments.pop(name, None) is not None:
            raise UsageError(
                f"--workers, --scheduler and Zarr take no {name}",
                hint="split the heads first, and project the context afterwards",
            )
    axes = arguments.get("layout") or {2: "sd", 3: "bsd", 4: "bhsd"}.get(
        len(arguments["query"].shape), ""
    )
    return found, arguments, str(axes)


def _lazy(arguments: Mapping[str, Any], names: Sequence[str], folder: str) -> Any:
    """Return lazy outputs; large inputs in memory go through files, which workers read."""
    from attncli.dask import attention
    from attncli.numerics.chunked import Chunked, Mapped
    from attncli.numerics.dtypes import BFLOAT16, widen

    given = {**arguments}
    for name in _INPUTS:
        array = given.get(name)
        if array is not None and not isinstance(array, Chunked):
            array = widen(array, "float32") if array.dtype == BFLOAT16 else array
            if array.nbytes > _SENT and folder:
                array = Chunked(Mapped.saved(str(Path(folder) / f"{name}.npy"), array))
            given[name] = array
    for name in ("query_labels", "key_labels"):
        given.pop(name, None)
    return attention(**given, outputs=names)


@contextmanager
def _room(options: ClusterOptions) -> Iterator[str]:
    """Yield a temporary folder for workers on this machine, or an empty name for a cluster."""
    import tempfile

    if options.scheduler is not None:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="attncli-") as folder:
        yield folder


def compute_lazily(options: ComputeOptions) -> None:
    """Compute outputs block by block, and save them.

    Raises
    ------
    UsageError
        An option or an output needs whole arrays.
    """
    from attncli.save.files import refuse_inputs, refuse_unwritable_folder, whole_folder
    from attncli.save.formats import Results

    options.refuse(
        "average_heads grad keys queries", "does not go with --workers, --scheduler or Zarr"
    )
    if not options.save and options.is_tables:
        raise UsageError(
            "--workers and --scheduler write files: give --save context=out.zarr, or --format npy"
        )
    found, arguments, axes = _read(options)
    request = Request.of(options, ("context",), found.inputs)
    if wrong := request.asked - {*OUTPUTS}:
        raise UsageError(f"--workers, --scheduler and Zarr give no {min(wrong)}: leave it out")
    shown = () if options.is_tables else request.names
    saved = {name for save in request.saves for name in save.names}
    names = tuple(name for name in OUTPUTS if name in {*shown, *saved})
    folders = [save for save in request.saves if save.format == "zarr"]
    refuse_inputs([save.path for save in request.saves], found.inputs)
    for save in folders:
        refuse_unwritable_folder(save.path, found.inputs)
    with (
        _room(options) as room,
        _at_work(options, found.inputs) as (client, told),
        ExitStack() as opened,
    ):
        from attncli.dask.cluster import computed
        from attncli.dask.storing import stored

        lazy = _picked(_lazy(arguments, names, room), names, options, axes)
        writing: list[Any] = []
        for save in folders:
            folder = opened.enter_context(whole_folder(save.path))
            alone = len(save.names) == 1
            writing += stored({name: lazy[name] for name in save.names}, folder, alone=alone)
        files = [save for save in request.saves if save.format != "zarr"]
        held = [n for n in names if n in {*shown, *(n for save in files for n in save.names)}]
        values = computed([*writing, *(lazy[name] for name in held)], client, told)
    arrays = dict(zip(held, values[len(writing) :], strict=True))
    labels = arguments.get("query_labels"), arguments.get("key_labels")
    batched = axes if Layout(axes).weight_axes == "b" else None

    def results(some: Sequence[str]) -> Results:
        return Results({name: arrays[name] for name in some}, *labels, {}, batched)

    write([(save, results(save.names)) for save in files])
    for save in folders:
        shapes = ", ".join(f"{name} {lazy[name].shape}" for name in save.names)
        note(f"{save.path}: {shapes}", quiet=options.quiet)
    if shown:
        request.write(results(shown))


def _picked(lazy: Any, names: Sequence[str], options: PickOptions, axes: str) -> dict[str, Any]:
    """Return the outputs of the batch entries and heads that are picked."""
    own = Layout(axes).weight_axes
    letters = {name: axes if name == "context" else own for name in names}
    arrays = {name: getattr(lazy, name) for name in names}
    counts = {"b": 1, "h": 1}
    for name, array in arrays.items():
        counts |= dict(zip(letters[name], array.shape, strict=False))
    chosen = dict(zip("bh", options.among((counts["b"], counts["h"]), own), strict=True))
    return {name: _taken(array, letters[name], chosen) for name, array in arrays.items()}


def _taken(array: Any, letters: str, chosen: Mapping[str, Any]) -> Any:
    """Return the chosen batch entries and heads of an array; a single index drops its axis."""
    # The last axis first: dropping an axis moves those behind it.
    for at, letter in reversed([*enumerate(letters)]):
        index = chosen.get(letter)
        if index is not None:
            some = index if isinstance(index, int) else [*index]
            array = array[(slice(None),) * at + (some,)]
    return array


@contextmanager
def lazy_maps(options: ClusterOptions) -> Iterator[tuple[Maps, Picked, Sequence[str]]]:
    """Yield the maps of a heatmap, the picked batch entries and heads, and the files read."""
    found, arguments, axes = _read(options)
    own = Layout(axes).weight_axes
    with _room(options) as room, _at_work(options, found.inputs, None) as (client, _):
        from attncli.dask.maps import LazyMaps

        lazy = _lazy(arguments, tuple(dict.fromkeys((options.what, "scores"))), room)
        counts = dict(zip(own, lazy.scores.shape, strict=False))
        picked = options.among((counts.get("b", 1), counts.get("h", 1)), own)
        # Maps always have both axes: a single index becomes a list, which keeps its axis.
        chosen = {a: [i] if isinstance(i, int) else i for a, i in zip("bh", picked, strict=True)}
        index = (*(slice(None) if axis in own else None for axis in "bh"), ...)
        values, scores = (
            _taken(getattr(lazy, name)[index], "bh", chosen) for name in (options.what, "scores")
        )
        gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
        left = "".join(axis for axis in own if axis not in gone)
        labels = arguments.get("query_labels"), arguments.get("key_labels")
        maps = LazyMaps(values, scores, left, labels, client)
        yield maps, picked, found.inputs


def map_files(
    judge: Callable[[str], Any], files: Sequence[str], options: ClusterOptions
) -> list[Any]:
    """Return the function's result for each file, computed by the workers."""
    with _at_work(options, files, f"judging {len(files)} files") as (client, told):
        import dask

        from attncli.dask.cluster import computed

        lazy = [dask.delayed(judge, pure=False)(file) for file in files]
        return computed(lazy, client, told)


def judge_blocks(expected: Mapping[str, str], options: ClusterOptions, **settings: Any) -> Any:
    """Judge a problem block by block: the report or the error of each, by its place in words.

    Parameters
    ----------
    expected : mapping of str to str
        The file of each output.
    """
    from attncli.loading import read_array

    options.refuse("batch head", "does not go with --workers, --scheduler or Zarr")
    found, arguments, _ = _read(options)
    outputs = {name: read_array(file, entry=name).values for name, file in expected.items()}
    with _at_work(options, found.inputs, "comparing") as (client, told):
        from attncli.dask.checking import check_blocks
        from attncli.dask.cluster import computed

        lazy = check_blocks(arguments, outputs, **settings)
        return dict(zip(lazy, computed([*lazy.values()], client, told), strict=True))
