"""Hold each block of queries of a head to a tolerance of its own.

The largest numbers of an output decide its tolerance. So a mistake among far smaller numbers (late
queries with many keys, or a head with small values) could pass. The queries of each head are cut
into blocks, and the blocks with the largest relative errors get a tolerance of their own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.pipeline import pipeline_of
from attncli.referee.report import Stretch
from attncli.referee.run import Part
from attncli.referee.tolerance import earned, plain_errors, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, File, Ints, Precision
    from attncli.referee.verdict import Errors

# The most queries in a block, and the most scores.
_ROWS, _CELLS = 64, 2**21
# In 16 bits, a row whose two largest scores are nearly equal may err by far more than the others.
# So the two worst rows of a block do not count if the block has at least 16 rows.
_UNCOUNTED, _ENOUGH = 2, 16
# How many blocks are measured, at most one a head; how many scores, where blocks have few queries.
_MEASURED, _MEASURED_CELLS = 4, 2**20
# A block is measured if its relative error is this many times that of the whole output.
_FAR_LARGER = 2.0
# Relative errors are taken of no number smaller than this share of the output's rms.
_LEAST = 0.01


def judged_in_blocks(
    problem: Problem, name: str, errors: Errors, file: File, inputs: Precision | None
) -> Errors:
    """Return the errors of an output, with a stretch if one block exceeds its own tolerance."""
    _, heads, queries, keys = problem.shape
    averaged = name != "context" and errors.answer.shape[1] < heads
    if errors.tolerance.rms is None or averaged or not errors.few_outside:
        return errors
    # Behind an output projection no number belongs to one head.
    joined = problem.output is not None and name == "context"
    rows = max(1, min(queries, _ROWS, _CELLS // (keys * (heads if joined else 1))))
    edges = np.linspace(0, queries, max(1, queries // rows) + 1).astype(int)
    uncounted = _UNCOUNTED if file.precision.short and rows >= _ENOUGH else 0
    wrong = _means(errors.error, edges, uncounted)
    right = _means(errors.answer, edges, 0)
    usual, pipe = root_mean_square(right), pipeline_of(problem)
    for place in _doubtful(wrong, np.maximum(right, _LEAST * usual), rows * keys, rows):
        batch, head, number = place
        span = int(edges[number]), int(edges[number + 1])
        part = Part(batch, None if joined else head, span)
        plain = plain_errors(pipe, part, {name: file.precision}, inputs=inputs)
        tolerance = earned(plain[name], file.precision, file.digits)
        most = max(tolerance.rms or 0.0, _LEAST * errors.tolerance.rms)
        if wrong[place] > most:
            own_batch, own_head = problem.layout.place(batch, None if joined else head)
            tolerance = replace(tolerance, rms=most)
            stretch = Stretch(own_batch, own_head, span, float(wrong[place]), tolerance)
            # Rows elsewhere may have the same relative error, and single numbers twice that.
            limits = 2 * most * np.maximum(1, right / max(right[place], _LEAST * usual))
            limits = np.repeat(limits, np.diff(edges), axis=-1)[..., None]
            return replace(errors, stretch=stretch, limits=limits)
    return errors


def _means(array: Array, edges: Ints, uncounted: int) -> Array:
    """Return the rms of each block, (B, H, blocks), without its ``uncounted`` largest rows."""
    with np.errstate(over="ignore"):
        rows = np.array([[_mean_squares(head) for head in entry] for entry in array])
        blocks = [np.sort(rows[..., a:b])[..., : b - a - uncounted] for a, b in pairwise(edges)]
        means = np.stack([block.mean(axis=-1) for block in blocks], axis=-1)
    return np.asarray(np.sqrt(means))


def _mean_squares(rows: Array) -> Array:
    finite = np.where(np.isfinite(rows), rows, 0)
    return np.asarray(np.einsum("ij,ij->i", finite, finite) / rows.shape[1])


def _doubtful(wrong: Array, right: Array, cells: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield the block of each head with the largest relative errors, the worst first."""
    few = rows < _ENOUGH
    with np.errstate(all="ignore"):
        share = np.nan_to_num(wrong / right)
        usual = np.float64(root_mean_square(wrong)) / root_mean_square(right)
    above = 0.0 if few else _FAR_LARGER * usual
    count = max(_MEASURED, _MEASURED_CELLS // cells) if few else _MEASURED
    numbers, largest = share.argmax(axis=-1), share.max(axis=-1)
    for place in np.argsort(-largest, axis=None)[:count]:
        batch, head = (int(n) for n in np.unravel_index(place, largest.shape))
        if largest[batch, head] > above:
            yield batch, head, int(numbers[batch, head])
