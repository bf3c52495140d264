"""Rows of a context, computed again as if their queries saw other spans of keys.

If a row sees the keys from a up to b, running sums over the keys give the context of any span:

    c_ab = Σ_{a ≤ j < b} exp(s_j) v_j / Σ_{a ≤ j < b} exp(s_j)

Weights are treated the same way: they are multiplied with random values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import first_few
from attncli.referee.fits.table import at_first, by_entry, found, ranges
from attncli.referee.pipeline import measured
from attncli.referee.run import evaluate

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.referee.formats import Array, Ints
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.run import Run

# In tolerances: a typical error, and the largest error of a row with few keys.
TYPICAL, SLACK = 1 / 8, 8.0
# The relative error of a difference of running sums.
_LOST = 1e-10
# How many rows of a batch entry or a sequence are compared; how many columns random values have.
_ROWS, _COLUMNS = 8, 32
# Spans whose errors are within this factor differ only in keys with hardly any weight.
_AS_GOOD = 1.05
# The most tokens whose segment ids are listed in an option.
_LISTED = 64


def shown_by(case: Case) -> str | None:
    """Return the output that shows which keys each head sees; None if none does."""
    if not case.comparable:
        return None
    if "context" in case.files and case.pipe.output is None:
        return "context"
    each = "weights" in case.files and not case.pipe.file.averaged
    return "weights" if each else None


class Rows:
    """Rows that can be computed again with other keys: scores, values, file and tolerance."""

    def __init__(self, case: Case, instead_of: Collection[str] = ()) -> None:
        """Leave out the rules in ``instead_of``."""
        self._work = case.question.work
        pipe, name = case.pipe, shown_by(case) or "context"
        rules = {rule: own for rule, own in pipe.rules.items() if rule not in instead_of}
        self.scores = evaluate(pipe.but(rules=rules), case.part, memory=case.memory)["scores"]
        batch, heads, _, keys = self.scores.shape
        self.file, self.right, self.error = case.canonical(name), case.right[name], 1.0
        if name == "context":
            value = case.run.operand("value")
        else:
            value = np.random.default_rng(0).normal(size=(1, 1, keys, _COLUMNS)) / math.sqrt(keys)
            self.file, self.right = self.file @ value, self.right @ value
        value = np.repeat(value, heads // value.shape[1], axis=1)
        self.value = np.broadcast_to(value, (batch, *value.shape[1:]))
        lost = _LOST * float(np.abs(self.right).max(initial=0.0))
        self.error = max(pipe.file.resolution + lost, float(np.finfo(np.float64).tiny))
        self.first_query = 0 if case.part.rows is None else case.part.rows[0]
        none = np.full(heads, -np.inf)
        self._sinks = none if pipe.sinks is None else case.run.by_head(pipe.sinks).ravel()

    def wrong(self, b: int) -> Ints:
        """Return the wrong rows of a batch entry."""
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(self.file[b] - self.right[b]) <= TYPICAL * self.error)
        return np.flatnonzero(wrong.any(axis=(0, 2)))

    def some_wrong(self, b: int) -> list[int]:
        """Return up to eight wrong rows."""
        rows = self.wrong(b)
        some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(int))
        return [int(row) for row in rows[some]]

    def errors_of(self, b: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the mean squared errors of spans of keys (n,) in a row; inf if far off."""
        heads = range(self.scores.shape[1])
        self._work.spend(len(first))
        errors, left = np.zeros(len(first)), np.arange(len(first))
        for h in heads:
            made = self._contexts(b, h, i, first[left], end[left])
            error = np.abs(made - self.file[b, h, i]) / self.error
            within = (error <= SLACK).all(axis=1)
            errors[left[~within]] = np.inf
            left = left[within]
            errors[left] += np.square(error[within]).mean(axis=1) / len(heads)
            if not left.size:  # no span is left: other heads cannot bring one back
                break
        return errors

    def _contexts(self, b: int, h: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the contexts of spans, (n, E), from differences of running sums."""
        scores, sink = self.scores[b, h, i], float(self._sinks[h])
        top = max(float(scores.max()), sink)
        shares = np.exp(scores - top) if top > -math.inf else np.zeros(len(scores))
        sums = np.cumsum(shares[:, None] * self.value[b, h], axis=0)
        sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
        total = np.concatenate([[0.0], np.cumsum(shares)])
        total = total[end] - total[first] + (math.exp(sink - top) if sink > -math.inf else 0.0)
        return np.asarray((sums[end] - sums[first]) / np.where(total > 0, total, 1)[:, None])


def as_good(errors: Array) -> Ints:
    """Return the indices of the smallest error and of errors nearly as small."""
    least = float(errors.min(initial=np.inf))
    good = errors <= _AS_GOOD * least if np.isfinite(least) else np.zeros(0, np.bool_)
    return np.flatnonzero(good)


# The starts of packed sequences, and the ends of the rows of a causal mask.


def other_segments(case: Case) -> Mistake | None:
    """Find packed sequences that begin at other tokens, or that the problem does not state."""
    stated = case.problem.visible.segment_ids
    ids = _segments(case)
    if ids is None or (ids == np.arange(ids.shape[1])).all():  # not sequences of a single token
        return None
    right = np.zeros_like(ids) if stated is None else np.broadcast_to(stated.queries, ids.shape)
    if np.array_equal(np.diff(ids) != 0, np.diff(right) != 0):
        return None
    alike = (ids == ids[0]).all()
    listed = ",".join(map(str, ids[0].tolist())) if alike and ids.shape[1] <= _LISTED else ""
    return found(
        "segments_unasked" if stated is None else "segments_elsewhere",
        lambda pipe: pipe.with_rule("segment_ids", measured(ids, ids)),
        by_entry([*map(_begins, ids)]),
        "" if stated is None else _begins(right[0]),
        option=lambda _: f"--segment-ids {listed}" if listed else "",
    )


def _begins(ids: Ints) -> str:
    return first_few([str(token) for token in np.flatnonzero(np.diff(ids)) + 1]) or "none"


def _segments(case: Case) -> Ints | None:
    """Return the sequence number of each token, (B, L); None if the rows show no sequences."""
    # Go from the last sequence back: its last query sees its keys from the first one on.
    visible, (batch, _, queries, keys) = case.problem.visible, case.problem.shape
    if shown_by(case) is None or visible.window is not None or queries != keys:
        return None
    if any(visible.offsets):
        return None
    rows, begins = Rows(case, {"segment_ids"}), np.zeros((batch, queries), np.int64)
    for b in range(batch):
        end = queries
        while end:
            first = _first(rows, b, end)
            if first is None or case.question.work.over:
                return None
            begins[b, first], end = 1, first
    return np.cumsum(begins, axis=1) - 1


def _first(rows: Rows, b: int, end: int) -> int | None:
    """Return the first key of the sequence that ends before key ``end``."""

    def errors(i: int, first: Ints) -> Array:
        return rows.errors_of(b, i, first, np.full(first.size, end))

    good = as_good(errors(end - 1, np.arange(end)))
    if not good.size:
        return None
    # A key with next to no weight in one row may have more weight in another.
    some = np.unique(np.linspace(good[-1], end - 1, _ROWS).astype(int)).tolist()
    best = as_good(np.mean([errors(i, good) for i in some], axis=0))
    return int(good[best[0]]) if best.size else None


def diagonal_blocks(case: Case) -> Mistake | None:
    """Find blocks on the diagonal of a causal mask that are not masked, or not seen."""
    visible, (_, _, queries, keys) = case.problem.visible, case.problem.shape
    if shown_by(case) is None or not visible.causal or any(visible.offsets):
        return None
    rows, numbers = Rows(case, {"causal"}), np.arange(1, keys + 1)
    wrong, ends = rows.wrong(0), np.arange(1, queries + 1)
    for i in wrong:
        good = as_good(rows.errors_of(0, int(i), np.zeros_like(numbers), numbers))
        if not good.size or case.question.work.over:
            return None
        ends[i] = numbers[good[np.argmin(np.abs(good - i))]]
    moved = ends[wrong]
    if not 0 < len(set(moved)) < len(wrong):  # each row has its own end: another diagonal
        return None
    # If the block is seen to its end, its last row is right. If it is not seen at all, its first
    # row is wrong, and sees only the keys before the block.
    if (moved > wrong + 1).all() and not np.isin(moved - 1, wrong).any():
        name = "some_diagonal_blocks_unmasked"
    elif (moved <= wrong).all() and np.isin(moved, wrong).all():
        name = "some_diagonal_blocks_lost"
    else:
        return None

    def seen(run: Run) -> Array:
        return np.asarray(run.j < ends[run.i])

    return found(name, lambda pipe: pipe.with_rule("causal", seen), ranges(wrong))


FITTINGS = (
    at_first(diagonal_blocks, "some_diagonal_blocks_lost"),
    at_first(other_segments, "segments_unasked"),
)
