"""What `compute` is asked for, and how it leaves the program."""

from __future__ import annotations

import math
import re
import shlex
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.cli.terminal import (
    binary_stdout,
    console,
    is_terminal,
    limits,
    print_document,
)
from attncli.errors import UsageError
from attncli.errors.names import ROLLOUT, SHOWABLE, SQUARE, SUMMARIES
from attncli.errors.text import did_you_mean, quoted
from attncli.view.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from rich.text import Text

    from attncli.cli.options import OutputOptions, RunOptions
    from attncli.cli.summaries import Summaries
    from attncli.problem.problem import Problem
    from attncli.save.formats import Results

__all__ = ["Request", "limits_of", "save_of", "streamed", "write"]

# Cells: an NPY file of more is filled tile by tile and never held in memory.
_HELD_CELLS = 16_000_000


class Save(NamedTuple):
    """One file, the outputs it holds, and its format."""

    names: tuple[str, ...]
    path: str
    format: str


class Request(NamedTuple):
    """What is asked for: the names of what is shown, in their order, and the files.

    There are no names where none was given and none is usual. The weights may be the mean of the
    heads.
    """

    names: tuple[str, ...]
    saves: tuple[Save, ...]
    output: OutputOptions
    averaged: bool

    @classmethod
    def of(
        cls, output: OutputOptions, usual: tuple[str, ...], inputs: Iterable[str], *, averaged: bool
    ) -> Request:
        """Return what is asked for where these files are read; the usual names if none are given.

        Raises
        ------
        UsageError
            An option is malformed, or has nothing to act on.
        OutputError
            A file is among the inputs, is named twice or cannot be written.
        """
        from attncli.save.files import refuse_inputs, refuse_unwritable

        names = _names_shown(output.show) or usual
        saves = tuple(save_of(text, names, chosen=bool(output.show)) for text in output.save or ())
        paths = [save.path for save in saves]
        refuse_inputs(paths, inputs)
        refuse_unwritable(save.path for save in saves if save.format != "zarr")
        if not output.is_tables:
            names = _held(names, output.format, chosen=bool(output.show))
        request = cls(names, saves, output, averaged)
        request._refuse_idle()
        return request

    @property
    def asked(self) -> set[str]:
        """What is shown or saved."""
        return {*self.names, *(name for save in self.saves for name in save.names)}

    def _refuse_idle(self) -> None:
        if self.averaged:
            if each := [name for name in SUMMARIES if name in self.asked]:
                raise UsageError(
                    f"{each[0]} is computed for each head: leave out either it or --average-heads"
                )
            if "weights" not in self.asked:
                raise UsageError(
                    "--average-heads averages the weights, which are not asked for",
                    hint="add weights to --show",
                )
        if self.output.top is not None and "top" not in self.asked:
            raise UsageError("--top says how many keys --show top lists: add top to --show")
        formats = {self.output.format, *(save.format for save in self.saves)}
        if self.output.with_labels and not {"csv", "tsv"} & formats:
            raise UsageError(
                "--with-labels is for CSV and TSV; JSON, YAML and NPZ hold the labels anyway",
                hint="add --format csv, or --save weights=FILE.csv",
            )

    def refuse_unheld(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse formats that cannot hold outputs of these shapes, before they are computed."""
        import numpy as np

        from attncli.save.formats import FORMATS, Results

        kind = self.output.format
        if kind in ("npy", "npz") and is_terminal():
            raise UsageError(
                f"{kind} is binary and stdout is a terminal",
                hint=f"send it to a file: > out.{kind}",
            )
        shown = [] if self.output.is_tables else [(self.names, kind)]
        for names, held_by in (*shown, *((save.names, save.format) for save in self.saves)):
            # Of no memory: only the shape is looked at.
            cell = np.zeros((), np.bool_)
            arrays = {name: np.broadcast_to(cell, shapes[name]) for name in names if name in shapes}
            extra: dict[str, object] = {name: [] for name in names if name in SUMMARIES}
            FORMATS[held_by].hold(Results(arrays, extra=extra))

    def results(
        self,
        names: Sequence[str],
        arrays: Mapping[str, npt.NDArray[Any] | None],
        summaries: Summaries,
        layout: str | None,
    ) -> Results:
        """Return the outputs of these names, as files and machine formats take them.

        There is a layout where the axis before (L, S) is the batch.
        """
        from attncli.save.formats import Results

        held = {
            name: array for name, array in arrays.items() if name in names and array is not None
        }
        # Of three axes the first is taken for the heads, unless a file says otherwise.
        said = layout if not {*SQUARE, ROLLOUT}.isdisjoint(held) else None
        told = summaries.among(names)
        return Results(held, *summaries.labels, told, said, self.output.with_labels)

    def show(self, parts: Iterator[Text], run: RunOptions) -> None:
        """Print tables."""
        if self.output.format == "markdown":
            print_document("\n\n".join(text for part in parts if (text := str(part).strip())))
            return
        screen = console(run.color)
        for part in parts:
            screen.print(part, crop=False)

    def write(self, results: Results) -> None:
        """Write a machine's format to standard output."""
        from attncli.save.formats import write

        stream = binary_stdout()
        write(stream, results, self.output.format)
        stream.flush()


def write(outputs: Iterable[tuple[Save, Results]]) -> None:
    """Write all files, or none if one of them cannot be written."""
    from attncli.save.formats import save as save_files

    save_files((save.path, results, save.format) for save, results in outputs)


def _names_shown(show: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for names in show or () for name in names.split(",")))
    for name in names:
        if name not in SHOWABLE:
            raise UsageError(
                f"--show: expected names of {', '.join(SHOWABLE)}; found {quoted(name)}",
                hint=did_you_mean(name, SHOWABLE),
            )
    return names


