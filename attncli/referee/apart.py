"""What would distinguish explanations that make the same numbers: another output, other inputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.referee.cases import Cases
from attncli.referee.evaluation import evaluate
from attncli.referee.groups import follow, needs_of
from attncli.referee.options import windowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.question import Question
    from attncli.referee.recipe import Outputs
    from attncli.referee.report import Cause

__all__ = ["told_apart_by"]

_OUTPUTS = ("weights", "lse", "scores", "context")
# What queries are multiplied with, so that other scores may tell explanations apart.
_OTHER_SIZES = (8, 64)


def told_apart_by(question: Question, cases: Cases, explanations: tuple[Cause, ...]) -> str:
    """Return a sentence about what would distinguish explanations; empty of one alone.

    Parameters
    ----------
    question : Question
    cases : Cases
        Those on which the explanations were found.
    explanations : tuple of Cause
    """
    if len(explanations) < 2:
        return ""
    made = _made(cases, explanations)
    for name in _OUTPUTS:
        if name not in question.files and _all_differ(made, name, len(explanations)):
            return f"the {name} of this same problem would distinguish them"
    for words, problem in _otherwise(question.problem):
        others = _made(Cases(replace(question, problem=problem)), explanations)
        if any(_all_differ(others, name, len(explanations)) for name in question.files):
            return f"the same inputs {words} would distinguish them"
    return "they give the same numbers here, but may differ on other inputs" + _shown(explanations)


def _made(cases: Cases, explanations: tuple[Cause, ...]) -> list[Outputs]:
    """Return what the explanations make, where they make sense."""
    groups = [explanation.conventions for explanation in explanations]
    recipes = [follow(cases.of(needs_of(group))[0], group) for group in groups]
    return [evaluate(recipe) for recipe in recipes if recipe is not None]


def _all_differ(made: list[Outputs], name: str, count: int) -> bool:
    arrays = [outputs[name] for outputs in made if name in outputs]
    return len(arrays) == count and not any(
        one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True)
        for one, other in combinations(arrays, 2)
    )


def _otherwise(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield problems that are as like the given one as may be, with what is another in words."""
    yield from _windowed_otherwise(problem)
    query = widen(problem.query, np.float64)
    for times in _OTHER_SIZES:
        yield f"with all queries multiplied by {times}", replace(problem, query=times * query)
    if problem.sinks is not None:
        yield "with sinks of the other sign", replace(problem, sinks=-problem.sinks)


def _windowed_otherwise(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the problem with other windows, and without what may hide one side of its own."""
    visible = problem.visible
    if visible.window is None:
        return
    left, right = visible.window
    for window in dict.fromkeys(
        (
            *((_larger(left), right), (left, _larger(right)), (_larger(left), _larger(right))),
            *((_smaller(left), right), (left, _smaller(right)), (_smaller(left), _smaller(right))),
        )
    ):
        if window == visible.window:
            continue
        yield (
            f"with another window, {windowed(*window, problem)},",
            replace(problem, visible=visible._replace(window=window)),
        )
    if visible.causal:
        yield "without --causal", replace(problem, visible=visible._replace(causal=False))


def _larger(side: int | None) -> int | None:
    return None if side is None else 2 * side + 1


def _smaller(side: int | None) -> int | None:
    return None if side is None else side // 2


def _shown(explanations: tuple[Cause, ...]) -> str:
    """Return on which inputs the conventions show that not all explanations share."""
    groups = [set(explanation.conventions) for explanation in explanations]
    common = set.intersection(*groups)
    conventions = (c for e in explanations for c in e.conventions if c not in common)
    shows = {convention.name: convention.shows for convention in conventions}
    if len(set(shows.values())) < 2:
        return "".join(f", with {where}" for where in dict.fromkeys(shows.values()))
    return ": " + "; ".join(f"{name} shows with {where}" for name, where in shows.items())
