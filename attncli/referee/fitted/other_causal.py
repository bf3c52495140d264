"""Which of several causal rules a row of the files follows, however many queries there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.catalogue.helpers import factors_of
from attncli.referee.convention import with_rule
from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import vary

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["causal_output", "errors_of_rules", "output_of_rows", "some_of", "wrong_rows"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


def causal_output(case: Case) -> str | None:
    """Return an output that shows which keys a causal rule leaves; None where there is none.

    Query i has to stand at key i.
    """
    visible = case.recipe.problem.visible
    return output_of_rows(case) if visible.causal and not any(visible.offsets) else None


def output_of_rows(case: Case) -> str | None:
    """Return an output whose rows show what their queries see; None where there is none."""
    if case.whole and not case.comparable:
        return None
    return next(
        (
            name
            for name in ("weights", "context", "lse")
            if name in case.files and case.canonical(name).shape == case.right[name].shape
        ),
        None,
    )


def wrong_rows(case: Case, name: str) -> Bools:
    """Return in which rows (L,) of an output any number is off."""
    file, right = case.canonical(name), case.right[name]
    with np.errstate(invalid="ignore"):
        near = (file == right) | (np.abs(file - right) <= case.recipe.resolution)
    return np.asarray(~near.all(axis=(0, 1, 3)))


def some_of(rows: Bools, most: int) -> list[int]:
    """Return a few of the rows that are marked, spread over them, the one in the middle first."""
    found = np.flatnonzero(rows)
    places = np.unique(np.linspace(0, len(found) - 1, min(len(found), most)).astype(int))
    return sorted(found[places].tolist(), key=lambda row: abs(row - found[len(found) // 2]))


def errors_of_rules(
    case: Case, name: str, row: int, rules: Bools, *, query: int | None = None
) -> Array:
    """Return how far a row of an output is from what each of some causal rules makes, (n,).

    Parameters
    ----------
    case : Case
    name : str
    row : int
        Of the first batch entry.
    rules : ndarray of bool (n, S)
        Which keys the query of the row sees.
    query : int, optional
        The query that stands in the row, if it is another one.
    """
    own = case.row(0, row if query is None else query).recipe
    factors = factors_of(own.problem)
    # The query as many times as there are rules: rotated already, each copy stands at its place.
    factors["query"] = np.repeat(factors["query"], len(rules), axis=2)
    recipe = with_rule(vary(own, **factors, rope=None), "causal", rules[None, None])
    made, file = evaluate(recipe)[name][0], case.canonical(name)[0, :, row, None]
    with np.errstate(invalid="ignore"):
        apart = np.where(made == file, 0, np.abs(made - file)).max(axis=(0, 2))
    return np.where(np.isnan(apart), np.inf, apart)
