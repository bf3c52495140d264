"""Sinks of another size than the problem states, inferred from how much less all keys weigh."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.fitted.denominators import added_to_denominators, typical
from attncli.referee.fitted.places import told
from attncli.referee.options import shortest
from attncli.referee.recipe import vary
from attncli.referee.stages import over_heads

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["another_sink"]

Array = npt.NDArray[Any]
_NEAR = 1e-4
_LEAST_ROWS = 2
# Sinks in nats: one that stands for none, and those that are as good as none.
_NONE, _AS_NONE = -50.0, -25.0
# Of the median of what was added to the denominators, beside its scatter: nothing was.
_NOTHING = 8.0


def another_sink(case: Case) -> Convention | None:
    """Return the convention that heads have other sinks.

    A sink s' in the place of s adds exp(s') − exp(s) to every denominator of a head.
    """
    stated = case.recipe.problem.sinks
    heads = case.recipe.problem.shape[1]
    right = np.full(heads, -np.inf) if stated is None else stated
    found = _found(case, right)
    if found is None:
        return None
    other = np.abs(found - right) > _NEAR
    if not other.any():
        return None
    sinks = np.where(other, found, right)
    make = partial(
        Convention,
        name="another_sink",
        apply=lambda recipe: vary(recipe, sinks=sinks),
        topic=topics.SINKS,
        shows="sinks that are not far below the scores",
        needs=frozenset({"heads"}),
        variant_of=(
            "inputs_misplaced",
            "counted_keys",
            "zeros_counted",
            "another_factor",
            "epsilon_added",
            "sinks_counted",
        ),
    )
    if stated is None:
        listed = ",".join(map(shortest, sinks))
        pairs = [(f"head {h}", f"{s:.4g}" if s > _AS_NONE else "none") for h, s in enumerate(sinks)]
        words = told(pairs, "has")
        return make(
            meaning=f"heads have sinks that the problem does not state: {words}",
            fix="leave the sinks out, or state them: sinks (--sinks)",
            option=lambda _: f"--sinks={listed}",
        )
    pairs = [(f"head {h}", f"{sinks[h]:.4g} for {right[h]:.4g}") for h in np.flatnonzero(other)]
    return make(
        meaning=f"heads take other sinks: {told(pairs, 'takes')}",
        fix="let each head take its own sink, as the problem states it, and not scaled",
    )


def _found(case: Case, right: Array) -> Array | None:
    """Return the sink of each head that the file shows; None where it shows none."""
    added = added_to_denominators(case)
    if added is None:
        return None
    with np.errstate(all="ignore"):
        sinks = np.log(added + np.exp(over_heads(right)[..., 0]))
    rows = sinks.swapaxes(0, 1).reshape(len(right), -1)
    amounts = added.swapaxes(0, 1).reshape(len(right), -1)
    found = []
    for own, row, amount in zip(right, rows, amounts, strict=True):
        # Of a row without keys, or with other mistakes, nothing follows.
        known = row[np.isfinite(row)]
        if _is_nothing(amount[np.isfinite(amount)]):
            found.append(max(own, _NONE))
        # A sink of its own explains any one row.
        elif len(known) < _LEAST_ROWS:
            return None
        else:
            found.append(typical(known))
    return np.array(found)


def _is_nothing(amounts: Array) -> bool:
    """Return whether what was added to the denominators of a head is 0, up to its scatter."""
    if len(amounts) < _LEAST_ROWS:
        return False
    middle = np.median(amounts)
    scatter = np.median(np.abs(amounts - middle)) / np.sqrt(len(amounts))
    return bool(np.abs(middle) <= _NOTHING * scatter)
