"""Find the mistakes that explain a difference: one at a time, what the numbers tell, then two.

The search is bounded by work, not by the clock: every evaluation costs as many units as it computes
scores, and a time limit is so many units. So identical calls try the same mistakes and give the
same names. The clock ends a search only where a machine is far slower than the units assume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Literal

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
from attncli.referee.report import Cause
from attncli.referee.tolerance import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from attncli.referee.fits import Fitting
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case, Question
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.verdict import Judged

__all__ = ["Search", "Searched", "follow", "needs_of"]

Group = tuple["Mistake", ...]
Found = list[tuple[Fit, Group]]
# An explanation this many times worse than the best is not equally good.
_EQUALLY_GOOD = 1.5
# Errors of this share are no worse than none, in 16 bits and in wider formats.
_ROUNDING_OF_SHORT, _ROUNDING = 0.01, 0.05
# In 16 bits, an explanation that leaves so many times what the rounding of a file does leaves more
# than that: something near it may be true, which leaves so much less.
_CLEAR, _CLEARER = 3.0, 0.5
# What rounding moves numbers by, as root mean square: the share of the distance from 1 to the next.
_ROUNDED_BY = 0.2
# Of the work that is left, single mistakes that cost more are tried behind what numbers tell.
_SOON = 0.3
# A window, or a sequence that is cut short, looks like a part that is lost.
_LIKE_BLOCKS = {stages.WINDOW, stages.SEGMENTS}
# Not more than glibc learns from, and larger than what evaluations make.
_MEMORY = 2**25 - 2**16


@dataclass(frozen=True)
class Searched:
    """What searches found, and how far they came.

    Attributes
    ----------
    causes : tuple of Cause
    tried : int
        How many mistakes and pairs were evaluated.
    complete : bool
        False where the limit came first.
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


def needs_of(group: Group) -> frozenset[str]:
    """Return the axes that must be whole for a group."""
    return frozenset().union(*(mistake.needs for mistake in group))


def follow(pipe: Pipeline, group: Group) -> Pipeline | None:
    """Return the pipeline with all mistakes of a group, or None."""
    made: Pipeline | None = pipe
    for mistake in group:
        made = None if made is None else mistake.change(made)
    return made


def _may_come_together(one: Mistake, other: Mistake) -> bool:
    variants = one.name in other.variant_of or other.name in one.variant_of
    return not (variants or one.stage.excludes(other.stage))


def _of_kernels(item: tuple[Fit, Group]) -> bool:
    return any(mistake.stage.of_kernels for mistake in item[1])


def _best_of(found: Found, rounding: float) -> Found:
    """Return those about as good as the best, best first; variants where nothing simpler is."""

    def as_good(rms: float, least: float) -> bool:
        return rms <= _EQUALLY_GOOD * least + rounding

    # By name, how well the best group with it fits.
    least: dict[str, float] = {}
    for result, group in found:
        for mistake in group:
            least[mistake.name] = min(result.rms, least.get(mistake.name, math.inf))
    found = [
        (result, group)
        for result, group in found
        if not any(
            as_good(least[name], result.rms)
            for mistake in group
            for name in mistake.variant_of
            if name in least
        )
    ]
    found = sorted(found, key=lambda item: item[0].rms)
    best = [item for item in found if as_good(item[0].rms, found[0][0].rms)]
    return sorted(best, key=_of_kernels)


