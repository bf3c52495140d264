"""``attncli explain``: one query's way to its weights and context, number by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from attncli.cli.options import (
    MOST_USED,
    SHOWN,
    DigitsOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.picking import PickOneOptions
from attncli.cli.question import ask_whole
from attncli.cli.terminal import (
    advice,
    color_depth,
    console,
    print_document,
    shows_unicode,
    width,
)
from attncli.errors import UsageError
from attncli.text import json_text

if TYPE_CHECKING:
    from attncli.explanation.data import Explanation

__all__ = ["explain"]


# Each key has a number for each component of query and key.
_USUAL, _MOST_UNASKED = 12, 1000


@dataclass(eq=False, repr=False)
class ExplainOptions:
    """Which query is explained, and how."""

    query: Annotated[
        str,
        Option(
            metavar="I or LABEL",
            help="The query, counted from 0 (-1 is the last one), or its label.",
            rich_help_panel=MOST_USED,
        ),
    ] = "0"
    format: Annotated[
        Literal["text", "markdown", "json"],
        Option(
            "--format",
            "-f",
            help="Format of the explanation; markdown has LaTeX formulas.",
            rich_help_panel=MOST_USED,
        ),
    ] = "text"
    keys: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            help="Show the N strongest keys one by one and sum up the rest; 0 shows all. Default: "
            "12, or all if there are at most 13; in JSON all if there are at most 1,000.",
            rich_help_panel=SHOWN,
        ),
    ] = None

    def told_keys(self, count: int) -> int | None:
        """Return how many of so many keys are told one by one; None for all."""
        usual = _USUAL
        # To say that one is left out takes the line that it would take.
        if count <= _USUAL + 1 or (self.format == "json" and count <= _MOST_UNASKED):
            usual = 0
        return (usual if self.keys is None else self.keys) or None


def explain(
    telling: ExplainOptions,
    pick: PickOneOptions,
    digits: DigitsOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Explain one query, with every number on its way.

    The explanation shows the products, the scores, why a key is hidden, the exponentials, the
    weights, the weighted sum of the values, and what an output projection makes of it, for head
    0 of batch entry 0 unless --head or --batch is given.

    Example: attncli explain q.csv k.csv v.csv --query 0

    Example: attncli explain layer.npz --tokens tokens.txt --query cat --head 3
    """
    from attncli.explanation.explaining import explain as explained
    from attncli.explanation.explaining import query_index

    if telling.format != "json":
        _refuse_no_decimals(digits)
    with advice(quiet=run.quiet):
        question = ask_whole(options, pick, run)
        problem, (batch, head) = question.problem, question.picked.place(0, 0)
        explanation = explained(
            problem,
            query=query_index(problem, telling.query),
            batch=batch or 0,
            head=head or 0,
            keys=telling.told_keys(problem.shape[3]),
            threads=run.threads,
        )
    _print(explanation, telling, digits, run)


def _refuse_no_decimals(digits: DigitsOptions) -> None:
    if not digits.decimals:
        raise UsageError(
            "--digits: expected a number from 1 to 17 for explain; found 0",
            hint="its formulas do not add up without decimals: --digits 2 shows two",
        )


def _print(
    explanation: Explanation, telling: ExplainOptions, digits: DigitsOptions, run: RunOptions
) -> None:
    if telling.format == "json":
        from attncli.view.explanation.mapping import as_dict

        digits.tell_of_all("json", quiet=run.quiet)
        print_document(json_text(as_dict(explanation)))
    elif telling.format == "markdown":
        from attncli.view.explanation.markdown import as_markdown

        print_document(as_markdown(explanation, digits=digits.decimals).rstrip("\n"))
    else:
        from attncli.view.explanation.terminal import renderable

        part = renderable(
            explanation,
            width=width(),
            digits=digits.decimals,
            unicode=shows_unicode(),
            depth=color_depth(run.color),
        )
        console(run.color).print(part)
