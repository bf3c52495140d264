"""What `compute` shows, and how it leaves the program: as tables or on standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.cli.saving import Save, held, refuse_unheld, saves_of
from attncli.cli.terminal import (
    binary_stdout,
    color_depth,
    console,
    is_terminal,
    print_document,
    shows_unicode,
    width,
)
from attncli.errors import UsageError
from attncli.errors.names import INPUTS, OUTPUTS, SHOWABLE, SQUARE, SUMMARIES
from attncli.errors.text import did_you_mean, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt
    from rich.console import RenderableType

    from attncli.cli.options import OutputOptions, RunOptions
    from attncli.cli.summaries import Summaries
    from attncli.save.formats import Results
    from attncli.view.tables import Limits

__all__ = ["Request", "names_shown"]

_ALSO_CALLED = {
    "q": "query",
    "k": "key",
    "v": "value",
    "out": "context",
    "output": "context",
    "attention": "weights",
    "softmax": "weights",
    "entropy": "stats, which holds the entropy",
    "attn": "weights",
    "probs": "weights",
    "logits": "scores",
    "logsumexp": "lse",
}


class Request(NamedTuple):
    """What is asked for, of a problem or of finished weights.

    Attributes
    ----------
    names : tuple of str
        What is shown, in this order.
    saves : tuple of Save
    output : OutputOptions
    averaged : bool
        The weights are the mean of the heads.
    """

    names: tuple[str, ...]
    saves: tuple[Save, ...]
    output: OutputOptions
    averaged: bool

    @classmethod
    def of(
        cls, output: OutputOptions, names: tuple[str, ...], inputs: Iterable[str], *, averaged: bool
    ) -> Request:
        """Return what is asked for where these names are shown, and these files are read."""
        saves = saves_of(output.save or (), names, inputs, chosen=bool(output.show))
        return cls(names, saves, output, averaged)

    @property
    def asked(self) -> set[str]:
        """What is shown or saved."""
        return {*self.names, *(name for save in self.saves for name in save.names)}

    def refuse_idle(self) -> None:
        """Refuse options that have nothing to act on."""
        if self.averaged:
            _refuse_unaveraged(self.asked)
        if self.output.top is not None and "top" not in self.asked:
            raise UsageError("--top says how many keys --show top lists: add top to --show")
        formats = {self.output.format, *(save.format for save in self.saves)}
        if self.output.with_labels and not {"csv", "tsv"} & formats:
            raise UsageError(
                "--with-labels is for CSV and TSV; JSON, YAML and NPZ hold the labels anyway",
                hint="add --format csv, or --save weights=FILE.csv",
            )

    def held(self, empty: Callable[[str], npt.NDArray[Any]]) -> Request:
        """Return it with what the format shows, where formats can hold what is asked of them.

        Parameters
        ----------
        empty : callable
            As for `attncli.cli.saving.refuse_unheld`.
        """
        names, kind = self.names, self.output.format
        if not self.output.is_tables:
            _refuse_binary(kind)
            names = held(names, kind, chosen=bool(self.output.show))
            refuse_unheld(names, kind, empty)
        for save in self.saves:
            refuse_unheld(save.names, save.format, empty)
        return self._replace(names=names)

    def results(
        self,
        names: Sequence[str],
        array_of: Callable[[str], npt.NDArray[Any]],
        summaries: Summaries,
        *,
        batched: str | None,
    ) -> Results:
        """Return the outputs of these names, as files and machine formats take them.

        Parameters
        ----------
        names : sequence of str
        array_of : callable
            Returns an output by its name.
        summaries : Summaries
        batched : str or None
            The layout where the axis before (L, S) is the batch.
        """
        from attncli.save.formats import Results

        arrays = {name: array_of(name) for name in (*INPUTS, *OUTPUTS) if name in names}
        # Of three axes the first is taken for the heads, unless a file says otherwise.
        layout = batched if any(name in SQUARE for name in arrays) else None
        labels, labelled = summaries.labels, self.output.with_labels
        return Results(arrays, *labels, summaries.among(names), layout, labelled)

    def show(
        self,
        results: Callable[[Sequence[str]], Results],
        tables: Callable[[Limits], Iterator[RenderableType]],
        run: RunOptions,
        *,
        decimals: int,
    ) -> None:
        """Print the tables, or write a machine's format to standard output."""
        if not self.output.is_tables:
            _write_stdout(self.output.format, results(self.names))
            return
        parts = tables(_limits_of(self.output, run, decimals))
        if self.output.format == "markdown":
            print_document("\n\n".join(text for part in parts if (text := str(part).strip())))
            return
        screen = console(run.color)
        for part in parts:
            screen.print(part, crop=False)


def _refuse_unaveraged(asked: set[str]) -> None:
    """Refuse the mean of the heads of what has none, or of nothing."""
    if each := [name for name in SUMMARIES if name in asked]:
        raise UsageError(
            f"{each[0]} is computed for each head: leave out either it or --average-heads"
        )
    if "weights" not in asked:
        raise UsageError(
            "--average-heads averages the weights, which are not asked for",
            hint="add weights to --show",
        )


def names_shown(show: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names that ``--show`` asks for; none where it was not given."""
    names = tuple(dict.fromkeys(name.strip() for names in show or () for name in names.split(",")))
    for name in names:
        if name not in SHOWABLE:
            raise UsageError(
                f"--show: expected names of {', '.join(SHOWABLE)}; found {quoted(name)}",
                hint=_meant_by(name),
            )
    return names


def _meant_by(name: str) -> str | None:
    """Return what a name that is not shown probably means, as a hint."""
    if name == "all":
        return "give the names: --show weights,context,scores"
    meant = _ALSO_CALLED.get(name.lower())
    return f"did you mean {meant}?" if meant else did_you_mean(name, SHOWABLE)


def _write_stdout(kind: str, outputs: Results) -> None:
    """Write outputs in a machine's format to standard output."""
    from attncli.save.formats import write

    stream = binary_stdout()
    write(stream, outputs, kind)
    stream.flush()


def _refuse_binary(kind: str) -> None:
    """Refuse to write what no terminal shows."""
    if kind in ("npy", "npz") and is_terminal():
        raise UsageError(
            f"{kind} is binary and stdout is a terminal", hint=f"send it to a file: > out.{kind}"
        )


def _limits_of(output: OutputOptions, run: RunOptions, decimals: int) -> Limits:
    """Return how large tables may be."""
    from attncli.view.tables import Limits

    markdown = output.format == "markdown"
    rows, columns, heads = (20, None, 4) if is_terminal() and not markdown else (64, 64, 16)
    return Limits(
        rows=rows if output.max_rows is None else output.max_rows or None,
        columns=columns if output.max_cols is None else output.max_cols or None,
        heads=heads,
        width=None if markdown else width(),
        stacked=output.max_cols is not None,
        digits=decimals,
        unicode=markdown or shows_unicode(),
        depth="none" if markdown else color_depth(run.color),
        markdown=markdown,
    )
