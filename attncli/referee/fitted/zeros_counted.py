"""How many keys of zeros got weight, inferred from the numbers of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import topics
from attncli.referee.catalogue.helpers import with_zeros
from attncli.referee.convention import Convention
from attncli.referee.fitted.denominators import added_to_denominators

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["zeros_counted"]


def zeros_counted(case: Case) -> Convention | None:
    """Return the convention that keys of zeros beyond the last one got weight.

    n keys of zeros, whose scores are 0 and whose values are 0, add n to every denominator.
    """
    counts = added_to_denominators(case)
    counts = None if counts is None else counts[np.isfinite(counts)]
    if counts is None or not counts.size or (count := round(float(np.median(counts)))) < 1:
        return None
    return Convention(
        name="zeros_counted",
        topic=topics.BLOCKS,
        meaning=f"the keys are followed by zeros, as in a cache that is longer, and {count} of "
        f"them get weight",
        fix="give the keys beyond the last the score −inf",
        shows="almost any input",
        apply=lambda recipe: with_zeros(recipe, count),
        variant_of=("mask_as_zeros",),
    )
