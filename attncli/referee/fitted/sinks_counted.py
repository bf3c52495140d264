"""Sinks that count more than once, inferred from how much less all keys weigh."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.fitted.denominators import added_to_denominators
from attncli.referee.recipe import vary
from attncli.referee.stages import over_heads

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["sinks_counted"]

# Of one row any number may be another sink.
_LEAST_ROWS = 2
# Parts of keys, at most.
_MOST = 256


def sinks_counted(case: Case) -> Convention | None:
    """Return the convention that the sink of every head counts the same number of times.

    Where it counts n times, (n − 1) exp(sink) is added to every denominator. Rows count by the
    share of their sink, which tells how sure their number is.
    """
    sinks = case.recipe.problem.sinks
    added = None if sinks is None else added_to_denominators(case)
    if sinks is None or added is None:
        return None
    with np.errstate(all="ignore"):
        total = np.exp(case.right["lse"][..., 0])
        more, share = added / total, np.exp(over_heads(sinks)[..., 0]) / total
    known = np.isfinite(more) & np.isfinite(share)
    if np.count_nonzero(known) < _LEAST_ROWS or not share[known].any():
        return None
    count = 1 + round(float((more[known] @ share[known]) / np.square(share[known]).sum()))
    if not 2 <= count <= _MOST:
        return None
    return Convention(
        "sinks_counted",
        f"the sink of each head counts {count} times, as if each of {count} parts of the keys "
        "added exp(sink) to its denominator",
        lambda recipe: vary(recipe, sinks=sinks + math.log(count)),
        topic=topics.SINKS,
        fix="count the sink once: in one part of the keys, or where the parts are put together",
        shows="sinks that are not far below the scores",
        needs=frozenset({"heads"}),
        variant_of=("sinks_twice",),
        choice=math.log2(_MOST),
    )
