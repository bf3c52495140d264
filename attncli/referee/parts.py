"""The cases on which mistakes are tried: a small problem as a whole, a large one in slices.

The slices lie around the first wrong row and around the worst one. A mistake that explains them is
tried in more places before it is named.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.formats import FLOAT64, Array, Bools, Precision
from attncli.referee.pipeline import LEAST_SEEN, USUAL_FILL, FileFacts, Pipeline, pipeline_of
from attncli.referee.run import WHOLE, Memory, Outputs, Part, Run, evaluate
from attncli.referee.verdict import Errors, canonical
from attncli.referee.wording import span_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.report import Place
    from attncli.referee.verdict import Judged

Needs = frozenset[str]
Row = tuple[int, int, int]
# How many scores a slice has (about two milliseconds of work); a probe, which rules out most
# mistakes in less time; and the largest problem that is evaluated.
_SMALL_CELLS, _PROBE_CELLS, MOST_CELLS = 2**15, 2**10, 2**21
# How many more slices are tried: around wrong rows, and anywhere.
_OF_WRONG, _OF_ALL = 24, 8
# A unit of work is the evaluation of one score. The units that a usual processor does in a second,
# measured on slices; the units that an evaluation costs in addition to its scores.
_UNITS_A_SECOND, _OF_A_CALL = 8e6, 2400.0
# After the time limit, explanations are still tried in other places for this many seconds.
_GRACE = 0.5


class Work:
    """The work that a search may do: a time limit in units, the same on every machine."""

    def __init__(self, seconds: float) -> None:
        self.most = seconds * _UNITS_A_SECOND
        self.spent = 0.0
        self._deadline = time.monotonic() + seconds

    def spend(self, units: float) -> None:
        """Count work that is done."""
        self.spent += units

    @property
    def left(self) -> float:
        """The units that are left."""
        return max(0.0, self.most - self.spent)

    @property
    def over(self) -> bool:
        """Whether no work is left."""
        return self.spent > self.most or time.monotonic() > self._deadline

    @property
    def late(self) -> bool:
        """Whether the grace period is over, too."""
        return time.monotonic() > self._deadline + _GRACE


@dataclass(frozen=True, eq=False)
class Question:
    """The files and the answers, and the work that a search for mistakes may do."""

    problem: Problem  # in float64
    outputs: Mapping[str, Judged]
    work: Work  # shared by all questions about the same files
    averaged: bool = False  # the weights are the mean of the heads
    doubtful: Sequence[Place] = ()  # rows that look wrong: the formula's error is measured there
    # Rows (B, H, L) that are NaN for a reason of their own: they count as NaN in every pipeline.
    nan_rows: Mapping[str, Bools] = field(default_factory=dict)
    inputs: Precision | None = None  # the format of the inputs, if it has 16 bits

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
        """The same, but empty if any shape is wrong: then only whole files are compared."""
        return self.shaped if len(self.shaped) == len(self.outputs) else {}

    @property
    def wrong(self) -> list[str]:
        """The names of the outputs with a wrong number or a wrong shape."""
        outputs = self.outputs.items()
        return [name for name, one in outputs if one.wrong is None or one.wrong.any()]

    @property
    def earned(self) -> bool:
        """Whether no tolerance was given by the user."""
        return all(one.tolerance.earned for one in self.outputs.values())

    @property
    def short(self) -> bool:
        """Whether a file is in float16 or bfloat16."""
        return any(precision.short for precision in self.precisions.values())

    def about(self, names: Sequence[str]) -> Question:
        """Return the same question about only some of the outputs."""
        outputs = {name: self.outputs[name] for name in self.outputs if name in names}
        return replace(self, outputs=outputs, averaged=self.averaged and "weights" in names)

    @cached_property
    def pipe(self) -> Pipeline:
        """The right pipeline, with the facts that the files show."""
        made = self.problem.made_from
        arguments = {} if made is None else made.arguments
        given = {n: v for n, v in arguments.items() if v is not None} or None
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
    """Return the large negative number that marks hidden keys in a file of scores."""
    finite = np.zeros(1) if scores is None else scores[np.isfinite(scores)]
    lowest = float(finite.min(initial=0.0))
    return lowest if lowest < LEAST_SEEN else USUAL_FILL


@dataclass(frozen=True, eq=False)
class Case:
    """A part of a question on which mistakes are tried."""

    question: Question
    part: Part
    files: Mapping[str, Array]  # whole in the axes of the user, else a part of (B, H, L, ·)
    whole: bool  # it is the whole problem; shapes are compared, too
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
    def cells(self) -> int:
        """How many scores there are."""
        return math.prod(self.run.shape)

    @property
    def evaluable(self) -> bool:
        """Whether it is small enough to evaluate every mistake on it."""
        return self.cells <= MOST_CELLS

    @cached_property
    def right(self) -> Outputs:
        """The right outputs; only those of the engine if the case is too large."""
        if self.evaluable:
            return self.outputs(self.pipe)
        return {
            name: canonical(self.problem, name, one.answer)
            for name, one in self.question.outputs.items()
        }

    @cached_property
    def run(self) -> Run:
        """The right pipeline on the part."""
        return Run(self.pipe, self.part, FLOAT64, self.memory)

    def outputs(self, pipe: Pipeline) -> Outputs:
        """Return the outputs of a pipeline, (B, H, L, ·)."""
        self.question.work.spend(_OF_A_CALL + (self.cells if self.evaluable else 0))
        if self.evaluable:
            made = evaluate(pipe, self.part, memory=self.memory)
        else:  # the pipeline changes only how results are written
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

    @cached_property
    def answers(self) -> dict[str, Array]:
        """The right outputs in the axes of the files."""
        return {name: self.shaped(self.pipe, self.right, name) for name in self.files}

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
            self.answers[name].shape == file.shape and bool(np.isfinite(file).any())
            for name, file in self.files.items()
        )

    @property
    def place(self) -> str:
        """The part of the problem, in words; empty for the whole problem."""
        if self.whole:
            return ""
        batch, head, rows = self.part
        place = self.problem.layout.place(batch, head)
        return span_text(place, rows or (0, self.problem.shape[2]))


class Cases:
    """The cases of a question, made on demand.

    With ``by_part``, wrong heads and queries are separate cases, even in a small problem.
    """

    def __init__(self, question: Question, *, by_part: bool = False) -> None:
        self._question, self.by_part = question, by_part
        self._files = question.comparable
        self._known: dict[Needs, tuple[Case, ...]] = {}
        self._slices: dict[Part, Case] = {}
        self._included: list[Row] = []
        self.sliced = by_part or math.prod(question.problem.shape) > _SMALL_CELLS

    def of(self, needs: Needs) -> tuple[Case, ...]:
        """Return one or more cases for mistakes that need these axes whole."""
        if needs not in self._known:
            cases: tuple[Case, ...] = (self.whole,)
            if self._cuts(needs):
                rows = (*self._anchors, *self._included)
                parts = dict.fromkeys(self._part(needs, row) for row in rows)
                cases = tuple(map(self._slice, parts))
            self._known[needs] = cases
        return self._known[needs]

    def probe(self, needs: Needs) -> Case | None:
        """Return a small part of the first case, which rules out most mistakes."""
        cells = self.of(needs)[0].cells
        if cells < 2 * _PROBE_CELLS or not self._has_slices(needs):
            return None
        probe = self._slice(self._part(needs, self._anchors[-1], _PROBE_CELLS))
        return probe if 2 * probe.cells <= cells and probe.evaluable else None

    def elsewhere(self, needs: Needs) -> Iterator[Case]:
        """Yield more slices of a large problem: the included ones, and others spread over it."""
        if not self._cuts(needs):
            return
        tried = {self._part(needs, row) for row in self._anchors}
        parts = dict.fromkeys(self._part(needs, row) for row in (*self._included, *self._spread()))
        yield from (self._slice(part) for part in parts if part not in tried)

    def include(self, case: Case) -> None:
        """Make the worst row of this part an anchor: all further mistakes are tried there, too."""
        there = np.full(self._counts.shape, -1)
        part = case.part
        if part.head is not None:
            part = part._replace(head=min(part.head, there.shape[1] - 1))
        there[part.index] = self._counts[part.index]
        row = _row(there, int(np.argmax(there)))
        if row not in self._included:
            self._included.append(row)
            self._known.clear()

    def _cuts(self, needs: Needs) -> bool:
        return self.sliced and self._has_slices(needs)

    def _has_slices(self, needs: Needs) -> bool:
        return bool(self._files) and not needs >= {"batch", "heads", "rows"}

    @cached_property
    def whole(self) -> Case:
        """All of the problem, in the axes of the user."""
        return Case(self._question, WHOLE, self._question.files, whole=True)

    def _slice(self, part: Part) -> Case:
        if part not in self._slices:
            files = {}
            for name, file in self._files.items():
                # Behind an output projection, or an average, there are no heads.
                mixed = file.shape[1] < self._question.problem.shape[1]
                files[name] = file[(part._replace(head=None) if mixed else part).index]
            self._slices[part] = Case(self._question, part, files, whole=False)
        return self._slices[part]

    @cached_property
    def _counts(self) -> Any:
        """The number of wrong elements in each row, (B, H, L); all NaN of a row count as one."""
        total: Any = 0
        for name, one in self._question.outputs.items():
            if one.wrong is not None:
                wrong = one.wrong
                finite = wrong & np.isfinite(self._files[name]) if self._files else wrong
                total = total + np.maximum(finite.sum(axis=-1), wrong.any(axis=-1))
        return np.asarray(total)

    @cached_property
    def _anchors(self) -> tuple[Row, Row]:
        """The first wrong row, and the row with the most wrong elements."""
        first, worst = np.argmax(self._counts > 0), np.argmax(self._counts)
        return _row(self._counts, int(first)), _row(self._counts, int(worst))

    def _spread(self) -> Iterator[Row]:
        """Yield a few rows from all rows, and more from the wrong rows."""
        every, wrong = np.arange(self._counts.size), np.flatnonzero(self._counts)
        for rows, most in ((every, _OF_ALL), (wrong, _OF_WRONG)):
            places = np.linspace(0, rows.size - 1, min(rows.size, most)).round().astype(int)
            yield from (_row(self._counts, int(rows[place])) for place in places)

    def _part(self, needs: Needs, row: Row, cells: int = _SMALL_CELLS) -> Part:
        problem = self._question.problem
        batches, heads, queries, keys = problem.shape
        batch = None if "batch" in needs or batches == 1 else row[0]
        # The output projection of a context needs all heads, and so does an average.
        joined = problem.output is not None and "context" in self._question.files
        mixed = self._question.averaged or joined
        head = None if mixed or "heads" in needs or heads == 1 else row[1]
        count = max(1, cells // (keys * (heads if head is None else 1)))
        first, end = self._span(batch, head, row[2]) if self.by_part else (0, queries)
        if "rows" in needs or count >= queries == end - first:
            return Part(batch, head, None)
        start = first + (row[2] - first) // count * count
        return Part(batch, head, (start, min(start + count, end)))

    def _span(self, batch: int | None, head: int | None, query: int) -> tuple[int, int]:
        """Return the span of queries before, among or behind the wrong ones that holds a query."""
        counts = self._counts if batch is None else self._counts[batch : batch + 1]
        counts = counts if head is None else counts[:, min(head, counts.shape[1] - 1)][:, None]
        wrong = np.flatnonzero(counts.any(axis=(0, 1)))
        ends = [0, *([wrong[0], wrong[-1] + 1] if wrong.size else []), counts.shape[2]]
        at = int(np.searchsorted(ends, query, side="right"))
        return int(ends[at - 1]), int(ends[at])


def _row(counts: Any, flat: int) -> Row:
    batch, head, query = np.unravel_index(flat, counts.shape)
    return int(batch), int(head), int(query)
