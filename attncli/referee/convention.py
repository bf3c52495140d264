"""What a convention is: a way of computing attention that somebody may have followed instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from attncli.referee.recipe import Recipe
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attncli.problem.problem import Problem
    from attncli.referee.topics import Topic

__all__ = ["Apply", "Convention", "Need", "moved", "then", "with_rule", "with_term", "without"]

Need = Literal["batch", "heads", "rows"]
# The right recipe in, the deviating one out; None where the convention makes no sense for it.
Apply = Callable[[Recipe], Recipe | None]


@dataclass(frozen=True, eq=False)
class Convention:
    """One deviation from the definition.

    Attributes
    ----------
    name : str
        For machines: ``unscaled``.
    meaning : str
        What the other implementation did, as a sentence without its full stop.
    apply : callable
        The right recipe in, the deviating one out; None where it makes no sense.
    topic : Topic
        The step it changes; it also says which conventions exclude each other.
    fix : str
        What to change in its code.
    shows : str
        Inputs on which it gives other numbers than the definition.
    option : callable
        The option with which attncli computes the same; empty where there is none.
    needs : frozenset of str
        Axes that must be whole for it: ``batch``, ``heads``, ``rows``.
    late : bool
        It only changes how results are written, so that it can be tried on results that
        are too large to be computed again and again.
    reshapes : bool
        It explains files that have another shape than the answer, and no others.
    projects : bool
        It makes query, key and value again from what they were made of.
    variant_of : tuple of str
        The names of conventions beside which this one says nothing more.
    pattern : bool
        It says only which weights are 0, which many rules may come to.
    whole : bool
        It explains files of whole numbers alone.
    roughly : bool
        It rounds something in a way that is not known: what it leaves is as large as its roundings.
    choice : float or None
        Of one with a fitted number: how much was free to choose, in bits. Numbers of few digits
        leave less than a number of any size does.
    """

    name: str
    meaning: str
    apply: Apply
    _: KW_ONLY
    topic: Topic
    fix: str
    shows: str
    option: Callable[[Problem], str] = lambda _: ""
    needs: frozenset[Need] = frozenset()
    late: bool = False
    reshapes: bool = False
    projects: bool = False
    variant_of: tuple[str, ...] = ()
    pattern: bool = False
    whole: bool = False
    roughly: bool = False
    choice: float | None = None


def moved(recipe: Recipe, step: str, *, before: str | None) -> Recipe:
    """Return the recipe with a step moved before another one, or to the end."""
    order = [name for name in recipe.order if name != step]
    place = len(order) if before is None else order.index(before)
    return replace(recipe, order=(*order[:place], step, *order[place:]))


def with_rule(recipe: Recipe, name: str, rule: npt.NDArray[np.bool_]) -> Recipe:
    """Return the recipe with a rule, in the place of the one of that name."""
    return replace(recipe, rules={**recipe.rules, name: rule})


def with_term(recipe: Recipe, name: str, term: npt.NDArray[Any]) -> Recipe:
    """Return the recipe with what a step adds to the scores, in the place of what it added."""
    return replace(recipe, terms={**recipe.terms, name: term})


def then(recipe: Recipe, **steps: Callable[..., Any]) -> Recipe:
    """Return the recipe with one more function at the end of its `after`, `finish` or `behind`."""
    return replace(recipe, **{name: (*getattr(recipe, name), do) for name, do in steps.items()})


def without(recipe: Recipe, *rules: str) -> Recipe:
    """Return the recipe with some rules left out."""
    return replace(recipe, rules={n: rule for n, rule in recipe.rules.items() if n not in rules})
