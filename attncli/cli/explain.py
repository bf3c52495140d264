"""``attncli explain``: every number between one query and its weights and context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncli.cli.declaring import MOST_USED, SHOWN, count, option
from attncli.cli.options import (
    DigitsOptions,
    Formatted,
    PickOneOptions,
    QuestionOptions,
)
from attncli.cli.question import ask
from attncli.cli.terminal import advice, limits, print_document, print_parts
from attncli.errors import UsageError
from attncli.errors.names import SCHEMA
from attncli.errors.text import json_text

if TYPE_CHECKING:
    from attncli.explanation.data import Explanation

# Keys that get a line by default, and the most that JSON holds by default.
_USUAL, _MOST_UNASKED = 12, 1000


class ExplainOptions(Formatted, PickOneOptions, DigitsOptions, QuestionOptions):
    """Which queries are explained, and how."""

    query: str = option(
        MOST_USED,
        "I or LABEL",
        "The query, counted from 0 (-1 is the last one), or its label; several with commas (0,2 "
        "or cat,sat) or a range (0:3, without 3).",
        default="0",
    )
    format: Literal["text", "markdown", "json"] = option(
        MOST_USED,
        None,
        "Format of the explanation; markdown has LaTeX formulas.",
        "--format",
        "-f",
        default="text",
    )
    keys: int | None = count(
        SHOWN,
        "N",
        "Show the N strongest keys one by one and sum up the rest; 0 shows all. Default: 12, or "
        "all if there are at most 13; in JSON all if there are at most 1,000.",
        least=0,
    )

    @property
    def takes_example(self) -> bool:
        """Whether a person reads the answer: JSON is for programs."""
        return self.format != "json"


def explain(options: ExplainOptions) -> None:
    """Explain one query, with every number on its way.

    The explanation shows the products, the scores, why a key is hidden, the exponentials, the
    weights, the weighted sum of the values, and what an output projection makes of it, for head
    0 of batch entry 0 unless --head or --batch is given.

    Example: attncli explain q.csv k.csv v.csv --query 0

    Example: attncli explain layer.npz --tokens tokens.txt --query cat --head 3
    """
    from attncli.explanation.explaining import explain as explained
    from attncli.explanation.explaining import query_indices

    if options.format == "json":
        options.tell_of_all("json")
    elif not options.digits:
        raise UsageError(
            "--digits: expected a number from 1 to 17 for explain; found 0",
            hint="its formulas do not add up without decimals: --digits 2 shows two",
        )
    with advice(quiet=options.quiet):
        # All heads stay in the problem: an output projection adds them up.
        problem = ask(options.but(batch=None, head=None)).problem
        batch, head = options.among(problem.shape[:2], problem.layout.weight_axes).place(0, 0)
        explanations = [
            explained(
                problem,
                query=query,
                batch=batch or 0,
                head=head or 0,
                keys=_most_keys(options, problem.shape[3]),
                threads=options.threads,
            )
            for query in query_indices(problem, options.query)
        ]
    _print(explanations, options)


def _most_keys(options: ExplainOptions, count: int) -> int | None:
    """Return how many keys get a line each; None means all."""
    if options.keys is not None:
        return options.keys or None
    # A line that counts one key as left out is as long as the key's own line.
    all_of_them = _MOST_UNASKED if options.format == "json" else _USUAL + 1
    return None if count <= all_of_them else _USUAL


def _print(explanations: list[Explanation], options: ExplainOptions) -> None:
    if options.format == "json":
        from attncli.explanation.mapping import as_dict

        told = [as_dict(each) for each in explanations]
        document = told[0] if len(told) == 1 else {"schema": SCHEMA, "queries": told}
        print_document(json_text(document))
    elif options.format == "markdown":
        from attncli.explanation.printing import as_markdown

        texts = [as_markdown(each, digits=options.digits) for each in explanations]
        print_document("\n".join(texts).rstrip("\n"))
    else:
        from attncli.explanation.printing import renderable

        shown = limits(options.color)._replace(digits=options.digits)
        for number, each in enumerate(explanations):
            parts = [renderable(each, shown)]
            print_parts(["", *parts] if number else parts, options.color)