class Search:
    """The search for explanations of one question.

    Parameters
    ----------
    question : Question
    by_part : bool
        Explain the heads and queries that are wrong by themselves, also of a small problem.
    """

    def __init__(self, question: Question, *, by_part: bool = False) -> None:
        self.question, self.work = question, question.work
        self.cases = Cases(question, by_part=by_part)
        self.tried = 0
        self.complete = True
        self._pipes: dict[Group, Pipeline | None] = {}
        self._looks: dict[Mistake, Fitting] = {}
        _keep_memory()

    @property
    def scope(self) -> Literal["all", "slices"]:
        """What is tried on: ``all``, or ``slices`` of a large problem."""
        return "slices" if self.cases.sliced else "all"

    def run(self, *, pairs: bool = True) -> Searched:
        """Search for causes; with pairs, try two mistakes together, too."""
        return Searched(self._causes(pairs=pairs), self.tried, self.complete)

    def _causes(self, *, pairs: bool) -> tuple[Cause, ...]:
        """Return the best causes; the next ones where these fail elsewhere in the problem."""
        first: tuple[Cause, ...] = ()
        for found in self._explained(pairs=pairs):
            of_part: tuple[Cause, ...] = ()
            for causes in self._in_turn(found):
                whole = tuple(cause for cause in causes if not cause.fails_at)
                # Where the work is done, the best one counts, and what it does not explain is told.
                if whole and (not first or not self.work.over):
                    return whole
                first = first or causes
                of_part = of_part or tuple(cause for cause in causes if cause.right_there)
            if of_part:  # the rest is right: only what is read off the numbers can say more
                more = (
                    tuple(one for one in causes if not one.fails_at)
                    for causes in self._in_turn(self._fitted)
                )
                return next(filter(None, more), of_part)
        return first

    def _in_turn(self, found: Found) -> Iterator[tuple[Cause, ...]]:
        """Yield the best causes, and then the best of the others, again and again."""
        rounding = _ROUNDING_OF_SHORT if self.question.short else _ROUNDING
        while found and (best := _best_of(found, rounding)):
            yield tuple(self._cause(*item) for item in best)
            found = [item for item in found if item not in best]

    def _explained(self, *, pairs: bool) -> Iterator[Found]:
        """Yield the groups of each kind that explain anything, and how well each does."""
        one = self._quick + self._slow
        if one and all(map(_of_kernels, one)):
            one = one + [item for item in self._fitted if item[1][0].stage in _LIKE_BLOCKS]
        yield self._clearer(one) or one
        if self._only_nan:  # where all other numbers are right
            return
        # What was found so far is not true everywhere, or there is nothing.
        if not one and self._is_settled(self._fitted):
            yield self._fitted
        yield self._late
        shown = [] if self._fitted else self._shown
        like_a_scale = bool(self._fitted) and not (one or self._late)
        yield self._explain_by_two(like_a_scale=like_a_scale) if pairs else []
        yield self._scaled_beside() if pairs and not self._fitted else []
        yield self._fitted or shown

    @cached_property
    def _only_nan(self) -> bool:
        """Whether NaN is all that is wrong, from which no number can be read."""
        outputs = self.question.outputs
        return bool(self.question.comparable) and all(
            np.isnan(found[outputs[name].wrong]).all()
            for name, found in self.question.comparable.items()
        )

    # Candidates.

    @cached_property
    def _concerned(self) -> list[Mistake]:
        """The mistakes that bear on the outputs."""
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
        """Return whether a group can be tried on cases of that size."""
        evaluable = all(case.evaluable for case in self.cases.of(needs_of(group)))
        return evaluable or all(one.writes for one in group)

    @cached_property
    def _able(self) -> list[Mistake]:
        return [one for one in self._concerned if self._can((one,))]

    @property
    def too_large(self) -> tuple[str, ...]:
        """The mistakes that need more of the problem at once than can be tried."""
        problem, able = self.question.problem, {one.name for one in self._able}
        return tuple(
            one.name
            for one in self._concerned
            if one.name not in able and not one.stage.absent(problem)
        )

    def _cost(self, group: Group) -> int:
        if not self.cases.sliced:
            return 0
        return sum(case.cells for case in self.cases.of(needs_of(group)))

    @cached_property
    def _singles(self) -> list[tuple[int, Group]]:
        """Single mistakes and what each costs, those first that cost least."""
        groups = [((one,), self._cost((one,))) for one in self._able if not one.stage.late]
        return sorted(((cost, group) for group, cost in groups), key=lambda item: item[0])

    @cached_property
    def _quick(self) -> Found:
        """What explains the files of the single mistakes that cost least."""
        least = self._singles[0][0] if self._singles else 0
        return self._explain([g for cost, g in self._singles if cost <= least], BITS_FOR_ONE)

    @cached_property
    def _slow(self) -> Found:
        """What explains them of the others.

        In the middle of much work, numbers are looked at first: it may not suffice for all.
        """
        least = self._singles[0][0] if self._singles else 0
        groups = iter([g for cost, g in self._singles if cost > least])
        until = self.work.spent + _SOON * self.work.left
        soon = self._explain(groups, BITS_FOR_ONE, until=until)
        if not (self._quick or soon):
            _ = self._fitted
        return soon + self._explain(groups, BITS_FOR_ONE)

    @cached_property
    def _late(self) -> Found:
        late = [(one,) for one in self._able if one.stage.late]
        return self._explain(sorted(late, key=self._cost), BITS_FOR_ONE)

    def _pairs(self, *, like_a_scale: bool) -> list[Group]:
        """Return the pairs that are tried, those that cost least first.

        With ``like_a_scale``, only those that may come to one other scale, which was found already.
        """
        if not any(np.isfinite(f).any() for f in self.cases.of(frozenset())[0].files.values()):
            return []  # many pairs make nothing but NaN
        able, misshapen, resizing = [], set(), set()
        for one in self._able:
            if one.stage.alone or self.work.over:
                continue
            pipe = self._pipe((one,))
            if pipe is None:
                continue
            able.append(one)
            case = self.cases.of(frozenset())[0]
            if (
                pipe.shape != self.question.pipe.shape
                or pipe.output is not self.question.pipe.output
            ):
                resizing.add(one)
            elif one.writes and case.whole and not has_right_shapes(case, pipe):
                misshapen.add(one)
        pairs = [
            pair
            for pair in combinations(able, 2)
            if _may_come_together(*pair)
            and (not like_a_scale or all(one.stage.like_a_scale for one in pair))
            and (misshapen.isdisjoint(pair) or not resizing.isdisjoint(pair))
        ]
        return sorted(pairs, key=self._cost)

    # What the numbers of the files tell.

    @cached_property
    def _fitted(self) -> Found:
        """What can be read off the numbers: a scale, counts, places of any kind."""
        return [] if self._only_nan else self._read_by(FITTED)

    @cached_property
    def _shown(self) -> Found:
        """What zeros and masks say that the weights of the files show."""
        return self._read_by(SHOWN)

    def _read_by(self, fittings: Iterable[Fitting]) -> Found:
        made = []
        for fitting in fittings:
            if self.work.over:
                self.complete = False
                break
            found = fitting.look(self.cases.of(fitting.needs))
            if found is not None:
                made.append(found)
                self._looks[found] = fitting
        return self._explain([(one,) for one in made], BITS_FOR_FITTED)

    def _clearer(self, found: Found) -> Found:
        """Return what is read off the numbers and leaves far less than what was found, if any."""
        if found and all(one.stage.only_rounds for _, group in found for one in group):
            # Nobody knows how factors are rounded, so what is tolerated says little.
            error = min(result.error for result, _ in found)
            return [item for item in self._fitted if item[0].error <= _CLEARER * error]
        least = min((result.rms for result, _ in found), default=0.0)
        if not self.question.short or least <= _CLEAR * self._rounding:
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
        scaled = any(one.stage.like_a_scale for _, group in fitted for one in group)
        return not scaled and any(self._leaves_only_rounding(group) for _, group in fitted)

    # Trying.

    def _pipe(self, group: Group) -> Pipeline | None:
        """Return the pipeline of a group; those of single mistakes are remembered."""
        if len(group) == 1:
            if group not in self._pipes:
                self._pipes[group] = follow(self.question.pipe, group)
            return self._pipes[group]
        first = self._pipe(group[:1])
        return None if first is None else follow(first, group[1:])

    def _explain(self, groups: Iterable[Group], bits: float, *, until: float = math.inf) -> Found:
        """Return the groups that explain the files, and how well, until the work is done.

        An iterator can be gone on with where it is to stop before.
        """
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

    def _explain_by_two(self, *, like_a_scale: bool) -> Found:
        """Return the pairs that explain the files; once one does, others that share half of it.

        Two pairs that share no mistake hardly ever come to the same numbers.
        """
        found: Found = []
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

    def _scaled_beside(self) -> Found:
        """Return what explains the files beside a scale that is fitted for it."""
        case, groups = self.cases.of(frozenset())[0], []
        for one in self._able:
            if one.name in _BESIDE_A_SCALE and (pipe := self._pipe((one,))) is not None:
                scale = fitted(SCALE, case, base=pipe)
                groups += [] if scale is None else [(one, scale)]
        return self._explain(groups, BITS_FOR_FITTED)

    def _leaves_only_rounding(self, group: Group) -> bool:
        """Return whether a group that fits explains everything, as far as is known.

        Within a tolerance that is given, another one may fit better.
        """
        fails_at, right_there = self._try_elsewhere(group)
        return self.question.earned and (not fails_at or right_there)

    def _try(self, group: Group, bits: float) -> Fit | None:
        """Return how well a group explains the files; None where it does not, or may by chance."""
        needs = needs_of(group)
        cases = self.cases.of(needs)
        if not self._can(group) or (pipe := self._pipe(group)) is None:
            return None
        if any(case.evaluable for case in cases) and math.prod(pipe.shape) > MOST_CELLS * max(
            1, math.prod(self.question.problem.shape) // cases[0].cells
        ):
            return None  # far more scores: keys in the place of a query
        self.tried += 1
        # What was read off a part says nothing of a smaller one.
        of_part = any(one in self._looks and self._looks[one].of_part for one in group)
        probe = None if of_part else self.cases.probe(needs)
        if probe is not None and not may_explain(probe, pipe):
            return None
        found = fit(cases, pipe)
        if found is None or not self._needs_all(group, cases, pipe):
            return None
        # Of thousands of mistakes, one makes the few numbers that are free to differ.
        careful = self.cases.by_part or any(one.stage.late for one in group)
        evident = evidence.is_evident(
            cases, pipe, found, bits, choice=group[0].choice, careful=careful
        )
        return found if evident else None

    def _needs_all(self, group: Group, cases: Sequence[Case], pipe: Pipeline) -> bool:
        """Return whether each mistake of a pair leaves far less than the other one alone does.

        In 16 bits no mistake is, beside another one, that only makes other roundings; and rounded
        factors are not, beside one that explains the numbers by itself.
        """
        if len(group) == 1:
            return True
        if self.question.short:
            for one in group:
                alone = self._pipe((one,))
                if alone is not None and not leaves_less(cases, pipe, alone):
                    return False
        rest = tuple(one for one in group if not one.stage.only_rounds)
        if not rest or len(rest) == len(group):
            return True
        other = self._pipe(rest)
        if other is None:
            return True
        return not all(agrees(case, other) for case in cases) and leaves_less(cases, pipe, other)

    def _cause(self, result: Fit, group: Group) -> Cause:
        problem = self.question.problem
        fails_at, right_there = self._try_elsewhere(group)
        options = () if right_there else (mistake.option(problem) for mistake in group)
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
        pipe, right = self._pipe(group), self.question.pipe
        for number, case in enumerate(self.cases.elsewhere(needs_of(group))):
            if (self.work.late and number >= _ALWAYS_TRIED) or not case.evaluable:
                break
            own = self._read_again(case, group) or pipe
            if own is None or agrees(case, own):
                continue
            first = first or case.place
            self.cases.include(case)
            if not agrees(case, right):
                return case.place, False
        return first, bool(first)

    def _read_again(self, case: Case, group: Group) -> Pipeline | None:
        """Return what is read off another part in the same way, of what is of its part alone."""
        fitting = self._looks.get(group[0]) if len(group) == 1 else None
        if fitting is None or not fitting.of_part:
            return None
        again = fitting.look([case])
        alike = again is not None and again.name == group[0].name
        return follow(self.question.pipe, (again,)) if again and alike else self.question.pipe


# Beside these, any scale is looked for.
_BESIDE_A_SCALE = frozenset(
    [
        "window_ignored",
        "causal_missing",
        "causal_top_left",
        "causal_bottom_right",
        "mask_ignored",
        "mask_inverted",
        "key_padding_mask_ignored",
        "kv_lengths_ignored",
        "segment_ids_ignored",
        "bias_ignored",
        "alibi_ignored",
        "softcap_missing",
        "sinks_ignored",
        "rope_missing",
    ]
)
# Places in which what was found is still tried where the work is done.
_ALWAYS_TRIED = 8


def _rounding_of(output: Judged) -> float:
    size = np.abs(output.file.values[np.isfinite(output.file.values)])
    return root_mean_square(
        _ROUNDED_BY * output.file.precision.eps * size / output.tolerance.allowed(size)
    )


def _keep_memory() -> None:
    """Let the C library keep the memory of arrays as large as those of evaluations.

    The GNU library gives memory of 128 KB and more back to the system, which cleans it before it
    gives it again: a third of a search's time. It stops doing so for sizes that it has seen come
    and go; nobody touches these.
    """
    np.empty(_MEMORY, np.uint8)
