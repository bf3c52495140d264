"""Weights that are 0 but should not be, inferred from the numbers of the files."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import at_the_end, of_context
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import fewest_digits
from attncli.referee.fitted.found_weights import Patterns, by_part, patterns_of, shown_by
from attncli.referee.replacing import replace
from attncli.referee.rounding import short_of
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["dropout", "output_dropout", "zeroed_weights"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# Somebody chose the share that is dropped; less than this is rounding error.
_LEAST = 1e-3


def dropout(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that weights were dropped out, and the others raised.

    References
    ----------
    Srivastava et al. 2014, "Dropout"; ``dropout_p`` of PyTorch's scaled_dot_product_attention.
    """
    zeros = _zeros(cases)
    if zeros is None:
        return None
    files = [shown.weights for shown in shown_by(cases) or ()]
    share = _share(zeros, cases, files, "weights")
    if share is None:
        return None
    return Convention(
        name="dropout",
        topic=topics.DROPOUT,
        meaning=f"dropout was left on: {_percent(zeros, cases)} of the weights are 0, and the "
        f"others are divided by 1 − {share:.6g}",
        fix="switch dropout off: dropout_p=0, or eval() before the output is computed",
        shows="almost any input",
        apply=by_part(zeros, partial(_zeroed, 1 / (1 - share))),
    )


def output_dropout(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that numbers of the context were dropped out, and the others raised."""
    if not all("context" in case.files and case.comparable for case in cases):
        return None
    files = [case.canonical("context") for case in cases]
    zeros = {
        case.recipe.part: (file == 0) & (np.abs(case.right["context"]) > case.recipe.resolution)
        for case, file in zip(cases, files, strict=True)
    }
    share = _share(zeros, cases, files, "context")
    if share is None or not any(zero.any() for zero in zeros.values()):
        return None
    return Convention(
        name="output_dropout",
        topic=topics.DROPOUT,
        meaning="dropout is left on behind attention: some numbers of the context are 0, and the "
        f"others are divided by 1 − {share:.6g}",
        fix="switch dropout off: eval() before the output is computed",
        shows="almost any input",
        apply=by_part(
            zeros,
            partial(
                _dropped_out,
                1 / (1 - share),
                before_projection=cases[0].recipe.problem.output is None,
            ),
        ),
    )


def _dropped_out(factor: float, recipe: Recipe, zeros: Bools, *, before_projection: bool) -> Recipe:
    """Drop numbers out of the context: of each head, or behind an output projection."""
    drop = of_context(lambda _, context: np.where(zeros, 0, context * factor))
    return at_the_end(recipe, drop, before_projection=before_projection)


def zeroed_weights(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that some weights are 0, and the others as they should be."""
    zeros = _zeros(cases)
    if zeros is None:
        return None
    return Convention(
        name="zeroed_weights",
        topic=topics.DROPOUT,
        meaning=f"{_percent(zeros, cases)} of the weights are 0, and the others are as they "
        "should be, so the rows do not sum to 1",
        fix="hide keys before the softmax, with scores of −inf, and sum the values of all keys",
        shows="almost any input",
        pattern=True,
        apply=by_part(zeros, partial(_zeroed, 1.0)),
    )


def _zeros(cases: Sequence[Case]) -> Patterns | None:
    """Return which weights are 0 that should not be; None where there are none."""
    zeros = patterns_of(cases, lambda case, found: found.zero(case.right["weights"]))
    return zeros if zeros and any(pattern.any() for pattern in zeros.values()) else None


def _share(
    zeros: Patterns, cases: Sequence[Case], files: Sequence[Array], name: str
) -> float | None:
    """Return the p with which right / (1 − p) comes nearest to what is not 0; None below 0.

    Parameters
    ----------
    zeros : mapping of Part to ndarray of bool
    cases : sequence of Case
    files : sequence of ndarray
        What each holds of an output.
    name : str
        Of the output.
    """
    kept = [
        ~zeros[case.recipe.part] & np.isfinite(file)
        for case, file in zip(cases, files, strict=True)
    ]
    found = np.concatenate([file[at] for file, at in zip(files, kept, strict=True)])
    right = np.concatenate([c.right[name][at] for c, at in zip(cases, kept, strict=True)])
    if not right.any():
        return None
    factor = float(np.dot(found, right) / np.dot(right, right))
    if factor <= 1:
        return None
    short = short_of((found,))
    share = fewest_digits(
        1 - 1 / factor,
        lambda tried: root_mean_square(found - right / (1 - tried)) if tried < 1 else math.inf,
        # Large weights count most, and may have been rounded to the same side.
        0.0 if short is None else short.eps / 2 * root_mean_square(found),
    )
    return share if _LEAST <= share < 1 else None


def _zeroed(factor: float, recipe: Recipe, zeros: Bools) -> Recipe:
    return replace(
        recipe, after=(*recipe.after, lambda _, weights: np.where(zeros, 0, weights * factor))
    )


def _percent(zeros: Patterns, cases: Sequence[Case]) -> str:
    count = sum(int(np.count_nonzero(pattern)) for pattern in zeros.values())
    of = sum(int(np.count_nonzero(case.right["weights"])) for case in cases)
    return f"{100 * count / of:.2g} %"
