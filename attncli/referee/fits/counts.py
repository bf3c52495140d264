"""Read off weights or a context how often each key counts in a row.

If key j counts c_j times, every number of the context is Σ_j c_j e_ij v_je / Σ_j c_j e_ij with
e = exp(scores), so that

    Σ_j c_j e_ij (v_je − c_ie) = 0

for each query i and column e. These equations are linear in the counts, and there are far more of
them than keys. If the file shows the weights, or the context determines them, each row has counts
of its own: a mask, or dropout.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.referee.fits.rows import TYPICAL, Rows, shown_by
from attncli.referee.fits.table import Fitting, at_first, found, needs_of, ranges
from attncli.referee.run import Run, evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.formats import Array, Bools, Ints
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline

_MOST_KEYS, _MOST_COUNTS = 1024, 64
# At least this many equations are needed for each key or page.
EQUATIONS = 2
# The equations determine a count if its coefficients are above this many errors and (_LOSS) this
# share of the largest coefficients. A count may differ from a whole number by at most _NEAR.
_TELLING, _NEAR, _LOSS = 30.0, 0.1, 1e-6
# A context determines its weights if the smallest singular value of the values is above this share
# of the largest. Weights below 1/32 of the tolerance count as 0.
_DEPENDENT, _NOTHING = 1e-3, 1 / 32
# The fewest weights that another mask must explain.
_LEAST_WEIGHTS = 4
# A smaller share of dropped weights is rounding error.
_LEAST_SHARE = 1e-3


# Counts that are the same in all rows.


def counted_keys(case: Case) -> Mistake | None:
    """Find keys, or a sink, that count more than once or not at all."""
    counts = _counts(case)
    if counts is None or (counts == 1).all():
        return None
    with np.errstate(divide="ignore"):
        times = np.log(counts)

    def again(_: Run, scores: Array) -> Array:
        return np.asarray(scores + times[:-1].astype(scores.dtype))

    def change(pipe: Pipeline) -> Pipeline:
        made = pipe.with_step("again", again, before="hide" if "hide" in pipe.order else None)
        return made if pipe.sinks is None else made.but(sinks=pipe.sinks + times[-1])

    return found("counted_keys", change, _words(counts))


def _counts(case: Case) -> Ints | None:
    """Return how often each key counts, and the sink last, (S + 1,); None if it cannot be told."""
    if shown_by(case) is None or case.problem.shape[3] > _MOST_KEYS:
        return None
    rows, weights, sinks = Rows(case), case.right["weights"], case.pipe.sinks
    keys = weights.shape[3]
    if not np.isfinite(rows.file).all() or rows.file.size < EQUATIONS * keys:
        return None
    rest = np.zeros((*weights.shape[:3], 1))
    if sinks is not None:
        rest = np.exp(case.run.by_head(sinks) - case.right["lse"])
    shares = np.concatenate([weights, rest], axis=-1)
    value = np.pad(rows.value, ((0, 0), (0, 0), (0, 1), (0, 0)))  # that of the sink is 0
    case.question.work.spend(keys * keys * math.prod(shares.shape[:2]))
    products = sum(
        _products(*parts)
        for entry in zip(shares, value, rows.file, strict=True)
        for parts in zip(*entry, strict=True)
    )
    return whole_counts(np.asarray(products), TYPICAL * rows.error)


def _products(shares: Array, value: Array, file: Array) -> Array:
    lengths = np.square(file).sum(axis=-1, keepdims=True)
    mixed = shares.T @ (shares * (file @ value.T))
    return np.asarray(
        (shares.T @ shares) * (value @ value.T) - mixed - mixed.T + shares.T @ (lengths * shares)
    )


def whole_counts(products: Array, error: float, usual: Array | None = None) -> Ints | None:
    """Return the whole numbers (n,) that solve linear equations; None where none do."""
    # Products are sums, over the equations, of the coefficients of two counts. Counts are only
    # determined up to a factor: most of the usual ones are 1.
    usual = np.ones(len(products), np.bool_) if usual is None else usual
    lengths = np.sqrt(np.maximum(np.diagonal(products), 0))
    telling = lengths > max(_TELLING * error, _LOSS * float(lengths.max()))
    if not telling.any():
        return None
    solution = np.abs(np.linalg.eigh(products[np.ix_(telling, telling)])[1][:, 0])
    if not usual[telling].any():
        return None
    one = float(np.median(solution[usual[telling]]))
    units = one, float(solution.min(initial=one, where=solution > one / _MOST_COUNTS))
    for unit in units:
        counts = usual.astype(np.float64)
        counts[telling] = solution / unit if unit else np.inf
        if counts.max() <= _MOST_COUNTS and (np.abs(counts - counts.round()) <= _NEAR).all():
            return counts.round().astype(np.int64)
    return None


def _words(counts: Array) -> str:
    keys, sink = counts[:-1], int(counts[-1])
    words = [
        f"keys {ranges(np.flatnonzero(keys == count))} are counted {count} times"
        for count in dict.fromkeys(keys[keys != 1].tolist())
    ]
    words += [f"the sink is counted {sink} times"] if sink != 1 else []
    return " and ".join(words) or "each key is counted once"


# Weights that a file shows: a file of weights, or a context that determines them.


class _Shown(NamedTuple):
    """Weights read off a file, (B, H, L, S), and the smallest one that is not taken for 0."""

    weights: Array
    least: float

    def zero(self, expected: Array) -> Bools:
        """Return which weights are 0, but should not be."""
        return np.asarray((expected > self.least) & (np.abs(self.weights) <= expected / 2))

    def signs(self, expected: Array) -> Array:
        """Return 0 for weights that are 0 by mistake, −1 for negative weights, 1 for all others."""
        negative = (expected > self.least) & (self.weights < -expected / 2)
        return np.where(negative, -1, ~self.zero(expected))


def _shown(case: Case) -> _Shown | None:
    """Return the weights of a file, or those that its context determines."""
    name, resolution = shown_by(case), case.pipe.file.resolution
    if name and "weights" in case.files and not case.pipe.file.averaged:
        return _Shown(case.canonical("weights"), _NOTHING * resolution)
    if name is None:
        return None
    rows = Rows(case)
    if rows.value.shape[2] > rows.value.shape[3] or not np.isfinite(rows.file).all():
        return None
    lengths = np.linalg.svd(rows.value, compute_uv=False)
    if lengths.min() <= _DEPENDENT * lengths.max():
        return None
    inverse = np.linalg.pinv(rows.value)
    return _Shown(rows.file @ inverse, float(TYPICAL * resolution / lengths.min()))


def _all_shown(cases: Sequence[Case]) -> list[tuple[Case, _Shown]]:
    each = [(case, shown) for case in cases if (shown := _shown(case)) is not None]
    return each if len(each) == len(cases) else []


def another_mask(cases: Sequence[Case]) -> Mistake | None:
    """Find a mask under which the weights of the files are right."""
    masks = {case.part: _mask_of(case, own) for case, own in _all_shown(cases)}
    right = {case.part: _seen(case) for case in cases if masks}
    other = [masks[part][(masks[part] != own).any(axis=-1)] for part, own in right.items()]
    # If a query sees one key, its weight is 1 whatever its score: only more keys are evidence.
    if sum(int(np.maximum(rows.sum(axis=-1) - 1, 0).sum()) for rows in other) < _LEAST_WEIGHTS:
        return None

    def rule(run: Run) -> Bools:
        return masks.get(run.part, np.ones((1, 1, 1, 1), np.bool_))

    def change(pipe: Pipeline) -> Pipeline:
        # The output projection needs the rule of padded queries.
        kept = {name: rule for name, rule in pipe.rules.items() if name == "query_lengths"}
        return pipe.but(rules={**kept, "mask": rule})

    hidden = sum(int(np.count_nonzero(own & ~masks[part])) for part, own in right.items())
    more = sum(int(np.count_nonzero(masks[part] & ~own)) for part, own in right.items())
    return found("another_mask", change, f"{hidden:,}", f"{more:,}")


def _seen(case: Case) -> Bools:
    return np.broadcast_to(case.run.seen, case.right["weights"].shape)


def _mask_of(case: Case, shown: _Shown) -> Bools:
    """Return which keys have a weight; where weights underflow, the problem's mask."""
    # A weight is exp(score − lse): the largest one gives the lse, and so all other weights.
    scores = evaluate(case.pipe.but(rules={}), case.part, memory=case.memory)["scores"]
    largest = shown.weights.argmax(-1)[..., None]
    with np.errstate(all="ignore"):
        lse = np.take_along_axis(scores - np.log(shown.weights), largest, -1)
        expected = np.exp(scores - lse)
    blind: Bools = shown.weights.max(-1, keepdims=True) <= shown.least
    return ~blind & np.where(expected > shown.least, ~shown.zero(expected), _seen(case))


