"""Groups of conventions: one, or two that come together, and which explain files best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.referee import topics
from attncli.referee.convention import Convention, Need
from attncli.referee.fit import Fit

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = [
    "Found",
    "Group",
    "best_of",
    "follow",
    "is_of_kernels",
    "may_come_together",
    "needs_of",
]

Group = tuple[Convention, ...]
Found = list[tuple[Fit, Group]]

# An explanation this many times worse than the best is not equally good.
_EQUALLY_GOOD = 1.5
_OF_KERNELS = {topics.BLOCKS, topics.CAUSAL_BLOCKS, topics.ONLINE_SOFTMAX, topics.SPLITS}


def may_come_together(one: Convention, other: Convention) -> bool:
    """Return whether two conventions neither change the same step nor vary each other."""
    mine, others = one.topic, other.topic
    variants = one.name in other.variant_of or other.name in one.variant_of
    return not (variants or mine.excludes(others))


def needs_of(group: Group) -> frozenset[Need]:
    """Return the axes that must be whole for a group."""
    needs = group[0].needs
    for convention in group[1:]:
        needs |= convention.needs
    return needs


def follow(case: Case, group: Group) -> Recipe | None:
    """Return the recipe that follows all conventions of a group, or None."""
    recipe: Recipe | None = case.recipe
    for convention in group:
        recipe = None if recipe is None else convention.apply(recipe)
    return recipe


def best_of(found: Found, rounding: float) -> Found:
    """Return those about as good as the best, best first; variants where nothing simpler is.

    Parameters
    ----------
    found : list of (Fit, Group)
    rounding : float
        By which share of the tolerance the best may be better by chance.
    """

    def as_good(rms: float, least: float) -> bool:
        return rms <= _EQUALLY_GOOD * least + rounding

    # By name, how well the best group with it fits.
    least: dict[str, float] = {}
    for result, group in found:
        for convention in group:
            least[convention.name] = min(result.rms, least.get(convention.name, math.inf))
    found = [
        (result, group)
        for result, group in found
        if not any(
            as_good(least[name], result.rms)
            for convention in group
            for name in convention.variant_of
            if name in least
        )
    ]
    found = sorted(found, key=lambda item: item[0].rms)
    if not found:
        return []
    best = [item for item in found if as_good(item[0].rms, found[0][0].rms)]
    # Of those about as good, kernels' mistakes come after those that anybody may make.
    return sorted(best, key=is_of_kernels)


def is_of_kernels(item: tuple[Fit, Group]) -> bool:
    """Return whether an explanation needs a kernel that goes over the keys block by block."""
    return any(convention.topic in _OF_KERNELS for convention in item[1])
