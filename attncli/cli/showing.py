"""What `compute` shows, and how it leaves the program: as tables or on standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.cli.terminal import binary_stdout, color_depth, is_terminal, shows_unicode, width
from attncli.errors import UsageError
from attncli.names import SHOWABLE, SUMMARIES
from attncli.text import did_you_mean, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from attncli.cli.options import OutputOptions, RunOptions
    from attncli.save.formats import Results
    from attncli.view.tables import Limits

__all__ = [
    "limits_of",
    "names_shown",
    "refuse_averaged_summaries",
    "refuse_binary",
    "refuse_unused_labels",
    "refuse_unused_top",
    "write_stdout",
]

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


def refuse_averaged_summaries(asked: set[str]) -> None:
    """Refuse summaries of the mean of the heads."""
    if each := [name for name in SUMMARIES if name in asked]:
        raise UsageError(
            f"{each[0]} is computed for each head: leave out either it or --average-heads"
        )


def refuse_unused_top(output: OutputOptions, asked: set[str]) -> None:
    """Refuse a number of strongest keys where nobody asks for these."""
    if output.top is not None and "top" not in asked:
        raise UsageError("--top says how many keys --show top lists: add top to --show")


def refuse_unused_labels(output: OutputOptions, saved: Iterable[str]) -> None:
    """Refuse to write labels where nothing is written that is without them."""
    if output.with_labels and not {"csv", "tsv"}.intersection((output.format, *saved)):
        raise UsageError(
            "--with-labels is for CSV and TSV; JSON, YAML and NPZ hold the labels anyway",
            hint="add --format csv, or --save weights=FILE.csv",
        )


def write_stdout(kind: str, outputs: Results) -> None:
    """Write outputs in a machine's format to standard output."""
    from attncli.save.formats import write

    stream = binary_stdout()
    write(stream, outputs, kind)
    stream.flush()


def refuse_binary(kind: str) -> None:
    """Refuse to write what no terminal shows."""
    if kind in ("npy", "npz") and is_terminal():
        raise UsageError(
            f"{kind} is binary and stdout is a terminal", hint=f"send it to a file: > out.{kind}"
        )


def limits_of(output: OutputOptions, run: RunOptions, decimals: int) -> Limits:
    """Return how large tables may be."""
    from attncli.view.tables import Limits

    rows, columns, heads = (20, None, 4) if is_terminal() else (64, 64, 16)
    return Limits(
        rows=rows if output.max_rows is None else output.max_rows or None,
        columns=columns if output.max_cols is None else output.max_cols or None,
        heads=heads,
        width=width(),
        stacked=output.max_cols is not None,
        digits=decimals,
        unicode=shows_unicode(),
        depth=color_depth(run.color),
    )
