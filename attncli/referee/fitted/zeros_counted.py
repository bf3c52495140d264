"""How many keys of zeros got weight, inferred from the numbers of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import with_zeros
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import comparable
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["zeros_counted"]

Array = npt.NDArray[Any]
_OUTPUTS = ("context", "weights")


def zeros_counted(case: Case) -> Convention | None:
    """Return the convention that keys of zeros beyond the last one got weight.

    n keys of zeros, whose scores are 0 and whose values are 0, make every number of a row
    1 / (1 + n · exp(−lse)) of what is right.

    Parameters
    ----------
    case : Case
        Small enough to be evaluated.

    Returns
    -------
    Convention or None
        None where the files say nothing of the kind.
    """
    name = next((name for name in _OUTPUTS if name in case.files), None)
    mixed = name == "context" and case.recipe.problem.output is not None
    if name is None or mixed or not comparable(case):
        return None
    count = _count(case, name)
    if count < 1:
        return None
    return Convention(
        name="zeros_counted",
        topic=topics.BLOCKS,
        meaning=f"the keys are followed by zeros, as in a cache that is longer, and {count} of "
        f"them get weight",
        fix="give the keys beyond the last the score −inf",
        shows="almost any input",
        apply=lambda recipe: with_zeros(recipe, count),
    )


def _count(case: Case, name: str) -> int:
    """Return the number that most rows are about explained by."""
    found, right = case.files[name], case.right[name]
    if case.whole:
        found = canonical(case.recipe.problem, name, found)
    if found.shape != right.shape:  # averaged weights
        return 0
    with np.errstate(all="ignore"):
        shares = (found * right).sum(-1) / np.square(right).sum(-1)
        counts = (1 / shares - 1) * np.exp(case.right["lse"][..., 0])
    counts = counts[np.isfinite(counts)]
    return round(float(np.median(counts))) if counts.size else 0
