"""Whether errors are as large, direction by direction, as dropout of the weights makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.case import Case

__all__ = ["like_dropout"]

Array = npt.NDArray[Any]
# Directions in which dropout moves a context much less are left to rounding errors.
_LEAST_VARIANCE, _BEYOND_ROUNDING = 1e-4, 10.0
# Each group of errors must be so many, and say the same number up to this factor.
_LEAST_COUNT, _GROUPS, _FACTOR = 100, 4, 1.35
# Any errors would look so if dropout moved contexts as far in one direction as in another.
_LEAST_RANGE = 2.0
# What is lost at random has nothing to do with what is right, or with what the next query loses.
_CORRELATED = 0.15
# Eigenvectors that take some tenths of a second: rows times columns cubed.
_MOST_WORK = 2**28
# What nobody drops; errors of weights in few bits look like less.
_SMALLEST, _LARGEST = 0.045, 0.9


def like_dropout(cases: Sequence[Case]) -> float | None:
    """Return the share of the weights whose loss explains how large the errors of contexts are.

    With more keys than columns, a context does not show its weights. But each error
    Σ_j (m_j / (1 − p) − 1) w_j v_j of dropout, m_j being 0 with probability p and 1 otherwise,
    has the covariance p / (1 − p) · Σ_j w_j² v_j v_jᵀ. Along the eigenvectors of that sum, in
    units of its eigenvalues, errors of dropout have the variance p / (1 − p): along the large
    ones as along the small ones, in the first queries as in the last. Hardly anything else does.

    Parameters
    ----------
    cases : sequence of Case

    Returns
    -------
    float or None
        p; None where the errors are not like that.

    References
    ----------
    Srivastava et al. 2014, "Dropout"; ``dropout_p`` of PyTorch's scaled_dot_product_attention.
    """
    shown = [case for case in cases if _shows_errors(case)]
    found = [errors for case in shown for errors in _errors(case) if errors[0].size]
    if not found or _repeat(shown):
        return None
    apart, right, variances, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if abs(apart @ right) > _CORRELATED * np.linalg.norm(apart) * np.linalg.norm(right):
        return None
    squares = np.square(apart)
    odds = float(squares.mean())
    share = odds / (1 + odds)
    groups = [*_quarters(squares, variances), *_quarters(squares, rows)]
    alike = all(
        len(group) >= _LEAST_COUNT and odds / _FACTOR <= group.mean() <= odds * _FACTOR
        for group in groups
    )
    low, high = np.quantile(variances, [0.25, 0.75])
    told = alike and high >= _LEAST_RANGE * low and _SMALLEST <= share <= _LARGEST
    return share if told else None


def _quarters(squares: Array, by: Array) -> list[Array]:
    return np.array_split(squares[np.argsort(by, kind="stable")], _GROUPS)


def _shows_errors(case: Case) -> bool:
    """Return whether a case holds a context, not projected, and the right weights."""
    known = "context" in case.files and {"context", "weights"} <= case.right.keys()
    if not known or case.recipe.problem.output is not None or not comparable(case):
        return False
    return bool(np.isfinite(_apart(case)).all())


def _apart(case: Case) -> Array:
    return canonical_file(case, "context") - case.right["context"]


def _repeat(cases: Sequence[Case]) -> bool:
    """Return whether neighbouring queries have errors in one direction, as where keys are lost."""
    pairs = [(each[:, :, :-1], each[:, :, 1:]) for each in map(_apart, cases)]
    together = sum(float((one * other).sum()) for one, other in pairs)
    sizes = (np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1) for one, other in pairs)
    return abs(together) > _CORRELATED * sum(float(size.sum()) for size in sizes)


def _errors(case: Case) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Yield, row by row, errors along directions in units of what dropout makes, and the rest.

    Namely the right context in the same units, the units squared, and the row's number.
    """
    apart, right, weights = _apart(case), case.right["context"], case.right["weights"]
    problem = case.recipe.problem
    values = shared(problem, np.asarray(problem.value))
    values = np.broadcast_to(values, (*apart.shape[:2], *values.shape[2:]))
    places = list(np.ndindex(apart.shape[:-1]))
    for place in places[:: 1 + len(places) * apart.shape[-1] ** 3 // _MOST_WORK]:
        moved = weights[place][:, None] * values[place[:2]]
        variances, directions = np.linalg.eigh(moved.T @ moved)
        least = max(
            _LEAST_VARIANCE * variances[-1], _BEYOND_ROUNDING * np.square(case.recipe.resolution)
        )
        kept = variances > least
        along = directions.T[kept] / np.sqrt(variances[kept, None])
        number = np.full(len(along), place[2])
        yield along @ apart[place], along @ right[place], variances[kept], number
