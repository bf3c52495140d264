"""What mistakes are tried on: the whole of a small problem, slices of a large one.

Two slices of a large problem stand for it, around the first wrong row and around the worst one.
What explains them is tried in more places before it is told.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.text import places
from attncli.referee.formats import FLOAT64, Array, Bools, Precision
from attncli.referee.pipeline import (
    LEAST_SEEN,
    USUAL_FILL,
    WHOLE,
    FileFacts,
    Memory,
    Outputs,
    Part,
    Pipeline,
    Run,
    evaluate,
    pipeline_of,
)
from attncli.referee.verdict import Errors, canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.report import Place
    from attncli.referee.verdict import Judged

__all__ = ["MOST_CELLS", "Case", "Cases", "Question", "Work"]

Needs = frozenset[str]
Row = tuple[int, int, int]
# Scores of a slice that is evaluated in about two milliseconds, so that all pairs take seconds; of
# so few that the calls dominate, which rule most mistakes out; and of what is not evaluated at all.
_SMALL_CELLS, _PROBE_CELLS, MOST_CELLS = 2**15, 2**10, 2**21
# So many further slices are tried: spread over the rows that are wrong, and over all.
_OF_WRONG, _OF_ALL = 24, 8
# What a second of a usual processor evaluates, in scores, and what every evaluation costs beside
# them.
_UNITS_A_SECOND, _OF_A_CALL = 1.2e7, 2.0**11


class Work:
    """How much a search may do.

    Parameters
    ----------
    seconds : float
        The time limit. So many seconds are so many units, and the clock comes only after them.
    """

    def __init__(self, seconds: float) -> None:
        self.most = seconds * _UNITS_A_SECOND
        self.spent = 0.0
        self._deadline = time.monotonic() + seconds

    def spend(self, cells: float) -> None:
        """Count an evaluation of so many scores."""
        self.spent += cells + _OF_A_CALL

    @property
    def left(self) -> float:
        """How many units are left."""
        return max(0.0, self.most - self.spent)

    @property
    def over(self) -> bool:
        """Whether all is done that may be."""
        return self.spent > self.most or time.monotonic() > self._deadline

    @property
    def late(self) -> bool:
        """Whether it is time to come to an end."""
        return time.monotonic() > self._deadline + 0.5


@dataclass(frozen=True, eq=False)
class Question:
    """Everything that the diagnosis knows.

    Attributes
    ----------
    problem : Problem
        In float64.
    outputs : mapping of str to Judged
    averaged : bool
        The weights are the mean of the heads.
    doubtful : sequence of Place
        Rows that look wrong; the textbook formula is measured there, too.
    nan_rows : mapping of str to ndarray of bool (B, H, L)
        Of outputs, rows that are NaN for a reason of their own: whatever is tried is NaN there.
    inputs : Precision or None
        The format of the inputs, where it has 16 bits.
    work : Work
        How much may be done to find it out, shared by all questions about the same files.
    """

    problem: Problem
    outputs: Mapping[str, Judged]
    work: Work
    averaged: bool = False
    doubtful: Sequence[Place] = ()
    nan_rows: Mapping[str, Bools] = field(default_factory=dict)
    inputs: Precision | None = None

    @cached_property
    def files(self) -> dict[str, Array]:
        """The numbers of the files, in the axes of the user."""
        return {name: output.file.values for name, output in self.outputs.items()}

    @property
    def precisions(self) -> dict[str, Precision]:
        """The format of each file."""
        return {name: output.file.precision for name, output in self.outputs.items()}

    @cached_property
    def shaped(self) -> dict[str, Array]:
        """The files whose shape is right, as (B, H, L, ·)."""
        return {
            name: canonical(self.problem, name, output.file.values)
            for name, output in self.outputs.items()
            if output.errors is not None
        }

    @property
    def comparable(self) -> dict[str, Array]:
        """The same; none where a shape is wrong, as only whole files compare then."""
        return self.shaped if len(self.shaped) == len(self.outputs) else {}

    @property
    def wrong(self) -> list[str]:
        """The outputs in which a number or the shape is wrong."""
        places = {name: one.wrong for name, one in self.outputs.items()}
        return [name for name, wrong in places.items() if wrong is None or wrong.any()]

    @property
    def earned(self) -> bool:
        """Whether no tolerance was given by the user."""
        return all(one.tolerance.earned for one in self.outputs.values())

    @property
    def short(self) -> bool:
        """Whether a file has 16 bits."""
        return any(precision.short for precision in self.precisions.values())

    def about(self, names: Sequence[str]) -> Question:
        """Return the same question about only some of the outputs."""
        outputs = {name: self.outputs[name] for name in self.outputs if name in names}
        return replace(self, outputs=outputs, averaged=self.averaged and "weights" in names)

    @cached_property
    def pipe(self) -> Pipeline:
        """The right pipeline, and what the files show."""
        made = self.problem.made_from
        arguments = None if made is None else made.arguments
        given = arguments and {n: v for n, v in arguments.items() if v is not None}
        files = self.files
        facts = FileFacts(
            names=frozenset(files),
            shapes={name: file.shape for name, file in files.items()},
            largest=max(self.precisions.values(), key=lambda p: p.eps).largest,
            resolution=max(one.tolerance.absolute for one in self.outputs.values()),
            fill=_fill(files.get("scores")),
            averaged=self.averaged,
        )
        return pipeline_of(self.problem, facts, given)


def _fill(scores: Array | None) -> float:
    """Return the large negative number that stands for hidden in a file of scores."""
    if scores is None:
        return USUAL_FILL
    finite = scores[np.isfinite(scores)]
    lowest = float(finite.min()) if finite.size else 0.0
    return lowest if lowest < LEAST_SEEN else USUAL_FILL


@dataclass(frozen=True, eq=False)
class Case:
    """A part of a question on which mistakes are tried.

    Attributes
    ----------
    question : Question
    part : Part
    files : mapping of str to ndarray
        In the axes of the user where the case is whole, else the part of (B, H, L, ·).
    whole : bool
        Shapes are compared, too.
    evaluable : bool
        Small enough to be computed again for each mistake.
    memory : Memory
    """

    question: Question
    part: Part
    files: Mapping[str, Array]
    whole: bool
    evaluable: bool = True
    memory: Memory = field(default_factory=Memory, repr=False)
    errors: dict[str, Errors | None] = field(default_factory=dict, repr=False)
    shapes: dict[object, bool] = field(default_factory=dict, repr=False)

    @property
    def pipe(self) -> Pipeline:
        """The right pipeline."""
        return self.question.pipe

    @property
    def problem(self) -> Problem:
        """The problem as it was posed."""
        return self.question.problem

    @cached_property
    def right(self) -> Outputs:
        """What the right pipeline makes; of what is too large, only what the engine has made."""
        if self.evaluable:
            return self.outputs(self.pipe)
        return {
            name: canonical(self.problem, name, one.answer)
            for name, one in self.question.outputs.items()
        }

    @cached_property
    def run(self) -> Run:
        """The right pipeline on the part, for those who ask for its operands."""
        return Run(self.pipe, self.part, FLOAT64, self.memory)

    def outputs(self, pipe: Pipeline) -> Outputs:
        """Return what a pipeline makes of the part, (B, H, L, ·)."""
        self.question.work.spend(self.cells if self.evaluable else 0)
        if self.evaluable:
            made = evaluate(pipe, self.part, memory=self.memory)
        else:  # it changes only how results are written
            made, run = dict(self.right), Run(pipe, self.part, FLOAT64, self.memory)
            for finish in (*pipe.finish, *pipe.behind):
                made = finish(run, made)
        if pipe.file.averaged and "weights" in made:
            made = {**made, "weights": made["weights"].mean(axis=1, keepdims=True)}
        for name, rows in self.question.nan_rows.items():
            own = rows[self.part.index]
            if name in made and made[name].shape[:3] == own.shape:
                made = {**made, name: np.where(own[..., None], np.nan, made[name])}
        return made

    def shaped(self, pipe: Pipeline, outputs: Outputs, name: str) -> Array:
        """Return an output in the axes of the case's files."""
        return pipe.axes(self.problem, name, outputs[name]) if self.whole else outputs[name]

    def canonical(self, name: str) -> Array:
        """Return a file as (B, H, L, ·)."""
        file = self.files[name]
        return canonical(self.problem, name, file) if self.whole else file

    @cached_property
    def comparable(self) -> bool:
        """Whether it can be evaluated, and its files have the shapes of the outputs."""
        return self.evaluable and all(
            self.shaped(self.pipe, self.right, name).shape == file.shape
            and bool(np.isfinite(file).any())
            for name, file in self.files.items()
        )

    @cached_property
    def cells(self) -> int:
        """How many scores there are."""
        shape = self.problem.shape
        sizes = [
            len(range(*each.indices(n))) for each, n in zip(self.part.index, shape, strict=False)
        ]
        return math.prod(sizes) * shape[3]

    @property
    def place(self) -> str:
        """Which part of the problem it is, in words; empty for all of it."""
        if self.whole:
            return ""
        batch, head, rows = self.part
        where = dict(zip(("batch", "head"), self.problem.layout.place(batch, head), strict=True))
        start, stop = rows or (0, self.problem.shape[2])
        words = f"queries {start} to {stop - 1}" if stop - start > 1 else f"query {start}"
        return ", ".join([*places(where), words])

    def row(self, b: int, i: int) -> Case:
        """Return one query of a batch entry, all heads that the case has."""
        batch = b if self.part.batch is None else self.part.batch
        start = 0 if self.part.rows is None else self.part.rows[0]
        part = Part(batch, self.part.head, (start + i, start + i + 1))
        files = {name: self.canonical(name)[b : b + 1, :, i : i + 1] for name in self.files}
        return Case(self.question, part, files, whole=False)