# Dropped weights: they are 0, or negative in FlashAttention's tests (return_attn_probs).


def dropout(cases: Sequence[Case], *, scaled: bool) -> Mistake | None:
    """Find weights that are 0 or negative, with the others divided by 1 − p."""
    shown = _all_shown(cases)
    signs = {case.part: own.signs(case.right["weights"]) for case, own in shown}
    if all((sign == 1).all() for sign in signs.values()):
        return None
    right = np.concatenate([(signs[c.part] * c.right["weights"]).ravel() for c in cases])
    known = np.concatenate([own.weights.ravel() for _, own in shown])
    share = 1 - float(np.dot(right, right) / np.dot(known, right)) if right.any() else 0.0
    share = share if scaled and abs(share) >= _LEAST_SHARE else 0.0
    negative = any((sign < 0).any() for sign in signs.values())
    if scaled and not negative and not 0 < share < 1:
        return None
    # The signs were free to choose: one bit for each weight.
    choice = float(np.log2(right.size)) if negative else None

    def multiplied(run: Run, weights: Array) -> Array:
        return weights * signs.get(run.part, 1.0) / (1 - share)

    name = "dropped_weights_negative" if negative else "dropout" if scaled else "zeroed_weights"
    return found(name, lambda pipe: pipe.then("after", multiplied), f"{share:.3g}", choice=choice)


FITTINGS = (
    at_first(counted_keys, "counted_keys"),
    Fitting(partial(dropout, scaled=True), of_part=True),
)
# These fit every weight of the files, so they explain much and say little.
SHOWN = (
    Fitting(another_mask, needs_of("another_mask"), of_part=True),
    Fitting(partial(dropout, scaled=False), of_part=True),
)
