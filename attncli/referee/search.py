"""Find the conventions that explain a difference: one at a time, then two."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.case import Case, Cases, Question, is_evaluable
from attncli.referee.fit import agrees, fit, free_numbers, leaves_less, may_explain, most_bits
from attncli.referee.groups import best_of, follow, is_of_kernels, may_come_together, needs_of
from attncli.referee.options import together
from attncli.referee.registry import CONVENTIONS, FITTED, SHOWN
from attncli.referee.report import Cause
from attncli.referee.unprojected import unprojected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from attncli.referee.convention import Convention
    from attncli.referee.fit import Fit
    from attncli.referee.groups import Found, Group
    from attncli.referee.recipe import Recipe
    from attncli.referee.registry import Fitting

__all__ = ["Search", "Searched", "is_pattern"]

Array = npt.NDArray[Any]

# Evidence against chance: about 2^9 conventions are tried, some 2^14 pairs, and about one file in a
# thousand may be given a false name.
_BITS_FOR_ONE = 19.0
_BITS_FOR_TWO = 24.0
# A fitted scale agrees with a few numbers whatever they are.
_BITS_FOR_FITTED = 100.0
# Beside the bits that say the number itself, which may be one of a dozen quantities.
_BITS_FOR_A_NUMBER = 21.0
# For a mistake in files that pass: their roundings are larger than it need be, and may look like
# one where few keys are seen.
_BITS_BENEATH = 60.0
# In 16 bits, an explanation that leaves errors of this share of the tolerance, as root mean square,
# leaves more than the rounding of a file: something near it may be true, which leaves so much less.
_CLEAR, _CLEARER = 0.02, 0.5
# Share of the time that is left, in which common mistakes are tried before numbers are looked at.
_SOON = 0.3
# Seconds behind the deadline in which what was found is still tried elsewhere.
_TO_LOOK_ELSEWHERE = 0.5
# Errors of this share are no worse than none, in 16 bits and in wider formats.
_ROUNDING_OF_SHORT, _ROUNDING = 0.01, 0.05
# Not more than glibc learns from, and larger than what evaluations make.
_MEMORY = 2**25 - 2**16


@dataclass(frozen=True)
class Searched:
    """What searches found, and how far they came.

    Attributes
    ----------
    causes : tuple of Cause
        Those of one search begin with the best; empty where there is none.
    tried : int
        How many conventions and pairs were evaluated.
    complete : bool
        False where the time limit came first.
    """

    causes: tuple[Cause, ...]
    tried: int
    complete: bool

    def __add__(self, other: Searched) -> Searched:
        return Searched(
            self.causes + other.causes,
            self.tried + other.tried,
            self.complete and other.complete,
        )

    def or_else(self, cause: Cause) -> Searched:
        """Return the same with a cause where none was found."""
        return self if self.causes else replace(self, causes=(cause,))


class Search:
    """The search for explanations of one question, within a time limit.

    Parameters
    ----------
    question : Question
    deadline : float
        On the clock of `time.monotonic`.
    by_part : bool
        Explain the heads and queries that are wrong by themselves, also of a small problem.
    beneath : bool
        The files pass: a mistake has to be evident beside roundings that are only larger than
        need be.

    Attributes
    ----------
    tried : int
        How many conventions and pairs were evaluated.
    complete : bool
        False once the time limit has come.
    deadline : float
        On the clock of `time.monotonic`.
    """

    def __init__(
        self,
        question: Question,
        deadline: float,
        *,
        by_part: bool = False,
        beneath: bool = False,
    ) -> None:
        self.tried = 0
        self.complete = True
        self.cases = Cases(question, deadline, by_part=by_part)
        self.question = question
        self._beneath = beneath
        self.deadline = deadline
        self._shapes_are_right = bool(question.comparable)
        self._short = any(precision.short for precision in question.precisions.values())
        self._first: Convention | None = None
        self._followed: dict[Case, Recipe | None] = {}
        self._before_projection: dict[Case, Case | None] = {}
        _keep_memory()

    @property
    def scope(self) -> Literal["all", "slices"]:
        """What is tried on: ``all``, or ``slices`` of a large problem."""
        return "slices" if self.cases.sliced else "all"

    @cached_property
    def _are_whole(self) -> bool:
        """Whether all numbers of the files are whole ones."""
        files = self.question.files.values()
        return not any((np.modf(file[np.isfinite(file)])[0] != 0).any() for file in files)

    @cached_property
    def _only_nan(self) -> bool:
        """Whether NaN is all that is wrong, from which no number can be read."""
        question = self.question
        return bool(question.comparable) and all(
            np.isnan(found[question.outputs[name].wrong]).all()
            for name, found in question.comparable.items()
        )

    def run(self, *, pairs: bool = True) -> Searched:
        """Search for causes.

        Parameters
        ----------
        pairs : bool
            Try two mistakes together, too.
        """
        causes = self._causes(pairs=pairs)
        return Searched(causes, self.tried, self.complete)

    def _causes(self, *, pairs: bool) -> tuple[Cause, ...]:
        """Return the best causes; the next ones where these fail elsewhere in the problem."""
        first: tuple[Cause, ...] = ()
        for found in self._explained(pairs=pairs):
            of_part: tuple[Cause, ...] = ()
            for causes in self._in_turn(found):
                whole = _true_everywhere(causes)
                # Where the time is over, the best one counts, and what it does not explain is told.
                if whole and (not first or time.monotonic() <= self.deadline):
                    return whole
                first = first or causes
                of_part = of_part or tuple(cause for cause in causes if cause.right_there)
            if of_part:  # the rest is right: only what is read off the numbers can say more
                return self._read_off() or of_part
        return first

    def _read_off(self) -> tuple[Cause, ...]:
        """Return the best causes that are read off the numbers and true everywhere."""
        return next(filter(None, map(_true_everywhere, self._in_turn(self._fitted))), ())

    def _in_turn(self, found: Found) -> Iterator[tuple[Cause, ...]]:
        """Yield the best causes, and then the best of the others, again and again."""
        rounding = _ROUNDING_OF_SHORT if self._short else _ROUNDING
        while best := best_of(found, rounding):
            yield tuple(self._cause(*item) for item in best)
            found = [item for item in found if item not in best]

    def _explained(self, *, pairs: bool) -> Iterator[Found]:
        """Yield the groups of each kind that explain anything, and how well each does."""
        one = self._quick + self._slow
        if one and all(map(is_of_kernels, one)):  # a window looks like a part that is lost
            one = one + [item for item in self._fitted if item[1][0].topic is topics.WINDOW]
        yield self._clearer(one) or one
        if self._only_nan:  # where all other numbers are right
            return
        # What was found so far is not true everywhere, or there is nothing.
        if not one and self._is_settled(self._fitted):
            yield self._fitted
        yield self._late
        shown = [] if self._fitted else self._shown
        like_a_scale = bool(self._fitted) and not (one or self._late)
        tried = self._pairs(like_a_scale=like_a_scale) if pairs else []
        yield self._explain_by_two(tried)
        yield self._fitted or shown

    @cached_property
    def _quick(self) -> Found:
        """What explains the files of the single mistakes that cost least."""
        return self._explain(self._singles.quick, _BITS_FOR_ONE)

    @cached_property
    def _slow(self) -> Found:
        """What explains them of the others, those that cost least first.

        In the middle of a long search, numbers are looked at first: the time may not suffice.
        """
        groups = iter(self._singles.slow)
        now = time.monotonic()
        soon = self._explain(groups, _BITS_FOR_ONE, until=now + _SOON * (self.deadline - now))
        if not (self._quick or soon):
            _ = self._fitted
        return soon + self._explain(groups, _BITS_FOR_ONE)

    @cached_property
    def _late(self) -> Found:
        return self._explain(self._singles.late, _BITS_FOR_ONE)

    @cached_property
    def _fitted(self) -> Found:
        """What can be read off the numbers: a scale, counts, places of any kind."""
        return [] if self._only_nan else self._read_by(FITTED)

    @cached_property
    def _shown(self) -> Found:
        """What zeros and masks say that the weights of the files show."""
        return self._read_by(SHOWN)

    @cached_property
    def _singles(self) -> _Singles:
        """All single mistakes, each kind with those first that cost least."""
        groups: list[Group] = sorted(((one,) for one in self._able), key=self._cost)
        late = [group for group in groups if group[0].topic.last]
        others = [group for group in groups if not group[0].topic.last]
        least = self._cost(others[0]) if others else 0
        quick = [group for group in others if self._cost(group) <= least]
        return _Singles(quick, others[len(quick) :], late)

    def _clearer(self, found: Found) -> Found:
        """Return what is read off the numbers and leaves far less than what was found, if any."""
        least = min((result.rms for result, _ in found), default=0.0)
        if not self._short or least <= _CLEAR:
            return []
        return [item for item in self._fitted if item[0].rms <= _CLEARER * least]

    def _is_settled(self, fitted: Found) -> bool:
        """Return whether what is read off the numbers leaves only rounding, whatever else is tried.

        Two mistakes may come to one other scale, and are told instead.
        """
        groups = [group for _, group in fitted]
        scaled = any(one.topic.like_a_scale for group in groups for one in group)
        return not scaled and any(map(self._leaves_only_rounding, groups))

    def _read_by(self, fittings: Iterable[Fitting]) -> Found:
        made = []
        for fitting in fittings:
            if time.monotonic() > self.deadline:
                break
            cases = self.cases.of(fitting.needs)
            made.append(fitting.look(cases) or self._look_before_projection(fitting, cases))
        return self._explain([(one,) for one in made if one is not None], _BITS_FOR_FITTED)

    def _look_before_projection(self, fitting: Fitting, cases: Sequence[Case]) -> Convention | None:
        """Look at the heads that an output projection has joined."""
        if not fitting.of_heads or self.question.problem.output is None:
            return None
        apart = [self._unprojected(case) for case in cases]
        known = [case for case in apart if case is not None]
        found = fitting.look(known) if known and len(known) == len(apart) else None
        if found is None:
            return None
        # It is no change of what is written any more, but of what is projected.
        meaning = f"before the output projection, {found.meaning}"
        return replace(found, late=False, meaning=meaning)

    def _unprojected(self, case: Case) -> Case | None:
        if case not in self._before_projection:
            self._before_projection[case] = unprojected(case)
        return self._before_projection[case]

    @cached_property
    def _concerned(self) -> list[Convention]:
        """The conventions that bear on the outputs."""
        names = frozenset(self.question.files)
        problem = self.question.problem
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
        able = {c.name: c for c in self._concerned if self._can((c,), self.cases.of(c.needs))}
        return list(able.values())

    @property
    def too_large(self) -> tuple[str, ...]:
        """The conventions that need more of the problem at once than can be tried."""
        problem, able = self.question.problem, {convention.name for convention in self._able}
        return tuple(
            c.name for c in self._concerned if c.name not in able and not c.topic.absent(problem)
        )

    def _makes_sense(self, convention: Convention) -> bool:
        """Return whether a convention applies to the problem; False when the time is over."""
        if time.monotonic() > self.deadline:
            self.complete = False
            return False
        return self._follow(self.cases.of(convention.needs)[0], (convention,)) is not None

    @staticmethod
    def _can(group: Group, cases: Sequence[Case]) -> bool:
        """Return whether a group can be tried on cases of that size."""
        ready = all(one.late for one in group) or all(case.evaluable for case in cases)
        projects = any(one.projects for one in group)
        return ready and not (projects and not all(case.projectable for case in cases))

    def _pairs(self, *, like_a_scale: bool) -> list[Group]:
        """Return the pairs that are tried, those that cost least first.

        Parameters
        ----------
        like_a_scale : bool
            Only those that may come to one other scale, which was found already.
        """
        if not any(case.has_numbers for case in self.cases.of(frozenset())):
            return []  # many pairs make nothing but NaN
        able = [c for c in self._able if not c.topic.alone and self._makes_sense(c)]
        pairs = [
            pair
            for pair in combinations(able, 2)
            if may_come_together(*pair)
            and (not like_a_scale or all(c.topic.like_a_scale for c in pair))
        ]
        return sorted(pairs, key=self._cost)

    def _cost(self, group: Group) -> int:
        if not self.cases.sliced:
            return 0
        return sum(case.cells for case in self.cases.of(needs_of(group)))

    def _explain(self, groups: Iterable[Group], bits: float, *, until: float = math.inf) -> Found:
        """Return the groups that explain the files, and how well, until the time is over.

        An iterator can be gone on with, where the time to stop is before the deadline.
        """
        found: Found = []
        for group in groups:
            if time.monotonic() > self.deadline:
                self.complete = False
                break
            result = self._try(group)
            if result is not None and self._is_evident(result, group, bits):
                found.append((result, group))
            if time.monotonic() > until:
                break
        return found

    def _explain_by_two(self, pairs: Iterable[Group]) -> Found:
        """Return the pairs that explain the files; once one does, others that share half of it.

        Two pairs that share no mistake hardly ever come to the same numbers.
        """
        found: Found = []
        halves: set[Convention] = set()
        for pair in pairs:
            if halves and halves.isdisjoint(pair):
                continue
            explained = self._explain([pair], _BITS_FOR_TWO)
            found += explained
            if explained and not halves and self._leaves_only_rounding(pair):
                halves = set(pair)
        return found

    def _leaves_only_rounding(self, group: Group) -> bool:
        """Return whether a group that fits explains everything, as far as is known.

        Within a tolerance that is given, another one may fit better.
        """
        fails_at, right_there = self._try_elsewhere(group)
        earned = all(one.tolerance.earned for one in self.question.outputs.values())
        return earned and (not fails_at or right_there)

    def _is_evident(self, result: Fit, group: Group, bits: float) -> bool:
        """Return whether the evidence is enough, or few numbers agree with one of few digits.

        Of a part of a problem, no more counts than what its queries see can show.
        """
        if self._beneath:
            return result.bits * self._free_share(group) >= _BITS_BENEATH
        # Of thousands of mistakes, one makes the few numbers that are free to differ.
        many = any(convention.topic.last for convention in group)
        if result.bits >= bits and not (self.cases.by_part or many):
            return True
        recipes = ((case, self._follow(case, group)) for case in self.cases.of(needs_of(group)))
        most = sum(most_bits(case, recipe) for case, recipe in recipes if recipe is not None)
        shown, choice = min(result.bits, most), group[0].choice
        if shown >= bits:
            return True
        return choice is not None and shown >= _BITS_FOR_A_NUMBER + choice

    def _free_share(self, group: Group) -> float:
        """Return which share of the numbers of the files can differ by themselves."""
        free = size = 0.0
        for case in self.cases.of(needs_of(group)):
            recipe = self._follow(case, group)
            free += 0 if recipe is None else free_numbers(case, recipe)
            size += sum(file.size for file in case.files.values())
        return min(1.0, free / size)

    def _try(self, group: Group) -> Fit | None:
        cases = self.cases.of(needs_of(group))
        if not self._can(group, cases):
            return None
        recipes = [self._follow(case, group) for case in cases]
        ready = [recipe for recipe in recipes if recipe is not None]
        if len(ready) < len(cases) or any(map(_outgrows, cases, ready)):
            return None
        self.tried += 1
        if self._ruled_out(group):
            return None
        found = fit(self.question, cases, ready)
        return found if found is not None and self._needed(group, cases, ready) else None

    def _ruled_out(self, group: Group) -> bool:
        """Return whether a small part shows already that the group does not fit."""
        probe = self.cases.probe(needs_of(group))
        if probe is None or not probe.evaluable:
            return False
        recipe = self._follow(probe, group)
        return recipe is not None and not may_explain(self.question, probe, recipe)

    def _needed(self, group: Group, cases: Sequence[Case], recipes: Sequence[Recipe]) -> bool:
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
        if all(agrees(self.question, *item) for item in others.items()):
            return False
        return leaves_less(cases, recipes, [*others.values()])

    def _leaves_less(self, part: Group, cases: Sequence[Case], recipes: Sequence[Recipe]) -> bool:
        """Return whether recipes leave far less than one of their mistakes does by itself."""
        alone = [follow(case, part) for case in cases]
        known = [recipe for recipe in alone if recipe is not None]
        return len(known) < len(cases) or leaves_less(cases, recipes, known)

    def _follow(self, case: Case, group: Group) -> Recipe | None:
        """Do as `follow` does, and remember the recipe of the first convention of pairs in turn."""
        if len(group) == 1 or group[0].topic.alone:
            return follow(case, group)
        if self._first is not group[0]:
            self._first = group[0]
            self._followed.clear()
        if case not in self._followed:
            self._followed[case] = group[0].apply(case.recipe)
        recipe = self._followed[case]
        return None if recipe is None else group[1].apply(recipe)

    def _cause(self, result: Fit, group: Group) -> Cause:
        problem = self.question.problem
        fails_at, right_there = self._try_elsewhere(group)
        options = () if right_there else (convention.option(problem) for convention in group)
        return Cause(
            conventions=group,
            options=together(options, problem),
            outputs=tuple(self.question.files),
            error=result.error,
            fails_at=fails_at,
            right_there=right_there,
        )

    def _try_elsewhere(self, group: Group) -> tuple[str, bool]:
        """Try a group in other parts of a large problem; where it fails, all others from now on.

        Returns
        -------
        fails_at : str
            A part that the group does not explain; empty if none is found.
        right_there : bool
            Whether the file is right there, and in the other such parts.
        """
        first = ""
        for case in self.cases.elsewhere(needs_of(group)):
            if time.monotonic() > self.deadline + _TO_LOOK_ELSEWHERE or not case.evaluable:
                break
            recipe = follow(case, group)
            if recipe is None or agrees(self.question, case, recipe):
                continue
            first = first or case.place
            self.cases.include(case)
            if not agrees(self.question, case, case.recipe):
                return case.place, False
        return first, bool(first)


class _Singles(NamedTuple):
    """Single mistakes, by when they are tried."""

    quick: list[Group]
    slow: list[Group]
    late: list[Group]


def _outgrows(case: Case, recipe: Recipe) -> bool:
    """Return whether a recipe takes far more scores than its case: keys in the place of a query."""
    return case.evaluable and not is_evaluable(recipe.problem)


def is_pattern(cause: Cause) -> bool:
    """Return whether a cause is only which weights are 0, which many rules may come to."""
    return all(convention.pattern for convention in cause.conventions)


def _true_everywhere(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    return tuple(cause for cause in causes if not cause.fails_at)


def _keep_memory() -> None:
    """Let the C library keep the memory of arrays as large as those of evaluations.

    The GNU library gives memory of 128 KB and more back to the system, which cleans it before
    it gives it again: a third of a search's time. It stops doing so for sizes that it has seen
    come and go; nobody touches these.
    """
    np.empty(_MEMORY, np.uint8)
