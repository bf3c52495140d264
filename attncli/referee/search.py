"""Find the mistakes that explain a difference: single mistakes, fits, and pairs of mistakes.

The search is bounded by work, not by the clock: evaluating a score costs one unit, and a time limit
is a number of units. So identical calls try the same mistakes and give the same names.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import evidence
from attncli.referee.evidence import (
    BITS_FOR_FITTED,
    BITS_FOR_ONE,
    BITS_FOR_TWO,
    Fit,
    agrees,
    fit,
    has_right_shapes,
    leaves_less,
    may_explain,
)
from attncli.referee.fits import FITTED, SCALE, SHOWN
from attncli.referee.fits.numbers import fitted
from attncli.referee.mistakes import TABLE
from attncli.referee.mistakes import table as stages
from attncli.referee.options import together
from attncli.referee.parts import MOST_CELLS, Cases
from attncli.referee.report import Cause, Diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from attncli.referee.fits import Fitting
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case, Question
    from attncli.referee.pipeline import Pipeline

Group = tuple["Mistake", ...]
Found = list[tuple[Fit, Group]]
# An explanation is as good as the best one if its error is at most this many times as large.
_EQUALLY_GOOD = 1.5
# Errors below this share of the tolerance count as 0, in 16 bits and in wider formats.
_ROUNDING_OF_SHORT, _ROUNDING = 0.01, 0.05
# A fit is preferred to a known mistake if it leaves at most this share of its error.
_CLEARER = 0.5
# After single mistakes have taken this share of the work, the fits come first.
_SOON = 0.3
# An explanation is tried in this many parts of a large problem, even after the time limit.
_ALWAYS_TRIED = 8
# Units of work: for each number of query and key that a mistake changes; for each score that a fit
# reads.
_OF_AN_INPUT, _OF_A_FIT = 0.01, 4.0
# A window or a sequence that is cut short looks like a lost block.
_LIKE_BLOCKS = {stages.WINDOW, stages.SEGMENTS}
# For mistakes whose names have these endings, a scale is fitted in addition.
_BESIDE_A_SCALE = ("_ignored", "_missing", "_inverted", "causal_top_left", "causal_bottom_right")
# The bytes of the largest array after which glibc keeps freed memory: its limit is 32 MiB.
_MEMORY = 2**25 - 2**16


def needs_of(group: Group) -> frozenset[str]:
    """Return the axes that the mistakes of a group need whole."""
    return frozenset().union(*(mistake.needs for mistake in group))


def follow(pipe: Pipeline, group: Group) -> Pipeline | None:
    """Return the pipeline with all mistakes of a group; None if one makes no sense for it."""
    made: Pipeline | None = pipe
    for mistake in group:
        made = None if made is None else mistake.change(made)
    return made


def _may_come_together(one: Mistake, other: Mistake) -> bool:
    variants = one.name in other.variant_of or other.name in one.variant_of
    return not (variants or one.stage.excludes(other.stage))


def _of_kernels(item: tuple[Fit, Group]) -> bool:
    return any(mistake.stage.of_kernels for mistake in item[1])


class Search:
    """The search for explanations of one question, or of the part of it that is wrong."""

    def __init__(self, question: Question, *, by_part: bool = False) -> None:
        self.question, self.work = question, question.work
        self.cases = Cases(question, by_part=by_part)
        self.tried = 0
        self.complete = True
        self.tells = True  # False where a fit has more parameters than the files have numbers
        self._pipes: dict[Group, Pipeline | None] = {}
        self._looks: dict[Mistake, Fitting] = {}
        # glibc returns large freed arrays to the system, which takes a third of a search's time.
        # After this array was freed, it keeps them.
        np.empty(_MEMORY, np.uint8)

    def run(self, *, pairs: bool = True) -> Diagnosis:
        """Search for causes; with ``pairs`` also for two mistakes together."""
        causes = self._causes(pairs=pairs)
        return Diagnosis(explanations=causes, tried=self.tried, complete=self.complete)

    def _causes(self, *, pairs: bool) -> tuple[Cause, ...]:
        """Return the best causes that hold in all parts of the problem, or else the best causes."""
        first: tuple[Cause, ...] = ()
        for found in self._explained(pairs=pairs):
            of_part: tuple[Cause, ...] = ()
            for causes in self._in_turn(found):
                whole = tuple(cause for cause in causes if not cause.fails_at)
                # After the time limit the best one counts, even if it fails elsewhere.
                if whole and (not first or not self.work.over):
                    return whole
                first = first or causes
                of_part = of_part or tuple(cause for cause in causes if cause.right_there)
            if of_part:  # the file is right elsewhere: only a fit can say more
                fitted = self._in_turn(self._fitted)
                more = (tuple(one for one in causes if not one.fails_at) for causes in fitted)
                return next(filter(None, more), of_part)
        return first

    def _explained(self, *, pairs: bool) -> Iterator[Found]:
        one = self._one
        if one and all(map(_of_kernels, one)):
            one = one + [item for item in self._fitted if item[1][0].stage in _LIKE_BLOCKS]
        yield self._clearer(one) or one
        if self._only_nan:
            return
        # From here on, nothing was found that is true everywhere.
        if not one and self._is_settled(self._fitted):
            yield self._fitted
        yield self._late
        like_a_scale = bool(self._fitted) and not (one or self._late)
        yield self._two(like_a_scale=like_a_scale) if pairs else []
        yield self._scaled_beside() if pairs and not self._fitted else []
        yield self._fitted or self._read_by(SHOWN)

    @cached_property
    def _only_nan(self) -> bool:
        """Whether every wrong number is NaN: then nothing can be fitted."""
        outputs = self.question.outputs
        return bool(self.question.comparable) and all(
            np.isnan(found[outputs[name].wrong]).all()
            for name, found in self.question.comparable.items()
        )

    # The choice among several explanations.

    def _in_turn(self, found: Found) -> Iterator[tuple[Cause, ...]]:
        while found:
            best = self._best_of(found)
            yield tuple(self._cause(*item) for item in best)
            found = [item for item in found if item not in best]

    def _best_of(self, found: Found) -> Found:
        """Return the explanations about as good as the best, without variants of simpler ones."""
        rounding = _ROUNDING_OF_SHORT if self.question.short else _ROUNDING

        def as_good(rms: float, least: float) -> bool:
            return rms <= _EQUALLY_GOOD * least + rounding

        least: dict[str, float] = {}  # by name, how well the best group with it fits
        for result, group in found:
            for mistake in group:
                least[mistake.name] = min(result.rms, least.get(mistake.name, math.inf))

        def is_a_variant(result: Fit, group: Group) -> bool:
            simpler = (name for mistake in group for name in mistake.variant_of)
            return any(as_good(least.get(name, math.inf), result.rms) for name in simpler)

        own = [item for item in found if not is_a_variant(*item)]
        own = sorted(own or found, key=lambda item: item[0].rms)
        return sorted((i for i in own if as_good(i[0].rms, own[0][0].rms)), key=_of_kernels)

    def _clearer(self, found: Found) -> Found:
        """Return the fits that are far better than ``found``, which 16 bits may let pass."""
        only_rounds = all(one.stage.only_rounds for _, group in found for one in group)
        if not found or not (only_rounds or self.question.short):
            return []
        least = min(result.rms for result, _ in found)
        return [item for item in self._fitted if item[0].rms <= _CLEARER * least]

    def _is_settled(self, fitted: Found) -> bool:
        """Return whether a fit leaves only rounding; not for a scale, which a pair may explain."""
        scaled = any(one.stage.like_a_scale for _, group in fitted for one in group)
        return not scaled and any(self._leaves_only_rounding(group) for _, group in fitted)

    def _leaves_only_rounding(self, group: Group) -> bool:
        fails_at, right_there = self._try_elsewhere(group)
        # Within a tolerance given by the user, another group may fit better.
        return self.question.earned and (not fails_at or right_there)

    # Candidates.

    @cached_property
    def _concerned(self) -> list[Mistake]:
        question = self.question
        names, right_shapes = question.pipe.file.names, bool(question.comparable)
        unmade = question.problem.made_from is None
        return [
            one
            for one in TABLE
            if (one.stage.outputs is None or one.stage.outputs & names)
            and not (one.projects and unmade)
            and not (one.reshapes and right_shapes)
        ]

    def _can(self, group: Group) -> bool:
        evaluable = all(case.evaluable for case in self.cases.of(needs_of(group)))
        return evaluable or all(one.writes for one in group)

    @cached_property
    def _able(self) -> list[Mistake]:
        return [one for one in self._concerned if self._can((one,))]

    @property
    def too_large(self) -> tuple[str, ...]:
        """The mistakes that need a larger part of the problem than can be evaluated."""
        problem, able = self.question.problem, set(self._able)
        return tuple(
            one.name for one in self._concerned if one not in able and not one.stage.absent(problem)
        )

    def _cheapest_first(self, groups: Iterable[Group]) -> list[Group]:
        every = list(groups)
        if not self.cases.sliced:
            return every
        return sorted(
            every, key=lambda group: sum(case.cells for case in self.cases.of(needs_of(group)))
        )

    @cached_property
    def _one(self) -> Found:
        rest = iter(self._cheapest_first((one,) for one in self._able if not one.stage.late))
        soon = self.work.spent + _SOON * self.work.left
        found = self._explain(rest, BITS_FOR_ONE, until=soon)
        if not found and self.work.spent > _SOON * self.work.most:
            _ = self._fitted  # the work may not suffice for all
        return found + self._explain(rest, BITS_FOR_ONE)

    @cached_property
    def _late(self) -> Found:
        late = ((one,) for one in self._able if one.stage.late)
        return self._explain(self._cheapest_first(late), BITS_FOR_ONE)

    def _pairs(self, *, like_a_scale: bool) -> list[Group]:
        """Return the pairs to try; with ``like_a_scale`` those that may amount to another scale."""
        case, right = self.cases.of(frozenset())[0], self.question.pipe
        if not any(np.isfinite(file).any() for file in case.files.values()):
            return []  # many pairs make only NaN
        able, misshapen, resizing = [], set(), set()
        for one in self._able:
            if one.stage.alone or self.work.over or (pipe := self._pipe((one,))) is None:
                continue
            able.append(one)
            if pipe.shape != right.shape or pipe.output is not right.output:
                resizing.add(one)
            elif one.writes and case.whole and not has_right_shapes(case, pipe):
                misshapen.add(one)
        return self._cheapest_first(
            pair
            for pair in combinations(able, 2)
            if _may_come_together(*pair)
            and (not like_a_scale or all(one.stage.like_a_scale for one in pair))
            and (misshapen.isdisjoint(pair) or not resizing.isdisjoint(pair))
        )

    def _two(self, *, like_a_scale: bool) -> Found:
        found: Found = []
        # Pairs that share no mistake hardly ever make the same numbers.
        halves: set[Mistake] = set()
        for pair in self._pairs(like_a_scale=like_a_scale):
            if halves and halves.isdisjoint(pair):
                continue
            explained = self._explain([pair], BITS_FOR_TWO)
            found += explained
            if explained and not halves and self._leaves_only_rounding(pair):
                halves = set(pair)
            if not self.complete:
                break
        return found

    # Fits.

    @cached_property
    def _fitted(self) -> Found:
        return [] if self._only_nan else self._read_by(FITTED)

    def _read_by(self, fittings: Iterable[Fitting]) -> Found:
        made = []
        for fitting in fittings:
            if self.work.over:
                self.complete = False
                break
            cases = self.cases.of(fitting.needs)
            self.work.spend(_OF_A_FIT * sum(case.cells for case in cases if case.evaluable))
            found = fitting.look(cases)
            if found is not None:
                made.append(found)
                self._looks[found] = fitting
        return self._explain([(one,) for one in made], BITS_FOR_FITTED)

    def _scaled_beside(self) -> Found:
        case, groups = self.cases.of(frozenset())[0], []
        for one in self._able:
            if one.name.endswith(_BESIDE_A_SCALE) and (pipe := self._pipe((one,))) is not None:
                scale = fitted(SCALE, case, base=pipe)
                groups += [] if scale is None else [(one, scale)]
        return self._explain(groups, BITS_FOR_FITTED)

    # Trying.

    def _pipe(self, group: Group) -> Pipeline | None:
        """Return the pipeline of a group, or None; it is remembered for single mistakes."""
        if len(group) == 1:
            if group not in self._pipes:
                # A mistake changes the inputs of the whole problem, even if slices are small.
                right = self.question.pipe
                self.work.spend(_OF_AN_INPUT * (right.query.size + right.key.size))
                self._pipes[group] = follow(right, group)
            return self._pipes[group]
        first = self._pipe(group[:1])
        return None if first is None else follow(first, group[1:])

    def _explain(self, groups: Iterable[Group], bits: float, *, until: float = math.inf) -> Found:
        """Return the groups that explain the files; stop when the work reaches ``until``."""
        found: Found = []
        for group in groups:
            if self.work.over:
                self.complete = False
                break
            result = self._try(group, bits)
            if result is not None:
                found.append((result, group))
            if self.work.spent > until:
                break
        return found

    def _try(self, group: Group, bits: float) -> Fit | None:
        """Return how well a group explains the files; None if it does not, or only by chance."""
        needs = needs_of(group)
        cases = self.cases.of(needs)
        if not self._can(group) or (pipe := self._pipe(group)) is None:
            return None
        if any(case.evaluable for case in cases) and math.prod(pipe.shape) > MOST_CELLS * max(
            1, math.prod(self.question.problem.shape) // cases[0].cells
        ):
            return None  # the mistake makes far more scores: keys stand in the place of a query
        self.tried += 1
        # What was fitted to one part is not true of a smaller part.
        of_part = any(one in self._looks and self._looks[one].of_part for one in group)
        probe = None if of_part else self.cases.probe(needs)
        if probe is not None and not may_explain(probe, pipe):
            return None
        found = fit(cases, pipe)
        if found is None or not self._needs_all(group, cases, pipe):
            return None
        if not evidence.tells(cases, pipe, sum(one.free for one in group)):
            self.tells = False
            return None
        # Among thousands of mistakes, one makes any few independent numbers by chance.
        careful = self.cases.by_part or any(one.stage.late for one in group)
        evident = evidence.is_evident(
            cases, pipe, found, bits, choice=group[0].choice, careful=careful
        )
        return found if evident else None

    def _needs_all(self, group: Group, cases: Sequence[Case], pipe: Pipeline) -> bool:
        """Return whether each mistake of a pair is needed to explain the files."""
        if len(group) == 1:
            return True
        if self.question.short:
            alone = [one for each in group if (one := self._pipe((each,))) is not None]
            if not all(leaves_less(cases, pipe, one) for one in alone):
                return False
        rest = tuple(one for one in group if not one.stage.only_rounds)
        if not rest or len(rest) == len(group) or (other := self._pipe(rest)) is None:
            return True
        return not all(agrees(case, other) for case in cases) and leaves_less(cases, pipe, other)

    def _cause(self, result: Fit, group: Group) -> Cause:
        problem = self.question.problem
        fails_at, right_there = self._try_elsewhere(group)
        options = () if right_there else (mistake.option(problem) for mistake in group)
        return Cause(
            conventions=group,
            options=together(options),
            outputs=tuple(self.question.files),
            error=result.error,
            fails_at=fails_at,
            right_there=right_there,
        )

    def _try_elsewhere(self, group: Group) -> tuple[str, bool]:
        """Return a part that the group does not explain, and whether the file is right there."""
        first = ""
        pipe, right = self._pipe(group), self.question.pipe
        for number, case in enumerate(self.cases.elsewhere(needs_of(group))):
            if (self.work.late and number >= _ALWAYS_TRIED) or not case.evaluable:
                break
            own = self._read_again(case, group) or pipe
            if own is None or agrees(case, own):
                continue
            first = first or case.place
            self.cases.include(case)  # all other groups are tried there from now on
            if not agrees(case, right):
                return case.place, False
        return first, bool(first)

    def _read_again(self, case: Case, group: Group) -> Pipeline | None:
        """Fit another part anew, if the fit is of one part only, and return its pipeline."""
        fitting = self._looks.get(group[0]) if len(group) == 1 else None
        if fitting is None or not fitting.of_part:
            return None
        again = fitting.look([case])
        alike = again is not None and again.name == group[0].name
        return follow(self.question.pipe, (again,)) if again and alike else self.question.pipe
