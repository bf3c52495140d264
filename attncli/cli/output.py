"""What `compute` shows and saves, and in which formats."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from attncli.cli.declaring import MOST_USED, SHOWN, count, list_of, option, switch
from attncli.cli.options import AverageOptions, DigitsOptions, Formatted
from attncli.cli.terminal import (
    binary_stdout,
    is_terminal,
    limits,
    print_document,
    print_parts,
    progress_bar,
)
from attncli.errors import UsageError
from attncli.errors.names import ROLLOUT, SHOWABLE, SQUARE, SUMMARIES
from attncli.errors.text import counted, did_you_mean, quoted
from attncli.view.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from rich.text import Text

    from attncli.numerics.indices import Picked
    from attncli.problem.problem import Problem
    from attncli.save.formats import Results
    from attncli.summaries.maps import Labels, Maps
    from attncli.summaries.stats import HeadStats
    from attncli.summaries.strongest import TopKeys

    # Outputs, inputs and gradients, by name; None for an array that is not held in memory.
    Arrays: TypeAlias = Mapping[str, npt.NDArray[Any] | None]

_Part = TypeVar("_Part", "HeadStats", "TopKeys")
# An NPY file of more cells is filled tile by tile and never held in memory.
_HELD_CELLS = 16_000_000


class OutputOptions(Formatted, AverageOptions, DigitsOptions):
    """What `compute` shows and saves."""

    show: list[str] | None = option(
        MOST_USED,
        "NAMES",
        f"Which of {', '.join(SHOWABLE)}, separated by commas. Default: weights,context. "
        "Repeatable.",
        autocompletion=list_of(*SHOWABLE),
    )
    format: Literal["table", "markdown", "json", "yaml", "csv", "tsv", "npy", "npz"] = option(
        MOST_USED,
        None,
        "markdown has the tables of a pipe; csv, tsv and npy hold one array: the context, unless "
        "--show names another; csv and tsv also stats or top.",
        "--format",
        "-f",
        default="table",
    )
    save: list[str] | None = option(
        MOST_USED,
        "[NAME=]PATH",
        "Write a file: context=c.csv, weights,lse=w.npz, or out.npz with what --show names. "
        "Repeatable.",
    )
    top: int | None = count(
        SHOWN, "N", "Keys that --show top lists for each query. Default: 3.", least=1
    )
    max_rows: int | None = count(
        SHOWN, "N", "Rows of a table; 0 shows all. Default: 20, or 64 in a pipe.", least=0
    )
    max_cols: int | None = count(
        SHOWN,
        "N",
        "Columns of a table; 0 shows all. What does not fit a terminal stands below the rest. "
        "Default: what fits, or 64 in a pipe.",
        least=0,
    )
    with_labels: bool = switch(SHOWN, "Write the names of queries and keys into CSV and TSV, too.")

    @property
    def is_tables(self) -> bool:
        """Whether tables for people are shown, cut and rounded."""
        return self.format in ("table", "markdown")

    @property
    def limits(self) -> Limits:
        """How large tables may be."""
        markdown = self.format == "markdown"
        rows, columns, heads = (20, None, 4) if is_terminal() and not markdown else (64, 64, 16)
        screen = Limits(markdown=True) if markdown else limits(self.color)
        return screen._replace(
            rows=rows if self.max_rows is None else self.max_rows or None,
            columns=columns if self.max_cols is None else self.max_cols or None,
            heads=heads,
            stacked=self.max_cols is not None,
            digits=self.digits,
        )

    def asks_for(self, name: str) -> bool:
        """Return whether an output of this name is to be shown or saved."""
        saved = (text.partition("=")[0] for text in self.save or () if "=" in text)
        return any(name in map(str.strip, text.split(",")) for text in (*(self.show or ()), *saved))


class Summaries:
    """The summaries of weights; each is made once, when it is first asked for."""

    def __init__(self, weights: Maps, picked: Picked, options: OutputOptions) -> None:
        self._weights, self._picked, self._options = weights, picked, options

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """The names of queries and keys."""
        return self._weights.labels

    def among(self, names: Collection[str]) -> dict[str, object]:
        """Return the named summaries as plain data."""
        return {
            name: [asdict(part) for part in (self._stats if name == "stats" else self._top)]
            for name in SUMMARIES
            if name in names
        }

    def parts(self, name: str, limits: Limits) -> Iterator[Text]:
        """Yield the title and the table of one summary."""
        from attncli.view.stats import stats_parts, top_parts
        from attncli.view.tables import heading, remark

        yield heading(name, limits)
        if name == "stats":
            yield from stats_parts(self._stats, limits)
        else:
            queries = self._weights.shape[2]
            shown = min(queries, limits.rows or queries)
            yield from top_parts([*self._top_of(shown)], limits)
            if shown < queries:
                more = counted(queries - shown, "more query", "more queries")
                yield remark(f"… {more} (--max-rows)", limits)
        yield remark("", limits)

    @cached_property
    def _stats(self) -> list[HeadStats]:
        from attncli.summaries.stats import statistics

        with progress_bar(quiet=self._options.quiet) as progress:
            return [*map(self._named, statistics(self._weights, progress=progress))]

    @cached_property
    def _top(self) -> list[TopKeys]:
        return [*self._top_of(self._weights.shape[2])]

    def _top_of(self, queries: int) -> Iterator[TopKeys]:
        from attncli.summaries.strongest import top

        return map(self._named, top(self._weights, self._options.top or 3, queries=queries))

    def _named(self, part: _Part) -> _Part:
        """Number batch entry and head as in the whole problem."""
        batch, head = self._picked.place(part.batch, part.head)
        return replace(part, batch=batch, head=head)


class Save(NamedTuple):
    """One file, the outputs it holds, and its format."""

    names: tuple[str, ...]
    path: str
    format: str


class Request(NamedTuple):
    """The names of the outputs that are shown, in their order, and the files to save."""

    names: tuple[str, ...]
    saves: tuple[Save, ...]
    options: OutputOptions

    @classmethod
    def of(cls, options: OutputOptions, usual: tuple[str, ...], inputs: Iterable[str]) -> Request:
        """Return the outputs and files that are asked for; no file may be an input."""
        from attncli.save.files import refuse_inputs, refuse_unwritable

        names = _names_shown(options.show) or usual
        chosen = bool(options.show)
        saves = tuple(save_of(text, names, chosen=chosen) for text in options.save or ())
        refuse_inputs([save.path for save in saves], inputs)
        refuse_unwritable(save.path for save in saves if save.format != "zarr")
        if not options.is_tables:
            names = _held(names, options.format, chosen=chosen)
        request = cls(names, saves, options)
        request._refuse_idle()
        return request

    @property
    def asked(self) -> set[str]:
        """The names of all outputs that are shown or saved."""
        return {*self.names, *(name for save in self.saves for name in save.names)}

    def _refuse_idle(self) -> None:
        options, asked = self.options, self.asked
        for name in [name for name in SUMMARIES if name in asked]:
            options.refuse("average_heads", f"does not go with {name}, which is of each head")
        if "weights" not in asked:
            why = "averages the weights, which are not asked for"
            options.refuse("average_heads", why, hint="add weights to --show")
        if "top" not in asked:
            options.refuse("top", "says how many keys --show top lists: add top to --show")
        if {"csv", "tsv"}.isdisjoint({options.format, *(save.format for save in self.saves)}):
            options.refuse(
                "with_labels",
                "is for CSV and TSV; JSON, YAML and NPZ hold the labels anyway",
                hint="add --format csv, or --save weights=FILE.csv",
            )

    def refuse_unheld(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse formats that cannot hold outputs of these shapes, before they are computed."""
        import numpy as np

        from attncli.save.formats import FORMATS, Results

        kind = self.options.format
        if kind in ("npy", "npz") and is_terminal():
            raise UsageError(
                f"{kind} is binary and stdout is a terminal",
                hint=f"send it to a file: > out.{kind}",
            )
        shown = [] if self.options.is_tables else [(self.names, kind)]
        for names, held_by in (*shown, *((save.names, save.format) for save in self.saves)):
            # Takes no memory: only the shape matters.
            cell = np.zeros((), np.bool_)
            arrays = {name: np.broadcast_to(cell, shapes[name]) for name in names if name in shapes}
            extra: dict[str, object] = {name: [] for name in names if name in SUMMARIES}
            FORMATS[held_by].hold(Results(arrays, extra=extra))

    def results(
        self, names: Sequence[str], arrays: Arrays, summaries: Summaries, layout: str | None
    ) -> Results:
        """Return the named outputs in the form that files and machine formats take."""
        from attncli.save.formats import Results

        held = {n: array for n in names if (array := arrays.get(n)) is not None}
        # Readers take the first of three axes for the heads, unless a layout is given.
        said = None if {*SQUARE, ROLLOUT}.isdisjoint(held) else layout
        told = summaries.among(names)
        return Results(held, *summaries.labels, told, said, self.options.with_labels)

    def show(self, parts: Iterator[Text], results: Callable[[Sequence[str]], Results]) -> None:
        """Print tables, or write a machine's format."""
        if self.options.format == "markdown":
            print_document("\n\n".join(text for part in parts if (text := str(part).strip())))
        elif self.options.is_tables:
            print_parts(parts, self.options.color)
        else:
            self.write(results(self.names))

    def write(self, results: Results) -> None:
        """Write a machine's format to standard output."""
        from attncli.save.formats import write

        stream = binary_stdout()
        write(stream, results, self.options.format)
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
    """Read ``--save [NAME=]PATH``; without NAME, the file holds the shown ``names``."""
    from attncli.save.formats import format_of

    name, separator, path = text.partition("=")
    if not separator or (name and not name.replace(",", "").isidentifier()):
        name, path = "", text  # a path may have an equals sign
    elif unknown := [each for each in name.split(",") if each not in SHOWABLE]:
        raise UsageError(
            f"--save {text}: expected NAME=PATH with a name of {', '.join(SHOWABLE)}; "
            f"found {unknown[0]!r}",
            hint=did_you_mean(unknown[0], SHOWABLE),
        )
    if not path:
        raise UsageError(f"--save {text}: expected [NAME=]PATH; found no path")
    if re.search(rf",({'|'.join(SHOWABLE)})=", path):
        raise UsageError(
            f"--save {text}: expected one file; found several", hint="repeat --save for each file"
        )
    several = tuple(dict.fromkeys(name.split(","))) if name else names
    kind = format_of(path, _unnamed(path, "csv" if len(several) == 1 else "json"))
    return Save(_held(several, kind, chosen=bool(name) or chosen), path, kind)


def _unnamed(path: str, kind: str) -> str | None:
    """Return the format of a path without a suffix, such as ``/dev/stdout`` or ``/dev/fd/63``."""
    from attncli.save.files import is_direct

    return kind if path and not Path(path).suffix and is_direct(path) else None


def _held(names: tuple[str, ...], kind: str, *, chosen: bool) -> tuple[str, ...]:
    """Return the outputs that a format takes: the context if it holds one array only."""
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
    """Yield arrays on disk for NPY files that are too large to be held in memory."""
    from attncli.engine import result_shapes

    with ExitStack() as files:
        opened: dict[Save, npt.NDArray[Any]] = {}
        for save in request.saves:
            name = save.names[0]
            mean = request.options.average_heads and name == "weights"
            shape = problem.output_shapes["mean weights" if mean else "weights"]
            taken = name in shown or name in {other.names[0] for other in opened}
            if save.format != "npy" or name not in SQUARE or taken:
                continue
            if math.prod(shape) > _HELD_CELLS:
                from attncli.save.binary import open_npy

                array = files.enter_context(open_npy(save.path, shape, problem.dtype))
                whole = shape if mean else result_shapes(problem, (name,))[name]
                opened[save] = array.reshape(whole)
        yield opened