def save_of(text: str, names: tuple[str, ...], *, chosen: bool) -> Save:
    """Return what ``--save [NAME=]PATH`` asks for, where ``names`` are shown."""
    from attncli.save.formats import format_of

    name, separator, path = text.partition("=")
    if not path and (separator or not text):
        raise UsageError(f"--save {text}".rstrip() + ": expected [NAME=]PATH; found no path")
    if others := re.findall(rf",(?:{'|'.join(SHOWABLE)})=", path):
        files = re.split(rf",(?={others[0][1:]})", text, maxsplit=1)
        raise UsageError(
            f"--save {text}: expected one file; found several",
            hint=f"repeat the option: {' '.join(f'--save {shlex.quote(file)}' for file in files)}",
        )
    several = tuple(dict.fromkeys(name.split(",")))
    if not separator:
        several, path = names, text
    elif not name:
        raise UsageError(
            f"--save {text}: expected NAME=PATH; found no name",
            hint=f"for a file of that name write ./{text}",
        )
    elif not set(several) <= set(SHOWABLE):
        if not name.replace(",", "").isidentifier():  # a path with an equals sign
            several, path, separator = names, text, ""
        else:
            raise UsageError(
                f"--save {text}: expected NAME=PATH with a name of {', '.join(SHOWABLE)}; "
                f"found {name!r}",
                hint=did_you_mean(name, SHOWABLE) or f"for a file of that name write ./{text}",
            )
    kind = format_of(path, _unnamed(path, "csv" if len(several) == 1 else "json"))
    return Save(_held(several, kind, chosen=bool(separator) or chosen), path, kind)


def _unnamed(path: str, kind: str) -> str | None:
    """Return the text format of what can have no suffix: ``/dev/stdout``, a pipe ``/dev/fd/63``."""
    from attncli.save.files import is_direct

    return kind if path and not Path(path).suffix and is_direct(path) else None


def _held(names: tuple[str, ...], kind: str, *, chosen: bool) -> tuple[str, ...]:
    """Return which outputs a format takes: one array is the context, unless one was chosen."""
    from attncli.save.formats import FORMATS

    if not FORMATS[kind].single or len(names) <= 1:
        return names
    if not chosen:
        return ("context",)
    several = "json or yaml" if set(SUMMARIES).intersection(names) else "json, yaml or npz"
    raise UsageError(
        f"{kind} holds one array; found {', '.join(names[:-1])} and {names[-1]}",
        hint=f"name one (--show {names[0]}, --save {names[0]}=FILE), or use {several}",
    )


@contextmanager
def streamed(
    problem: Problem, request: Request, shown: Sequence[str]
) -> Iterator[dict[Save, npt.NDArray[Any]]]:
    """Open the NPY files that are too large to be held; they appear when the block ends well.

    Outputs that are shown are held anyway. Yields arrays (B, H, L, S) on the disk, to be computed
    into; the mean of the weights has its own shape.
    """
    from attncli.engine import result_shapes

    with ExitStack() as files:
        opened: dict[Save, npt.NDArray[Any]] = {}
        for save in request.saves:
            name = save.names[0]
            mean = request.averaged and name == "weights"
            shape = problem.output_shapes["mean weights" if mean else "weights"]
            taken = name in shown or name in {other.names[0] for other in opened}
            if save.format != "npy" or name not in SQUARE or taken:
                continue
            if math.prod(shape) > _HELD_CELLS:
                from attncli.save.streaming import open_npy

                array = files.enter_context(open_npy(save.path, shape, problem.dtype))
                whole = shape if mean else result_shapes(problem, (name,))[name]
                opened[save] = array.reshape(whole)
        yield opened


def limits_of(output: OutputOptions, run: RunOptions, decimals: int) -> Limits:
    """Return how large tables may be."""
    markdown = output.format == "markdown"
    rows, columns, heads = (20, None, 4) if is_terminal() and not markdown else (64, 64, 16)
    screen = Limits(markdown=True) if markdown else limits(run.color)
    return screen._replace(
        rows=rows if output.max_rows is None else output.max_rows or None,
        columns=columns if output.max_cols is None else output.max_cols or None,
        heads=heads,
        stacked=output.max_cols is not None,
        digits=decimals,
    )
