"""Rows of a context, and what they would be if their queries saw other keys.

Where a row sees keys a to b, running sums over its keys give the context of any such span,

    c_ab = Σ_{a ≤ j < b} exp(s_j) v_j / Σ_{a ≤ j < b} exp(s_j)

Weights are read in the same way: they are multiplied with values at random.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.run import evaluate

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.referee.formats import Array, Ints
    from attncli.referee.parts import Case

__all__ = ["SLACK", "TYPICAL", "Rows", "shown_by"]

# Most errors are this small a share of what is tolerated; those of a row of few keys may be so
# large.
TYPICAL, SLACK = 1 / 8, 8.0
# What differences of running sums lose.
_LOST = 1e-10
# Rows of a batch entry that are looked at; columns of random values.
_ROWS, _COLUMNS = 8, 32


def shown_by(case: Case) -> str | None:
    """Return an output that shows which keys each head sees; None where none does."""
    if not case.comparable:
        return None
    if "context" in case.files and case.pipe.output is None:
        return "context"
    each = "weights" in case.files and not case.pipe.file.averaged
    return "weights" if each else None


class Rows:
    """The rows of a case that shows a context, or weights.

    Parameters
    ----------
    case : Case
    instead_of : collection of str
        The rules that do not hide a key here.

    Attributes
    ----------
    file, right : ndarray (B, H, L, E)
    scores : ndarray (B, H, L, S)
    value : ndarray (B, H, S, E)
    error : float
        What is tolerated.
    """

    def __init__(self, case: Case, instead_of: Collection[str] = ()) -> None:
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
        """Return the rows of a batch entry that are wrong."""
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(self.file[b] - self.right[b]) <= TYPICAL * self.error)
        return np.flatnonzero(wrong.any(axis=(0, 2)))

    def some_wrong(self, b: int) -> list[int]:
        """Return a few of them."""
        rows = self.wrong(b)
        some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(int))
        return [int(row) for row in rows[some]]

    def errors_of(self, b: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the mean squared error of spans (n,) of keys in a row of a batch entry, (n,).

        In units of what is tolerated; infinite where some error is far larger.
        """
        heads = range(self.scores.shape[1])
        errors, left = np.zeros(len(first)), np.arange(len(first))
        for h in heads:
            made = self._contexts(b, h, i, first[left], end[left])
            error = np.abs(made - self.file[b, h, i]) / self.error
            within = (error <= SLACK).all(axis=1)
            errors[left[~within]] = np.inf
            left = left[within]
            errors[left] += np.square(error[within]).mean(axis=1) / len(heads)
            if not left.size:  # other heads make none of these good
                break
        return errors

    def _contexts(self, b: int, h: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the contexts of spans, (n, E); 0 where no key is left."""
        scores, sink = self.scores[b, h, i], float(self._sinks[h])
        top = max(float(scores.max()), sink)
        shares = np.exp(scores - top) if top > -math.inf else np.zeros(len(scores))
        sums = np.cumsum(shares[:, None] * self.value[b, h], axis=0)
        sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
        total = np.concatenate([[0.0], np.cumsum(shares)])
        total = total[end] - total[first] + (math.exp(sink - top) if sink > -math.inf else 0.0)
        return np.asarray((sums[end] - sums[first]) / np.where(total > 0, total, 1)[:, None])
