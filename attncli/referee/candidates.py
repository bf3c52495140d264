"""Which conventions and pairs of them are tried on a question, and in which order."""

from __future__ import annotations

from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.referee.fit import has_right_shapes
from attncli.referee.groups import may_come_together, needs_of
from attncli.referee.registry import CONVENTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.case import Case
    from attncli.referee.cases import Cases
    from attncli.referee.convention import Convention
    from attncli.referee.groups import Group
    from attncli.referee.question import Question
    from attncli.referee.recipe import Recipe

__all__ = ["Candidates"]


class _Singles(NamedTuple):
    """Single mistakes, by when they are tried."""

    quick: list[Group]
    slow: list[Group]
    late: list[Group]


class Candidates:
    """The conventions that bear on a question, and those that can be tried on its cases.

    Parameters
    ----------
    question : Question
    cases : Cases
    """

    def __init__(self, question: Question, cases: Cases) -> None:
        self._question, self._cases = question, cases
        self._shapes_are_right = bool(question.comparable)

    @cached_property
    def singles(self) -> _Singles:
        """All single mistakes, each kind with those first that cost least."""
        groups: list[Group] = sorted(((one,) for one in self._able), key=self._cost)
        late = [group for group in groups if group[0].topic.last]
        others = [group for group in groups if not group[0].topic.last]
        least = self._cost(others[0]) if others else 0
        quick = [group for group in others if self._cost(group) <= least]
        return _Singles(quick, others[len(quick) :], late)

    @cached_property
    def _are_whole(self) -> bool:
        """Whether all numbers of the files are whole ones."""
        files = self._question.files.values()
        return not any((np.modf(file[np.isfinite(file)])[0] != 0).any() for file in files)

    @cached_property
    def _concerned(self) -> list[Convention]:
        """The conventions that bear on the outputs."""
        names = frozenset(self._question.files)
        problem = self._question.problem
        return [
            convention
            for convention in CONVENTIONS
            if convention.topic.shows_in(names)
            and not (convention.projects and problem.made_from is None)
            and not (convention.reshapes and self._shapes_are_right)
            and not (convention.whole and not self._are_whole)
        ]

    @cached_property
    def _able(self) -> list[Convention]:
        """Those of them that can be tried on the problem."""
        able = {c.name: c for c in self._concerned if self.can((c,), self._cases.of(c.needs))}
        return list(able.values())

    @property
    def too_large(self) -> tuple[str, ...]:
        """The conventions that need more of the problem at once than can be tried."""
        problem, able = self._question.problem, {convention.name for convention in self._able}
        return tuple(
            c.name for c in self._concerned if c.name not in able and not c.topic.absent(problem)
        )

    @staticmethod
    def can(group: Group, cases: Sequence[Case]) -> bool:
        """Return whether a group can be tried on cases of that size."""
        for one in group:
            if one.projects and not all(case.projectable for case in cases):
                return False
        return all(case.evaluable for case in cases) or all(one.late for one in group)

    def pairs(
        self, alone: Callable[[Convention], Recipe | None], *, like_a_scale: bool
    ) -> list[Group]:
        """Return the pairs that are tried, those that cost least first.

        Parameters
        ----------
        alone : callable
            The recipe of a convention by itself; None where it does not apply to the problem.
        like_a_scale : bool
            Only those that may come to one other scale, which was found already.
        """
        if not any(case.has_numbers for case in self._cases.of(frozenset())):
            return []  # many pairs make nothing but NaN
        able, misshapen, resizing = [], set(), set()
        # Recipes may be large: none is kept.
        for one in self._able:
            recipe = None if one.topic.alone else alone(one)
            if recipe is None:
                continue
            able.append(one)
            if recipe.resized or recipe.problem.shape != self._question.problem.shape:
                resizing.add(one)
            elif one.late and not self._has_right_shapes(recipe):
                misshapen.add(one)
        pairs = [
            pair
            for pair in combinations(able, 2)
            if may_come_together(*pair)
            and (not like_a_scale or all(c.topic.like_a_scale for c in pair))
            and (misshapen.isdisjoint(pair) or not resizing.isdisjoint(pair))
        ]
        return sorted(pairs, key=self._cost)

    def _has_right_shapes(self, recipe: Recipe) -> bool:
        """Return whether a recipe of a whole problem makes outputs of the shapes of the files."""
        case = self._cases.of(frozenset())[0]
        return not case.whole or has_right_shapes(case, recipe)

    def _cost(self, group: Group) -> int:
        if not self._cases.sliced:
            return 0
        return sum(case.cells for case in self._cases.of(needs_of(group)))
