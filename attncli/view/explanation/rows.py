"""The keys of an explanation as the rows of a table, however it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncli.view.explanation.lines import rest_name
from attncli.view.notation import Notation, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.explanation.data import Explanation, KeyStep

__all__ = ["Row", "headings_of", "row_texts", "table_rows"]

_HEADINGS = ("raw", "capped", "bias", "ALiBi", "score", "shifted", "exp", "weight")


@dataclass(frozen=True)
class Row:
    """One line of the table; numbers by their headings, or words in place of them.

    Attributes
    ----------
    name : str
    cells : dict of str to float
    weight : float
        How long its bar is.
    bar : bool
        Whether it has one.
    words : str
        Why a key is hidden; empty where it is seen.
    style : str
    step : KeyStep or None
        The key that it is of.
    """

    name: str
    cells: dict[str, float]
    weight: float = 0.0
    bar: bool = True
    words: str = ""
    style: str = ""
    step: KeyStep | None = None


def table_rows(explanation: Explanation) -> Iterator[Row]:
    """Yield a row for each key, for the sink and the rest if there are any, and for the sums."""
    for step in explanation.steps:
        yield _key_row(explanation, step)
    if explanation.sink is not None:
        exponential = explanation.sink_exponential
        yield Row(
            "(sink)",
            {
                "score": explanation.sink,
                "shifted": explanation.sink - explanation.shift,
                "exp": exponential,
                "weight": exponential / explanation.denominator,
            },
            exponential / explanation.denominator,
            style="italic",
        )
    if explanation.rest is not None:
        sums = {"exp": explanation.rest.exponential, "weight": explanation.rest.weight}
        yield Row(
            rest_name(explanation.rest.count, explanation.rest.hidden),
            sums,
            bar=False,
            style="italic dim",
        )
    yield _sum_row(explanation)


def _key_row(explanation: Explanation, step: KeyStep) -> Row:
    name = name_of("k", step.index, step.label)
    if step.label is not None:
        name = f"{step.index} {name}"
    several = (
        explanation.softcap is not None or explanation.has_bias or explanation.slope is not None
    )
    numbers = {
        "raw": step.raw if several else None,
        "capped": None if explanation.softcap is None else step.capped,
        "bias": step.bias if explanation.has_bias else None,
        "ALiBi": None if explanation.slope is None else -step.penalty,
        "score": step.score,
    }
    if not step.hidden:
        numbers |= {"shifted": step.exponent, "exp": step.exponential, "weight": step.weight}
    cells = {heading: x for heading, x in numbers.items() if x is not None}
    words = "hidden by " + ", ".join(reason.rule for reason in step.hidden) if step.hidden else ""
    style = "dim" if step.hidden else ""
    return Row(name, cells, step.weight, words=words, style=style, step=step)


def _sum_row(explanation: Explanation) -> Row:
    """Return the last line: what softmax divides by, and the sum of the weights."""
    rest = explanation.rest
    weight = sum(step.weight for step in explanation.steps) + (rest.weight if rest else 0.0)
    if explanation.sink is not None:
        weight += explanation.sink_exponential / explanation.denominator
    sums = {"exp": explanation.denominator, "weight": weight}
    return Row("sum", sums, bar=False, style="bold")


def headings_of(texts: list[dict[str, str]]) -> list[str]:
    """Return the headings of the columns that some row has a number for, in reading order."""
    return [name for name in _HEADINGS if any(name in cells for cells in texts)]


def row_texts(rows: list[Row], notation: Notation) -> list[dict[str, str]]:
    """Return the numbers of each row as texts, those of a column in one notation."""
    texts: list[dict[str, str]] = [{} for _ in rows]
    for heading in _HEADINGS:
        holding = [row for row in rows if heading in row.cells]
        written = iter(notation.cells(row.cells[heading] for row in holding))
        for row, own in zip(rows, texts, strict=True):
            if heading in row.cells:
                own[heading] = next(written)
    return texts
