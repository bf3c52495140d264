"""Whether an explanation that fits is evident, and whether all of it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.referee.fit import agrees, free_numbers, leaves_less, most_bits
from attncli.referee.groups import follow, needs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.case import Case
    from attncli.referee.cases import Cases
    from attncli.referee.fit import Fit
    from attncli.referee.groups import Group
    from attncli.referee.question import Question
    from attncli.referee.recipe import Recipe

__all__ = ["BITS_FOR_FITTED", "BITS_FOR_ONE", "BITS_FOR_TWO", "Evidence"]

# Evidence against chance: about 2^9 conventions are tried, some 2^14 pairs, and about one file in a
# thousand may be given a false name.
BITS_FOR_ONE = 19.0
BITS_FOR_TWO = 24.0
# A fitted scale agrees with a few numbers whatever they are.
BITS_FOR_FITTED = 100.0
# Beside the bits that say the number itself, which may be one of a dozen quantities.
_BITS_FOR_A_NUMBER = 21.0
# For a mistake in files that pass: their roundings are larger than it need be, and may look like
# one where few keys are seen.
_BITS_BENEATH = 60.0


class Evidence:
    """What an explanation has to show.

    Parameters
    ----------
    question : Question
    cases : Cases
    followed : callable
        The recipe of a case that follows the conventions of a group; None where there is none.
    beneath : bool
        The files pass: a mistake has to be evident beside roundings that are only larger than
        need be.
    """

    def __init__(
        self,
        question: Question,
        cases: Cases,
        followed: Callable[[Case, Group], Recipe | None],
        *,
        beneath: bool,
    ) -> None:
        self._question, self._cases, self._follow = question, cases, followed
        self._beneath = beneath
        self._short = any(precision.short for precision in question.precisions.values())

    def is_evident(self, result: Fit, group: Group, bits: float) -> bool:
        """Return whether the evidence is enough, or few numbers agree with one of few digits.

        Of a part of a problem, no more counts than what its queries see can show.
        """
        if self._beneath:
            return result.bits * self._free_share(group) >= _BITS_BENEATH
        # Of thousands of mistakes, one makes the few numbers that are free to differ.
        many = any(convention.topic.last for convention in group)
        if result.bits >= bits and not (self._cases.by_part or many):
            return True
        recipes = ((case, self._follow(case, group)) for case in self._cases.of(needs_of(group)))
        most = sum(most_bits(case, recipe) for case, recipe in recipes if recipe is not None)
        shown, choice = min(result.bits, most), group[0].choice
        if shown >= bits:
            return True
        return choice is not None and shown >= _BITS_FOR_A_NUMBER + choice

    def _free_share(self, group: Group) -> float:
        """Return which share of the numbers of the files can differ by themselves."""
        free = size = 0.0
        for case in self._cases.of(needs_of(group)):
            recipe = self._follow(case, group)
            free += 0 if recipe is None else free_numbers(case, recipe)
            size += sum(file.size for file in case.files.values())
        return min(1.0, free / size)

    def needs_all(self, group: Group, cases: Sequence[Case], recipes: Sequence[Recipe]) -> bool:
        """Return whether rounded factors beside another mistake are more than just other noise.

        They are not where the other mistake explains the numbers by itself. In 16 bits no mistake
        is, beside another one, that only makes other roundings.
        """
        if (
            len(group) > 1
            and self._short
            and not all(self._leaves_less((one,), cases, recipes) for one in group)
        ):
            return False
        rest = tuple(convention for convention in group if not convention.topic.only_rounds)
        if not rest or len(rest) == len(group):
            return True
        made = ((case, self._follow(case, rest)) for case in cases)
        others = {case: recipe for case, recipe in made if recipe is not None}
        if all(agrees(self._question, *item) for item in others.items()):
            return False
        return leaves_less(cases, recipes, [*others.values()])

    def _leaves_less(self, part: Group, cases: Sequence[Case], recipes: Sequence[Recipe]) -> bool:
        """Return whether recipes leave far less than one of their mistakes does by itself."""
        alone = [follow(case, part) for case in cases]
        known = [recipe for recipe in alone if recipe is not None]
        return len(known) < len(cases) or leaves_less(cases, recipes, known)
