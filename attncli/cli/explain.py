"""``attncli explain``: one query's way to its weights and context, number by number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.cli.options import (
    DigitsOptions,
    ExplainOptions,
    PickOneOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.question import ask_whole
from attncli.cli.terminal import advice, console, limits, print_document
from attncli.errors import UsageError
from attncli.errors.names import SCHEMA
from attncli.errors.text import json_text

if TYPE_CHECKING:
    from attncli.explanation.data import Explanation

__all__ = ["explain"]


# Each key has a number for each component of query and key.
_USUAL, _MOST_UNASKED = 12, 1000


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
    from attncli.explanation.explaining import query_indices

    if telling.format != "json":
        _refuse_no_decimals(digits)
    with advice(quiet=run.quiet):
        question = ask_whole(options, pick, run, example=telling.format != "json")
        problem, (batch, head) = question.problem, question.picked.place(0, 0)
        explanations = [
            explained(
                problem,
                query=query,
                batch=batch or 0,
                head=head or 0,
                keys=_told_keys(telling, problem.shape[3]),
                threads=run.threads,
            )
            for query in query_indices(problem, telling.query)
        ]
    _print(explanations, telling, digits, run)


def _told_keys(telling: ExplainOptions, count: int) -> int | None:
    """Return how many of so many keys are told one by one; None for all."""
    usual = _USUAL
    # To say that one is left out takes the line that it would take.
    if count <= _USUAL + 1 or (telling.format == "json" and count <= _MOST_UNASKED):
        usual = 0
    return (usual if telling.keys is None else telling.keys) or None


def _refuse_no_decimals(digits: DigitsOptions) -> None:
    if not digits.decimals:
        raise UsageError(
            "--digits: expected a number from 1 to 17 for explain; found 0",
            hint="its formulas do not add up without decimals: --digits 2 shows two",
        )


def _print(
    explanations: list[Explanation],
    telling: ExplainOptions,
    digits: DigitsOptions,
    run: RunOptions,
) -> None:
    if telling.format == "json":
        from attncli.explanation.mapping import as_dict

        digits.tell_of_all("json", quiet=run.quiet)
        told = [as_dict(each) for each in explanations]
        print_document(
            json_text(told[0] if len(told) == 1 else {"schema": SCHEMA, "queries": told})
        )
    elif telling.format == "markdown":
        from attncli.explanation.markdown import as_markdown

        texts = [as_markdown(each, digits=digits.decimals) for each in explanations]
        print_document("\n".join(texts).rstrip("\n"))
    else:
        _print_text(explanations, digits, run)


def _print_text(explanations: list[Explanation], digits: DigitsOptions, run: RunOptions) -> None:
    from attncli.explanation.terminal import renderable

    screen, shown = console(run.color), limits(run.color)._replace(digits=digits.decimals)
    for number, each in enumerate(explanations):
        if number:
            screen.print("")
        screen.print(renderable(each, shown))
