"""Find pages of a cache that are read in the place of others, or that hold zeros.

Every number c of a context is Σ_j p_j v_j / Σ_j p_j with p_j = exp(score_j), so that

    Σ_j p_j (v_j − c) = 0

over the keys that were read. This sum is linear in the count of each page, whether it belongs to
the same batch entry or to another. In a page of zeros, p_j is 1 (keys) or v_j is 0 (values).

References
----------
Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
PagedAttention", for pages and the table of their blocks.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.fits.counts import EQUATIONS, whole_counts
from attncli.referee.fits.rows import TYPICAL, shown_by
from attncli.referee.fits.table import at_first, found, told
from attncli.referee.formats import FLOAT64
from attncli.referee.mistakes.inputs import emptied
from attncli.referee.pipeline import Pipeline, lengths_of
from attncli.referee.run import Run, evaluate, turned_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.formats import Array, Ints
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case

# The sizes of pages, the largest first; the most keys, counted over all batch entries.
_SIZES, _MOST_KEYS = (256, 128, 64, 32, 16, 8, 4, 2, 1), 2**14
# The most keys among which a page of zeros is searched; for how many pairs of ends the error is
# computed exactly; by which factor keys or values alone must fit better than both.
_MOST_ENDS, _NEAREST, _NEARER = 1024, 64, 2.0
_KINDS = (("key", "value"), ("key",), ("value",))
# The batch entry and the key that are read at each place of a batch entry, (S,) each.
Read = tuple["Ints", "Ints"]


def _reread(reads: Sequence[Read]) -> Mistake:
    """Return the mistake that each batch entry reads keys and values from these places."""

    def change(pipe: Pipeline) -> Pipeline:
        pipe = turned_inputs(pipe)
        made = {}
        for side in ("key", "value"):
            rows = getattr(pipe, side)
            each = [rows[entry % len(rows), :, key].swapaxes(0, 1) for entry, key in reads]
            made[side] = np.stack(each)
        return pipe.but(**made)

    pairs = [pair for b, read in enumerate(reads) for pair in _told(b, *read)]
    return found("misread_pages", change, told(pairs, "are read from"))


def _told(b: int, entry: Ints, key: Ints) -> Iterator[tuple[str, str]]:
    moved = np.stack([entry - b, key - np.arange(len(key))])
    ends = np.flatnonzero((np.diff(moved) != 0).any(axis=0)) + 1
    for start, stop in pairwise([0, *ends.tolist(), len(key)]):
        if moved[:, start].any():
            source = "" if entry[start] == b else f" of batch entry {entry[start]}"
            yield (
                f"keys {start} to {stop - 1} of batch entry {b}",
                f"keys {int(key[start])} to {int(key[stop - 1])}{source}",
            )


# Pages of a cache.


class _Sums:
    """The terms p_j (v_j − c) of the sum above, with the keys of the ``by``-th next entry."""

    def __init__(self, case: Case, by: int = 0) -> None:
        batch, heads, _, keys = case.problem.shape
        entry, head = np.indices((batch, heads))
        places = (entry + by) % batch, head // (heads // case.pipe.key.shape[1])
        lengths = np.array(lengths_of(case.problem))[places[0][:, 0], None, None, None]
        pipe = case.pipe.but(rules={}, places={"key": places, "value": places})
        scores = evaluate(pipe, case.part)["scores"]
        seen = case.run.seen if by == 0 else np.arange(keys) < lengths
        with np.errstate(over="ignore"):  # weights by the right denominator
            self.shares = np.where(seen, np.exp(scores - case.right["lse"]), 0)
        self.value = Run(pipe, case.part, FLOAT64, None).operand("value")
        self.file = case.canonical("context")

    def differences(self, b: int, i: int) -> Array:
        return np.asarray(self.value[b] - self.file[b, :, i, None]).swapaxes(0, 1)

    def of(self, b: int, i: int) -> Array:
        made = self.shares[b, :, i].T[..., None] * self.differences(b, i)
        return np.asarray(made.reshape(len(made), -1))


def _has_pages(case: Case) -> bool:
    batch, _, _, keys = case.problem.shape
    return (
        shown_by(case) == "context"
        and set(case.pipe.rules) <= {"causal", "window", "kv_lengths", "query_lengths"}
        and case.pipe.sinks is None
        and case.pipe.key.shape[0] == batch
        and bool(np.isfinite(case.canonical("context")).all())
        and batch * keys <= _MOST_KEYS
        and batch * case.cells <= case.question.work.left
    )


def misread_pages(case: Case) -> Mistake | None:
    """Find pages of a cache that are read in the place of others."""
    if not _has_pages(case):
        return None
    batch, _, _, keys = case.problem.shape
    sums = [_Sums(case, by) for by in range(batch)]
    case.question.work.spend(batch * case.cells)
    errors = np.abs(sums[0].file - case.right["context"]).max(axis=(1, 3))
    reads = []
    for b in range(batch):
        own = np.full(keys, b), np.arange(keys)
        wrong = np.flatnonzero(errors[b] > case.pipe.file.resolution)
        if wrong.size:
            each = [of.of(b, int(wrong[-1])) for of in sums]
            read = _read(each, TYPICAL * case.pipe.file.resolution)
            if read is None:
                return None
            own = (b + read[0]) % batch, read[1]
        reads.append(own)
    return _reread(reads)


def _read(each: Sequence[Array], error: float) -> Read | None:
    """Return the entry (relative to the own one) and the key that are read at each place."""
    keys = len(each[0])
    for size in _SIZES:
        starts = np.arange(0, keys, size)
        sums = np.concatenate([np.add.reduceat(one, starts, axis=0) for one in each])
        if size >= keys or sums.shape[1] < EQUATIONS * len(sums):
            continue
        usual = np.arange(len(sums)) < len(starts)
        counts = whole_counts(sums @ sums.T, error, usual)
        if counts is None:
            continue
        lost = np.flatnonzero(counts < usual)
        added = np.repeat(np.arange(len(counts)), np.maximum(counts - usual, 0))
        if not 0 < len(lost) == len(added):
            return None
        entry, key = np.zeros(keys, np.intp), np.arange(keys)
        for place, source in zip(lost, added, strict=True):
            by, page = divmod(int(source), len(starts))
            at = slice(starts[place], starts[place] + size)
            entry[at] = by
            key[at] = np.minimum(starts[page] + np.arange(len(key[at])), keys - 1)
        return entry, key
    return None


def empty_pages(case: Case) -> Mistake | None:
    """Find the page whose keys, values or both are 0."""
    keys = case.problem.shape[3]
    if not _has_pages(case) or case.pipe.terms or not 1 < keys <= _MOST_ENDS:
        return None
    sums = _Sums(case)
    errors = np.abs(sums.file - case.right["context"]).max(axis=(1, 3))
    b, i = (int(n) for n in np.unravel_index(int(errors.argmax()), errors.shape))
    case.question.work.spend(len(_KINDS) * keys * keys)
    least, best = math.inf, None
    for names in _KINDS:
        left, page = _emptied(sums, b, i, np.exp(-case.right["lse"][b, :, i]), names)
        if left < least / _NEARER:
            least, best = left, (names, page)
    if best is None:
        return None
    names, (start, stop) = best
    return found(
        "empty_page",
        lambda pipe: emptied(turned_inputs(pipe), names, slice(start, stop)),
        " and ".join(f"{name}s" for name in names),
        f"{start} to {stop - 1}",
    )


def _emptied(
    sums: _Sums, b: int, i: int, zero: Array, names: tuple[str, ...]
) -> tuple[float, tuple[int, int]]:
    """Return the error and the span of the page of zeros that fits a row best."""
    own, shares, away = sums.of(b, i), sums.shares[b, :, i].T[..., None], sums.differences(b, i)
    if "key" in names:
        shares = np.where(shares > 0, zero, 0)
    if "value" in names:
        away = np.broadcast_to(-sums.file[b, :, i], away.shape)
    right, change = own.sum(axis=0), (shares * away).reshape(len(own), -1) - own
    upto = np.concatenate([np.zeros((1, change.shape[1])), np.cumsum(change, axis=0)])
    # A quick first choice: pairs of ends whose error is small along one random direction.
    along = np.random.default_rng(0).choice([-1.0, 1.0], len(right))
    start, stop = np.triu_indices(len(upto), 1)
    far = np.abs(right @ along + (upto @ along)[stop] - (upto @ along)[start])
    near = np.argsort(far)[:_NEAREST]
    left = np.square(right + upto[stop[near]] - upto[start[near]]).mean(axis=1)
    at = int(left.argmin())
    return math.sqrt(float(left[at])), (int(start[near[at]]), int(stop[near[at]]))


FITTINGS = (
    at_first(misread_pages, "misread_pages"),
    at_first(empty_pages, "empty_page"),
)
