"""The sums of an explanation as numbers: their terms, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attncli.view.explanation.sums import Rest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import numpy.typing as npt

    from attncli.explanation.data import Explanation, KeyStep, OutputShare, QueryMade

__all__ = [
    "CONTEXT_COLUMNS",
    "MADE_COLUMNS",
    "Sum",
    "all_equal",
    "context_sum",
    "made_query",
    "made_sum",
    "output_sum",
    "score_names",
    "seen_steps",
    "strongest",
    "wave_columns",
    "whole_output",
]

# Of an encoding of the position: the formulas of the others are alike.
_WAVE_COLUMNS = 4
# Only the first columns of wide values are shown, and fewer of projections: their sums are long.
CONTEXT_COLUMNS = 8
MADE_COLUMNS = 4


class Sum(NamedTuple):
    """A sum of products of two numbers.

    Attributes
    ----------
    pairs : sequence of (float, float)
        The factors of each term.
    sizes : sequence of float
        The terms.
    rest : Rest or None
        What is not written term by term.
    """

    pairs: Sequence[tuple[float, float]]
    sizes: Sequence[float]
    rest: Rest | None = None


def made_query(explanation: Explanation, made: QueryMade) -> npt.NDArray[Any]:
    """Return what the projection gives, (D,): the query, or what is normalised then."""
    return explanation.given if made.norm is None else made.norm.projected


def wave_columns(width: int) -> range:
    """Return the columns of the first sines of an encoding of the position."""
    return range(0, min(width, _WAVE_COLUMNS), 2)


def made_sum(made: QueryMade, column: int) -> Sum:
    """Return the terms of one column of the query: embedding times weight."""
    pairs = zip(made.embedding.tolist(), made.weight[:, column].tolist(), strict=True)
    return Sum(list(pairs), made.products(column).tolist())


def context_sum(explanation: Explanation, column: int) -> Sum:
    """Return the terms of one column of the context: weight times value of each visible key."""
    seen = [step for step in seen_steps(explanation) if step.value is not None]
    pairs = [(s.weight, float(s.value[column])) for s in seen if s.value is not None]
    sizes = [float(s.contribution[column]) for s in seen if s.contribution is not None]
    rest = None
    if explanation.rest is not None and explanation.rest.contribution is not None:
        rest = Rest(explanation.rest.seen, float(explanation.rest.contribution[column]))
    return Sum(pairs, sizes, rest)


def output_sum(explanation: Explanation, output: OutputShare, column: int) -> Sum:
    """Return the terms of one column of the output: context times weight."""
    context = [] if explanation.context is None else explanation.context.tolist()
    pairs = list(zip(context, output.weight[:, column].tolist(), strict=True))
    return Sum(pairs, [one * other for one, other in pairs])


def whole_output(output: OutputShare, column: int) -> tuple[float | None, float]:
    """Return the bias, which only a single head adds itself, and the total of a column."""
    share = float(output.share[column])
    if output.bias is None or output.heads > 1:
        return None, share
    bias = float(output.bias[column])
    return bias, share + bias


def seen_steps(explanation: Explanation) -> list[KeyStep]:
    """Return the keys that the query sees."""
    return [step for step in explanation.steps if not step.hidden]


def strongest(explanation: Explanation) -> KeyStep | None:
    """Return the key with the largest weight; None if there is only a sink."""
    return max(seen_steps(explanation), key=lambda step: step.weight, default=None)


def all_equal(explanation: Explanation) -> bool:
    """Return whether the scores of several keys are all the same, and there is no sink."""
    scores = {step.score for step in seen_steps(explanation)}
    listed = explanation.rest is None or not explanation.rest.seen
    return listed and explanation.sink is None and len(scores) == 1 < len(seen_steps(explanation))


def score_names(explanation: Explanation) -> tuple[str, str]:
    """Return the names of the product of query and key, before and after a softcap.

    The last stage of a problem is the score.
    """
    added = explanation.has_bias or explanation.slope is not None
    return (
        "raw" if added or explanation.softcap is not None else "score",
        "capped" if added else "score",
    )
