"""The weights that a file shows: its own, or the only ones that give its context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from attncli.referee.recipe import Part
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from attncli.referee.case import Case
    from attncli.referee.convention import Apply
    from attncli.referee.recipe import Recipe

__all__ = [
    "FoundWeights",
    "Patterns",
    "by_part",
    "is_plain",
    "patterns_of",
    "shown_by",
]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Found = TypeVar("Found")
# Of each part of a problem, (B, H, L, S).
Patterns = dict[Part, Bools]
# Where values are nearly linearly dependent, the context no longer determines the weights.
_DEPENDENT = 1e-3
# Most errors are this small a share of what is tolerated of one element.
_TYPICAL = 1 / 8
# A weight that is less is as good as 0, as a share of what is tolerated (of a context, perhaps).
_NOTHING = 1 / 32


class FoundWeights(NamedTuple):
    """Weights of a file, and which of them are 0.

    Attributes
    ----------
    weights : ndarray (B, H, L, S)
    least : float
        Weights that are expected to be smaller cannot be told from 0.
    """

    weights: Array
    least: float

    def zero(self, expected: Array) -> Bools:
        """Return which weights are 0 up to rounding error, where that can be decided."""
        return np.asarray((expected > self.least) & (np.abs(self.weights) <= expected / 2))


def by_part(found: Mapping[Part, Found], change: Callable[[Recipe, Found], Recipe]) -> Apply:
    """Make an `apply` of what was found in each part of a problem; None for other parts.

    Parameters
    ----------
    found : mapping of Part
    change : callable
        A recipe and what was found in its part, to the deviating recipe.
    """

    def apply(recipe: Recipe) -> Recipe | None:
        return change(recipe, found[recipe.part]) if recipe.part in found else None

    return apply


def patterns_of(
    cases: Sequence[Case], pattern: Callable[[Case, FoundWeights], Bools]
) -> Patterns | None:
    """Return a pattern of each case; None where the files of one show no weights."""
    shown = shown_by(cases)
    if shown is None:
        return None
    pairs = zip(cases, shown, strict=True)
    return {case.recipe.part: pattern(case, found) for case, found in pairs}


def shown_by(cases: Sequence[Case]) -> list[FoundWeights] | None:
    """Return the weights that the files of each case show; None where those of one show none."""
    shown = [found for case in cases if (found := _found_weights(case)) is not None]
    return shown if len(shown) == len(cases) else None


def _found_weights(case: Case) -> FoundWeights | None:
    """Return the weights that the files of a case show.

    Parameters
    ----------
    case : Case

    Returns
    -------
    FoundWeights or None
        None where the files hold none of each head, and the context has fewer columns than
        there are keys, or was projected, or is the sum of linearly dependent values.
    """
    if not case.comparable:
        return None
    problem, resolution = case.recipe.problem, case.recipe.resolution
    if "weights" in case.files:
        weights = case.canonical("weights")
        each = weights.shape[1] == problem.shape[1]
        return FoundWeights(weights, _NOTHING * resolution) if each else None
    if "context" in case.files and problem.output is None:
        return _out_of_context(case, _TYPICAL * resolution)
    return None


def is_plain(case: Case) -> bool:
    """Return whether a file is the context of products, keys and values and of nothing else."""
    problem = case.recipe.problem
    return bool(
        "context" in case.files
        and problem.value is not None
        and problem.output is None
        and problem.score == "dot"
        and problem.softcap is None
        and problem.sinks is None
        and not case.recipe.terms
        and case.comparable
    )


def _out_of_context(case: Case, error: float) -> FoundWeights | None:
    """Solve weights · V = context, which has one solution where the values are independent."""
    problem = case.recipe.problem
    if problem.value is None or problem.value.shape[-2] > problem.value.shape[-1]:
        return None
    value, context = shared(problem, problem.value), case.canonical("context")
    if not (np.isfinite(value).all() and np.isfinite(context).all()):
        return None
    lengths = np.linalg.svd(value, compute_uv=False)
    if lengths.min() <= _DEPENDENT * lengths.max():
        return None
    return FoundWeights(context @ np.linalg.pinv(value), float(error / lengths.min()))
