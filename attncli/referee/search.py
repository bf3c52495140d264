"""Find the conventions that explain a difference: one at a time, then two."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.candidates import Candidates
from attncli.referee.case import Case, is_evaluable
from attncli.referee.cases import Cases
from attncli.referee.evidence import BITS_FOR_FITTED, BITS_FOR_ONE, BITS_FOR_TWO, Evidence
from attncli.referee.fit import agrees, fit, may_explain
from attncli.referee.groups import best_of, follow, is_of_kernels, needs_of
from attncli.referee.options import together
from attncli.referee.registry import FITTED, SHOWN
from attncli.referee.report import Cause
from attncli.referee.unprojected import unprojected
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from attncli.referee.comparison import Judged
    from attncli.referee.convention import Convention
    from attncli.referee.fit import Fit
    from attncli.referee.groups import Found, Group
    from attncli.referee.question import Question
    from attncli.referee.recipe import Recipe
    from attncli.referee.registry import Fitting

__all__ = ["Search", "Searched", "is_pattern"]

Array = npt.NDArray[Any]

# In 16 bits, an explanation that leaves so many times what the rounding of a file does leaves more
# than that: something near it may be true, which leaves so much less.
_CLEAR, _CLEARER = 3.0, 0.5
# What rounding moves numbers by, as root mean square: the share of the distance from 1 to the next.
_ROUNDED_BY = 0.2
# Share of the time that is left, in which common mistakes are tried before numbers are looked at.
_SOON = 0.3
# Seconds behind the deadline in which what was found is still tried elsewhere, and in how many
# places in any case.
_TO_LOOK_ELSEWHERE, _ALWAYS_TRIED = 0.5, 8
# Errors of this share are no worse than none, in 16 bits and in wider formats.
_ROUNDING_OF_SHORT, _ROUNDING = 0.01, 0.05
# A window, or a sequence that is cut short, looks like a part that is lost.
_LIKE_BLOCKS = {topics.WINDOW, topics.SEGMENTS}
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
        self._candidates = Candidates(question, self.cases)
        self._evidence = Evidence(question, self.cases, self._follow, beneath=beneath)
        self.deadline = deadline
        self._short = any(precision.short for precision in question.precisions.values())
        self._first: Convention | None = None
        self._followed: dict[Case, Recipe | None] = {}
        self._before_projection: dict[Case, Case | None] = {}
        self._looks: dict[Convention, Fitting] = {}
        _keep_memory()

    @property
    def too_large(self) -> tuple[str, ...]:
        """The conventions that need more of the problem at once than can be tried."""
        return self._candidates.too_large

    @property
    def scope(self) -> Literal["all", "slices"]:
        """What is tried on: ``all``, or ``slices`` of a large problem."""
        return "slices" if self.cases.sliced else "all"

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
        if one and all(map(is_of_kernels, one)):
            one = one + [item for item in self._fitted if item[1][0].topic in _LIKE_BLOCKS]
        yield self._clearer(one) or one
        if self._only_nan:  # where all other numbers are right
            return
        # What was found so far is not true everywhere, or there is nothing.
        if not one and self._is_settled(self._fitted):
            yield self._fitted
        yield self._late
        shown = [] if self._fitted else self._shown
        like_a_scale = bool(self._fitted) and not (one or self._late)
        yield self._explain_by_two(self._pairs(like_a_scale=like_a_scale) if pairs else [])
        yield self._fitted or shown

    @cached_property
    def _quick(self) -> Found:
        """What explains the files of the single mistakes that cost least."""
        return self._explain(self._candidates.singles.quick, BITS_FOR_ONE)

    @cached_property
    def _slow(self) -> Found:
        """What explains them of the others, those that cost least first.

        In the middle of a long search, numbers are looked at first: the time may not suffice.
        """
        groups = iter(self._candidates.singles.slow)
        now = time.monotonic()
        soon = self._explain(groups, BITS_FOR_ONE, until=now + _SOON * (self.deadline - now))
        if not (self._quick or soon):
            _ = self._fitted
        return soon + self._explain(groups, BITS_FOR_ONE)

    @cached_property
    def _late(self) -> Found:
        return self._explain(self._candidates.singles.late, BITS_FOR_ONE)

    @cached_property
    def _fitted(self) -> Found:
        """What can be read off the numbers: a scale, counts, places of any kind."""
        return [] if self._only_nan else self._read_by(FITTED)

    @cached_property
    def _shown(self) -> Found:
        """What zeros and masks say that the weights of the files show."""
        return self._read_by(SHOWN)

    def _clearer(self, found: Found) -> Found:
        """Return what is read off the numbers and leaves far less than what was found, if any."""
        if found and all(one.topic.only_rounds for _, group in found for one in group):
            # Nobody knows how factors are rounded, so what is tolerated says little.
            error = min(result.error for result, _ in found)
            return [item for item in self._fitted if item[0].error <= _CLEARER * error]
        least = min((result.rms for result, _ in found), default=0.0)
        if not self._short or least <= _CLEAR * self._rounding:
            return []
        return [item for item in self._fitted if item[0].rms <= _CLEARER * least]

    @cached_property
    def _rounding(self) -> float:
        """What the rounding of the files leaves, as root mean square, in units of the tolerance."""
        return max(map(_rounding_of, self.question.outputs.values()))

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
            found = self._look(fitting, self.cases.of(fitting.needs))
            if found is not None:
                made.append(found)
                self._looks[found] = fitting
        return self._explain([(one,) for one in made], BITS_FOR_FITTED)

    def _look(self, fitting: Fitting, cases: Sequence[Case]) -> Convention | None:
        return fitting.look(cases) or self._look_before_projection(fitting, cases)

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

    def _alone(self, convention: Convention) -> Recipe | None:
        """Return what a convention makes of the problem; None when the time is over, too."""
        if time.monotonic() > self.deadline:
            self.complete = False
            return None
        return follow(self.cases.of(convention.needs)[0], (convention,))

    def _pairs(self, *, like_a_scale: bool) -> list[Group]:
        return self._candidates.pairs(self._alone, like_a_scale=like_a_scale)

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
            if result is not None and self._evidence.is_evident(result, group, bits):
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
            explained = self._explain([pair], BITS_FOR_TWO)
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

    def _try(self, group: Group) -> Fit | None:
        cases = self.cases.of(needs_of(group))
        if not self._candidates.can(group, cases):
            return None
        recipes = [self._follow(case, group) for case in cases]
        ready = [recipe for recipe in recipes if recipe is not None]
        if len(ready) < len(cases) or any(map(_outgrows, cases, ready)):
            return None
        self.tried += 1
        if self._ruled_out(group):
            return None
        found = fit(self.question, cases, ready)
        whole = found is not None and self._evidence.needs_all(group, cases, ready)
        return found if whole else None

    def _ruled_out(self, group: Group) -> bool:
        """Return whether a small part shows already that the group does not fit."""
        probe = self.cases.probe(needs_of(group))
        if probe is None or not probe.evaluable:
            return False
        recipe = self._follow(probe, group)
        return recipe is not None and not may_explain(self.question, probe, recipe)

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
        for number, case in enumerate(self.cases.elsewhere(needs_of(group))):
            late = time.monotonic() > self.deadline + _TO_LOOK_ELSEWHERE
            if (late and number >= _ALWAYS_TRIED) or not case.evaluable:
                break
            recipe = follow(case, group) or self._followed_again(case, group)
            if recipe is None or agrees(self.question, case, recipe):
                continue
            first = first or case.place
            self.cases.include(case)
            if not agrees(self.question, case, case.recipe):
                return case.place, False
        return first, bool(first)

    def _followed_again(self, case: Case, group: Group) -> Recipe | None:
        """Return what is read off another part in the same way; the right recipe where nothing is.

        None where the group says nothing of that part.
        """
        fitting = self._looks.get(group[0]) if len(group) == 1 else None
        if fitting is None:
            return None
        again = self._look(fitting, [case])
        alike = again is not None and again.name == group[0].name
        return follow(case, (again,)) if again is not None and alike else case.recipe


def _rounding_of(output: Judged) -> float:
    size = np.abs(output.file.values[np.isfinite(output.file.values)])
    return root_mean_square(
        _ROUNDED_BY * output.file.precision.eps * size / output.tolerance.allowed(size)
    )


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
