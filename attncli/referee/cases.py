"""Which cases conventions are tried on: the whole of a small problem, slices of a large one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import places
from attncli.referee.case import Case, is_evaluable, widened
from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import LEAST_SEEN, USUAL_FILL, Outputs, Part, Recipe, recipe_of
from attncli.referee.stages import present_average
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from attncli.layers.projection import Projected
    from attncli.problem.problem import Problem
    from attncli.referee.convention import Need
    from attncli.referee.question import Question

__all__ = ["Cases"]

Array = npt.NDArray[Any]
Row = tuple[int, int, int]

# Evaluated in about two milliseconds, so that all pairs take seconds.
_SMALL_CELLS = 2**15
# So few that the calls dominate: what does not fit there is ruled out quickly.
_PROBE_CELLS = 2**10
# So many further slices are tried before an explanation counts for the whole problem: spread over
# the rows that are wrong, and over all.
_OF_WRONG, _OF_ALL = 24, 8


class Cases:
    """The cases of a question, made when they are asked for.

    Parameters
    ----------
    question : Question
    deadline : float, optional
    by_part : bool
        Try the heads and queries that are wrong by themselves, also of a small problem.
    """

    def __init__(
        self, question: Question, deadline: float = math.inf, *, by_part: bool = False
    ) -> None:
        self._question = question
        self.by_part = by_part
        self._deadline = deadline
        self._memory: dict[object, Any] = {}
        self._canonical = question.comparable
        self._known: dict[frozenset[Need], tuple[Case, ...]] = {}
        self._slices: dict[Part, Case] = {}
        self._probes: dict[frozenset[Need], Case | None] = {}
        self._rows: list[Row] = []
        self._limit = max(question.precisions.values(), key=lambda p: p.eps).largest

    @cached_property
    def sliced(self) -> bool:
        """Whether the problem is tried in slices: it is too large, or parts are by themselves."""
        return self.by_part or math.prod(self._question.problem.shape) > _SMALL_CELLS

    def of(self, needs: frozenset[Need]) -> tuple[Case, ...]:
        """Return the cases for conventions that need some axes whole, at least one.

        Two slices of a large problem, around the first wrong row and around the worst.
        """
        if needs not in self._known:
            self._known[needs] = tuple(self._make(needs))
        return self._known[needs]

    def probe(self, needs: frozenset[Need]) -> Case | None:
        """Return a part of the first case, on which most conventions are ruled out sooner.

        None where there is none that is far smaller.
        """
        if needs not in self._probes:
            self._probes[needs] = self._probe(needs)
        return self._probes[needs]

    def _probe(self, needs: frozenset[Need]) -> Case | None:
        cells = self.of(needs)[0].cells
        if cells < 2 * _PROBE_CELLS or not self._cuts(needs):
            return None
        probe = self._slice(*self._part(needs, self._anchors()[1], _PROBE_CELLS))
        return probe if 2 * probe.cells <= cells else None

    def _cuts(self, needs: frozenset[Need]) -> bool:
        """Return whether slices can be compared, and are enough."""
        return bool(self._canonical) and not needs >= {"batch", "heads", "rows"}

    def _make(self, needs: frozenset[Need]) -> list[Case]:
        if not self.sliced or not self._cuts(needs):
            return [self._whole]
        parts = self._wrong_parts(needs)
        for part in parts:
            if part not in self._slices:
                self._slices[part] = self._slice(*part)
        return [self._slices[part] for part in parts]

    def elsewhere(self, needs: frozenset[Need]) -> Iterator[Case]:
        """Yield more slices of a large problem: those included, and others spread over it."""
        if not self.sliced or not self._cuts(needs):
            return
        tried = {self._part(needs, row) for row in self._anchors()}
        rows = (*self._rows, *self._odd_row(), *self._spread())
        parts = dict.fromkeys(self._part(needs, row) for row in rows)
        yield from (self._slice(*part) for part in parts if part not in tried)

    def _spread(self) -> Iterator[Row]:
        """Yield a few rows of all, and then more of those that are wrong."""
        shape = self._question.problem.shape[:3]
        for row in _evenly(math.prod(shape), _OF_ALL):
            batch, head, query = np.unravel_index(row, shape)
            yield int(batch), int(head), int(query)
        wrong = np.flatnonzero(self._counts)
        for place in _evenly(wrong.size, _OF_WRONG):
            yield _row(self._counts, int(wrong[place]))

    def _wrong_parts(self, needs: frozenset[Need]) -> dict[Part, None]:
        """Return the parts around rows that are wrong; NaN alone would say little."""
        parts = dict.fromkeys(self._part(needs, row) for row in (*self._anchors(), *self._rows))
        numbers = self._wrong_numbers
        if numbers.any() and not any(numbers[_index(part)].any() for part in parts):
            parts[self._part(needs, _row(numbers, int(np.argmax(numbers))))] = None
        return parts

    @cached_property
    def _whole(self) -> Case:
        problem = self._question.problem
        small = is_evaluable(problem)
        recipe = self._prepared(
            recipe_of(widened(problem), problem) if small else Recipe(problem, problem, {}, {})
        )
        outputs = self._question.outputs
        right = (
            evaluate(recipe)
            if small
            else {name: canonical(problem, name, one.answer) for name, one in outputs.items()}
        )
        return Case(
            recipe,
            self._question.files,
            right,
            whole=True,
            evaluable=small,
            deadline=self._deadline,
        )

    def _slice(self, batch: int | None, head: int | None, rows: tuple[int, int] | None) -> Case:
        whole = self._question.problem
        part = whole.select(batch=batch, head=head, rows=rows)
        small = is_evaluable(part)
        recipe = recipe_of(widened(part), whole) if small else Recipe(part, whole, {}, {})
        start = 0 if rows is None else rows[0]
        recipe = self._prepared(replace(recipe, start=start, part=(batch, head, rows)))
        index = _index((batch, head, rows))
        files = {name: array[index] for name, array in self._canonical.items()}
        outputs = self._question.outputs
        right = (
            evaluate(recipe)
            if small
            else {name: canonical(whole, name, outputs[name].answer)[index] for name in files}
        )
        place = _words(whole, batch, head, rows)
        return Case(
            recipe, files, right, whole=False, evaluable=small, place=place, deadline=self._deadline
        )

    def _prepared(self, recipe: Recipe) -> Recipe:
        files = self._question.files
        if self._question.averaged:
            recipe = replace(recipe, shape=present_average, finish=(_averaged,))
        if rows := self._question.nan_rows:
            recipe = replace(recipe, behind=(partial(_with_nan, rows),))
        shapes = {name: array.shape for name, array in files.items()}
        return replace(
            recipe,
            largest=self._limit,
            resolution=max(one.tolerance.absolute for one in self._question.outputs.values()),
            file_shapes=shapes,
            file_fill=_fill(files.get("scores")),
            memory=self._memory,
            projected=_arguments(self._question.problem.made_from),
        )

    def include(self, case: Case) -> None:
        """Try what comes on a row of another part of the problem, too: the worst one there."""
        batch, head, rows = case.recipe.part
        counts = self._counts
        there = np.zeros(counts.shape, np.bool_)
        there[_index((batch, head if head is None else min(head, counts.shape[1] - 1), rows))] = (
            True
        )
        row = _row(counts, int(np.argmax(np.where(there, counts, -1))))
        if row not in self._rows:
            self._rows.append(row)
            self._known.clear()

    @cached_property
    def _counts(self) -> npt.NDArray[np.intp]:
        """Return how many numbers of each row are wrong, (B, H, L)."""
        counts: Any = sum(
            one.wrong.sum(axis=-1)
            for one in self._question.outputs.values()
            if one.wrong is not None
        )
        return np.asarray(counts)

    def _odd_row(self) -> list[Row]:
        """Return the first row all of whose wrong elements are NaN or infinite, if there is one."""
        odd = (self._counts > 0) & (self._wrong_numbers == 0)
        return [_row(odd, int(np.argmax(odd)))] if odd.any() else []

    @cached_property
    def _wrong_numbers(self) -> npt.NDArray[np.intp]:
        """Return how many finite numbers of each row are wrong, (B, H, L)."""
        outputs = self._question.outputs
        counts: Any = sum(
            (outputs[name].wrong & np.isfinite(file)).sum(axis=-1)
            for name, file in self._canonical.items()
        )
        return np.asarray(counts)

    def _anchors(self) -> list[Row]:
        """Return the first wrong row and the one with most wrong elements."""
        counts = self._counts
        first, most = int(np.argmax(counts > 0)), int(np.argmax(counts))
        return [_row(counts, first), _row(counts, most)]

    def _part(self, needs: frozenset[Need], row: Row, cells: int | None = None) -> Part:
        batches, heads, queries, keys = self._question.problem.shape
        batch = None if "batch" in needs or batches == 1 else row[0]
        # The output projection of a context needs all heads, and so does an average.
        joined = self._question.problem.output is not None and "context" in self._question.files
        mixed = self._question.averaged or joined
        head = None if mixed or "heads" in needs or heads == 1 else row[1]
        count = max(1, (cells or _SMALL_CELLS) // (keys * (heads if head is None else 1)))
        first, end = self._stretch(batch, head, row[2]) if self.by_part else (0, queries)
        if "rows" in needs or count >= queries == end - first:
            return batch, head, None
        start = first + (row[2] - first) // count * count
        return batch, head, (start, min(start + count, end))

    def _stretch(self, batch: int | None, head: int | None, query: int) -> tuple[int, int]:
        """Return which queries belong with one: from the first wrong one to the last, or not."""
        counts = self._counts
        heads = slice(None) if head is None else min(head, counts.shape[1] - 1)
        of_part = counts[slice(None) if batch is None else batch, heads]
        wrong = np.flatnonzero(of_part.reshape(-1, counts.shape[2]).any(axis=0))
        ends = [0, wrong[0], wrong[-1] + 1, counts.shape[2]] if wrong.size else [0, counts.shape[2]]
        at = int(np.searchsorted(ends, query, side="right"))
        return int(ends[at - 1]), int(ends[at])


def _index(part: Part) -> tuple[slice, ...]:
    """Return the index of a part of what is (B, H, L, ·)."""
    batch, head, rows = part
    pick = (slice(None) if n is None else slice(n, n + 1) for n in (batch, head))
    return (*pick, slice(None) if rows is None else slice(*rows))


def _evenly(count: int, most: int) -> list[int]:
    """Return at most so many places spread evenly over a count, the first and the last of them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def _row(counts: npt.NDArray[Any], flat: int) -> Row:
    batch, head, query = np.unravel_index(flat, counts.shape)
    return int(batch), int(head), int(query)