class Cases:
    """The cases of a question, made when they are asked for.

    Parameters
    ----------
    question : Question
    by_part : bool
        Try the heads and queries that are wrong by themselves, also of a small problem.
    """

    def __init__(self, question: Question, *, by_part: bool = False) -> None:
        self._question, self.by_part = question, by_part
        self._canonical = question.comparable
        self._known: dict[Needs, tuple[Case, ...]] = {}
        self._slices: dict[Part, Case] = {}
        self._probes: dict[Needs, Case | None] = {}
        self._rows: list[Row] = []

    @cached_property
    def sliced(self) -> bool:
        """Whether the problem is tried in slices: it is too large, or parts are by themselves."""
        return self.by_part or math.prod(self._question.problem.shape) > _SMALL_CELLS

    def of(self, needs: Needs) -> tuple[Case, ...]:
        """Return the cases for mistakes that need some axes whole, at least one."""
        if needs not in self._known:
            if not self.sliced or not self._cuts(needs):
                self._known[needs] = (self.whole,)
            else:
                self._known[needs] = tuple(map(self._slice, self._wrong_parts(needs)))
        return self._known[needs]

    def probe(self, needs: Needs) -> Case | None:
        """Return a part of the first case, on which most mistakes are ruled out sooner."""
        if needs not in self._probes:
            self._probes[needs] = self._probe(needs)
        return self._probes[needs]

    def _probe(self, needs: Needs) -> Case | None:
        cells = self.of(needs)[0].cells
        if cells < 2 * _PROBE_CELLS or not self._cuts(needs):
            return None
        probe = self._slice(self._part(needs, self._anchors()[1], _PROBE_CELLS))
        return probe if 2 * probe.cells <= cells and probe.evaluable else None

    def _cuts(self, needs: Needs) -> bool:
        """Return whether slices can be compared, and are enough."""
        return bool(self._canonical) and not needs >= {"batch", "heads", "rows"}

    def elsewhere(self, needs: Needs) -> Iterator[Case]:
        """Yield more slices of a large problem: those included, and others spread over it."""
        if not self.sliced or not self._cuts(needs):
            return
        tried = {self._part(needs, row) for row in self._anchors()}
        rows = (*self._rows, *self._odd_row(), *self._spread())
        parts = dict.fromkeys(self._part(needs, row) for row in rows)
        yield from (self._slice(part) for part in parts if part not in tried)

    def _spread(self) -> Iterator[Row]:
        """Yield a few rows of all, and then more of those that are wrong."""
        shape = self._question.problem.shape[:3]
        for row in _evenly(math.prod(shape), _OF_ALL):
            yield tuple(int(n) for n in np.unravel_index(row, shape))  # type: ignore[misc]
        wrong = np.flatnonzero(self._counts)
        for place in _evenly(wrong.size, _OF_WRONG):
            yield _row(self._counts, int(wrong[place]))

    def _wrong_parts(self, needs: Needs) -> dict[Part, None]:
        """Return the parts around rows that are wrong; NaN alone would say little."""
        parts = dict.fromkeys(self._part(needs, row) for row in (*self._anchors(), *self._rows))
        numbers = self._wrong_numbers
        if numbers.any() and not any(numbers[part.index].any() for part in parts):
            parts[self._part(needs, _row(numbers, int(np.argmax(numbers))))] = None
        return parts

    @cached_property
    def whole(self) -> Case:
        """All of the problem, in the axes of the user."""
        small = math.prod(self._question.problem.shape) <= MOST_CELLS
        return Case(self._question, WHOLE, self._question.files, whole=True, evaluable=small)

    def _slice(self, part: Part) -> Case:
        if part not in self._slices:
            files = {}
            for name, file in self._canonical.items():
                # After an output projection, or an average, there are no heads any more.
                mixed = file.shape[1] < self._question.problem.shape[1]
                own = part._replace(head=None) if mixed else part
                files[name] = file[own.index]
            case = Case(self._question, part, files, whole=False)
            self._slices[part] = replace(case, evaluable=case.cells <= MOST_CELLS)
        return self._slices[part]

    def include(self, case: Case) -> None:
        """Try what comes on a row of another part of the problem, too: the worst one there."""
        counts = self._counts
        there = np.zeros(counts.shape, np.bool_)
        head = case.part.head
        own = case.part._replace(head=None if head is None else min(head, counts.shape[1] - 1))
        there[own.index] = True
        row = _row(counts, int(np.argmax(np.where(there, counts, -1))))
        if row not in self._rows:
            self._rows.append(row)
            self._known.clear()

    @cached_property
    def _counts(self) -> Any:
        """Return how many numbers of each row are wrong, (B, H, L)."""
        outputs = self._question.outputs.values()
        return np.asarray(sum(one.wrong.sum(axis=-1) for one in outputs if one.wrong is not None))

    @cached_property
    def _wrong_numbers(self) -> Any:
        """Return how many finite numbers of each row are wrong, (B, H, L)."""
        outputs = self._question.outputs
        return np.asarray(
            sum(
                (outputs[name].wrong & np.isfinite(file)).sum(axis=-1)
                for name, file in self._canonical.items()
            )
        )

    def _odd_row(self) -> list[Row]:
        """Return the first row all of whose wrong elements are NaN or infinite, if there is one."""
        odd = (self._counts > 0) & (self._wrong_numbers == 0)
        return [_row(odd, int(np.argmax(odd)))] if odd.any() else []

    def _anchors(self) -> list[Row]:
        """Return the first wrong row and the one with most wrong elements."""
        counts = self._counts
        return [_row(counts, int(np.argmax(counts > 0))), _row(counts, int(np.argmax(counts)))]

    def _part(self, needs: Needs, row: Row, cells: int | None = None) -> Part:
        batches, heads, queries, keys = self._question.problem.shape
        batch = None if "batch" in needs or batches == 1 else row[0]
        # The output projection of a context needs all heads, and so does an average.
        joined = self._question.problem.output is not None and "context" in self._question.files
        mixed = self._question.averaged or joined
        head = None if mixed or "heads" in needs or heads == 1 else row[1]
        count = max(1, (cells or _SMALL_CELLS) // (keys * (heads if head is None else 1)))
        first, end = self._stretch(batch, head, row[2]) if self.by_part else (0, queries)
        if "rows" in needs or count >= queries == end - first:
            return Part(batch, head, None)
        start = first + (row[2] - first) // count * count
        return Part(batch, head, (start, min(start + count, end)))

    def _stretch(self, batch: int | None, head: int | None, query: int) -> tuple[int, int]:
        """Return which queries belong with one: from the first wrong one to the last, or not."""
        counts = self._counts
        heads = slice(None) if head is None else min(head, counts.shape[1] - 1)
        of_part = counts[slice(None) if batch is None else batch, heads]
        wrong = np.flatnonzero(of_part.reshape(-1, counts.shape[2]).any(axis=0))
        ends = [0, wrong[0], wrong[-1] + 1, counts.shape[2]] if wrong.size else [0, counts.shape[2]]
        at = int(np.searchsorted(ends, query, side="right"))
        return int(ends[at - 1]), int(ends[at])


def _evenly(count: int, most: int) -> list[int]:
    """Return at most so many places spread evenly over a count, the first and the last of them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def _row(counts: Any, flat: int) -> Row:
    batch, head, query = np.unravel_index(flat, counts.shape)
    return int(batch), int(head), int(query)