def _arguments(projected: Projected | None) -> dict[str, Any] | None:
    """Return the arguments of `attncli.project` that were given."""
    if projected is None:
        return None
    return {name: value for name, value in projected.arguments.items() if value is not None}


def _words(
    problem: Problem, batch: int | None, head: int | None, rows: tuple[int, int] | None
) -> str:
    where = dict(zip(("batch", "head"), problem.layout.place(batch, head), strict=True))
    start, stop = rows or (0, problem.shape[2])
    words = f"queries {start} to {stop - 1}" if stop - start > 1 else f"query {start}"
    return ", ".join([*places(where), words])


def _with_nan(
    rows: Mapping[str, npt.NDArray[np.bool_]], recipe: Recipe, outputs: Outputs
) -> Outputs:
    """Return outputs with rows of NaN, wherever a mistake leaves their shape."""
    changed = dict(outputs)
    for name, whole in rows.items():
        own = whole[_index(recipe.part)]
        if name in outputs and outputs[name].shape[:3] == own.shape:
            changed[name] = np.where(own[..., None], np.nan, outputs[name])
    return changed


def _averaged(_: Recipe, outputs: Outputs) -> Outputs:
    if "weights" not in outputs:
        return outputs
    return {**outputs, "weights": outputs["weights"].mean(axis=1, keepdims=True)}


def _fill(scores: Array | None) -> float:
    """Return the large negative number that stands for hidden in a file of scores."""
    if scores is None:
        return USUAL_FILL
    finite = scores[np.isfinite(scores)]
    lowest = float(finite.min()) if finite.size else 0.0
    return lowest if lowest < LEAST_SEEN else USUAL_FILL
