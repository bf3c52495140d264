"""How often each key counts in a row, read off weights or a context.

Where key j counts c_j times, every number of the context is Σ_j c_j e_ij v_je / Σ_j c_j e_ij with
e = exp(scores), so that

    Σ_j c_j e_ij (v_je − c_ie) = 0

for each query i and column e: equations that are linear in the counts, far more of them than there
are keys. Where the file shows the weights themselves, or values that tell them, each row has counts
of its own: a mask, or dropout.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors.text import first_few
from attncli.referee.fits.numbers import few_digits
from attncli.referee.fits.rows import TYPICAL, Rows, shown_by
from attncli.referee.fits.table import Fitting, at_first, found, needs_of, told
from attncli.referee.formats import Array, Bools, Ints, short_of
from attncli.referee.run import Part, Run, evaluate
from attncli.referee.tolerance import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.referee.mistakes.table import Change, Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline

__all__ = ["EQUATIONS", "FITTINGS", "SHOWN", "ranges", "whole_counts"]

_MOST_KEYS, _MOST_COUNTS = 1024, 64
# So many equations for each key or page, at least.
EQUATIONS = 2
# A key whose part in all equations together is less than so many errors tells nothing of its count.
_TELLING, _NEAR, _LOSS = 30.0, 0.1, 1e-6
# Where values are nearly linearly dependent, the context no longer determines the weights; a weight
# that is less is as good as 0, as a share of what is tolerated.
_DEPENDENT, _NOTHING = 1e-3, 1 / 32
# Weights that say that a mask is no accident.
_LEAST_WEIGHTS = 4
# Somebody chose the share that is dropped; less than this is rounding error.
_LEAST_SHARE = 1e-3


# The same counts in all rows of a batch entry.


def counted_keys(case: Case) -> Mistake | None:
    """Return the mistake that some keys, or the sink, count more than once or not at all."""
    counts = _counts(case)
    if counts is None or (counts == 1).all():
        return None
    with np.errstate(divide="ignore"):
        times = np.log(counts)

    def again(run: Run, scores: Array) -> Array:
        more: Array = run.part.of(times[:, None, None, :-1]).astype(scores.dtype)
        return scores + more

    def change(pipe: Pipeline) -> Pipeline:
        made = pipe.with_step("again", again, before="hide" if "hide" in pipe.order else None)
        return made if pipe.sinks is None else made.but(sinks=pipe.sinks + times[0, -1])

    if (counts == counts[0]).all():
        return found("counted_keys", change, _words(counts[0]))
    pairs = ((f"in batch entry {b}", _words(own)) for b, own in enumerate(counts))
    return found("counted_keys", change, told(pairs, ":"))


def _counts(case: Case) -> Array | None:
    """Return how often each key counts, and last the sink, (B, S + 1); None if that is hidden."""
    if shown_by(case) is None or case.problem.shape[3] > _MOST_KEYS:
        return None
    rows, weights, sinks = Rows(case), case.right["weights"], case.pipe.sinks
    if not np.isfinite(rows.file).all():
        return None
    rest = np.zeros((*weights.shape[:3], 1))
    if sinks is not None:
        rest = np.exp(case.run.by_head(sinks) - case.right["lse"])
    shares = np.concatenate([weights, rest], axis=-1)
    value = np.pad(rows.value, ((0, 0), (0, 0), (0, 1), (0, 0)))  # that of the sink is 0
    batch, heads, _, keys = shares.shape
    case.question.work.spend(keys * keys * batch * heads)
    products = np.stack(
        [sum(map(_products, shares[b], value[b], rows.file[b])) for b in range(batch)]
    )
    error, equations = TYPICAL * rows.error, rows.file.size / keys
    if equations >= EQUATIONS and (own := whole_counts(products.sum(axis=0), error)) is not None:
        return np.broadcast_to(own, (batch, keys))
    if equations < EQUATIONS * batch:
        return None
    each = [own for one in products if (own := whole_counts(one, error)) is not None]
    return np.stack(each) if len(each) == batch else None


def _products(shares: Array, value: Array, file: Array) -> Array:
    """Return the sums over all equations of the products of what two counts are multiplied with."""
    lengths = np.square(file).sum(axis=-1, keepdims=True)
    mixed = shares.T @ (shares * (file @ value.T))
    return np.asarray(
        (shares.T @ shares) * (value @ value.T) - mixed - mixed.T + shares.T @ (lengths * shares)
    )


def whole_counts(products: Array, error: float, usual: Array | None = None) -> Ints | None:
    """Return the whole numbers (n,) that solve equations; the usual ones where these say nothing.

    ``products`` (n, n) are those of what two counts are multiplied with, summed over equations;
    most counts that are usually 1 are so.
    """
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
    """Say which keys, and whether the sink, do not count once."""
    keys, sink = counts[:-1], int(counts[-1])
    words = [
        f"keys {ranges(np.flatnonzero(keys == count))} count {count} times"
        for count in dict.fromkeys(keys[keys != 1].tolist())
    ]
    words += [f"the sink counts {sink} times"] if sink != 1 else []
    return " and ".join(words) or "each key counts once"


def ranges(numbers: Array) -> str:
    """List numbers, those in a row as one range; the first of many."""
    runs = groupby(enumerate(numbers.tolist()), key=lambda pair: pair[1] - pair[0])
    rows = [[number for _, number in run] for _, run in runs]
    return first_few([f"{r[0]} to {r[-1]}" if len(r) > 1 else str(r[0]) for r in rows])


# Weights that a file shows: its own, or the only ones that give its context.


class _Shown(NamedTuple):
    """Weights of a file (B, H, L, S); expected ones that are smaller than ``least`` say nothing."""

    weights: Array
    least: float

    def zero(self, expected: Array) -> Bools:
        """Return which weights are 0 up to rounding error, where that can be decided."""
        return np.asarray((expected > self.least) & (np.abs(self.weights) <= expected / 2))


def _shown(case: Case) -> _Shown | None:
    """Return the weights that the files of a case show.

    None where they hold none of each head, and the context has fewer columns than there are keys,
    or is the sum of linearly dependent values.
    """
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


def _all_shown(cases: Sequence[Case]) -> list[_Shown] | None:
    each = [shown for case in cases if (shown := _shown(case)) is not None]
    return each if len(each) == len(cases) else None


def another_mask(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake of the mask that the files show."""
    shown = _all_shown(cases)
    if shown is None:
        return None
    right = {case.part: _seen(case) for case in cases}
    masks = {case.part: _mask_of(case, own) for case, own in zip(cases, shown, strict=True)}
    other = [masks[part][(masks[part] != own).any(axis=-1)] for part, own in right.items()]
    # The weight of a key that is seen alone is 1, whatever its score: only others tell something.
    if sum(int(np.maximum(rows.sum(axis=-1) - 1, 0).sum()) for rows in other) < _LEAST_WEIGHTS:
        return None

    def rule(run: Run) -> Bools:
        return masks.get(run.part, np.ones((1, 1, 1, 1), np.bool_))

    def change(pipe: Pipeline) -> Pipeline:
        # An output projection knows padded queries by their rule.
        kept = {name: rule for name, rule in pipe.rules.items() if name == "query_lengths"}
        return pipe.but(rules={**kept, "mask": rule})

    hidden = sum(int(np.count_nonzero(own & ~masks[part])) for part, own in right.items())
    more = sum(int(np.count_nonzero(masks[part] & ~own)) for part, own in right.items())
    return found("another_mask", change, f"{hidden:,}", f"{more:,}")


def _seen(case: Case) -> Bools:
    return np.broadcast_to(case.run.seen, case.right["weights"].shape)


def _mask_of(case: Case, shown: _Shown) -> Bools:
    """Return which keys count in the weights of a file.

    A weight is exp(score − lse), so the largest of a row yields the lse, and with it the weights of
    the other keys if they are seen. Where those underflow, take the problem's mask.
    """
    scores = evaluate(case.pipe.but(rules={}), case.part, memory=case.memory)["scores"]
    largest = shown.weights.argmax(-1)[..., None]
    with np.errstate(all="ignore"):
        lse = np.take_along_axis(scores - np.log(shown.weights), largest, -1)
        expected = np.exp(scores - lse)
    blind: Bools = shown.weights.max(-1, keepdims=True) <= shown.least
    return ~blind & np.where(expected > shown.least, ~shown.zero(expected), _seen(case))


# Weights that are dropped: 0, or with a minus sign in FlashAttention's tests (return_attn_probs).


def dropout(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that weights were dropped out, and the others divided by 1 − p."""
    shown = _all_shown(cases) or []
    signs = _signs(cases, shown)
    if all((sign == 1).all() for sign in signs.values()):
        return None
    right = np.concatenate([(signs[c.part] * c.right["weights"]).ravel() for c in cases])
    known = np.concatenate([own.weights.ravel() for own in shown])[right != 0]
    share = _share(known, right[right != 0]) if right.any() else 0.0
    negative = sum(int(np.count_nonzero(sign < 0)) for sign in signs.values())
    if negative and abs(share) < _LEAST_SHARE:
        share = 0.0
    elif not _LEAST_SHARE <= share < 1:
        return None
    change = _multiplied({part: sign / (1 - share) for part, sign in signs.items()})
    name = "dropped_weights_negative" if negative else "dropout"
    # Which weights are negative may be chosen; that they are right otherwise may not.
    choice = negative * float(np.log2(right.size)) if negative else None
    return found(name, change, f"{share:.6g}", choice=choice)


def zeroed_weights(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that some weights are 0, and the others as they should be."""
    signs = _signs(cases, _all_shown(cases) or [])
    zeroed = any((sign == 0).any() for sign in signs.values())
    return found("zeroed_weights", _multiplied(signs)) if zeroed else None


def _signs(cases: Sequence[Case], shown: Sequence[_Shown]) -> dict[Part, Array]:
    """Return 0 for weights that are 0 but should not be, −1 for negative ones, 1 for others."""
    signs = {}
    for case, own in zip(cases, shown, strict=False):  # nothing where weights do not show
        expected = case.right["weights"]
        negative = (expected > own.least) & (own.weights < -expected / 2)
        signs[case.part] = np.where(negative, -1, ~own.zero(expected))
    return signs


def _multiplied(times: Mapping[Part, Array]) -> Change:
    return lambda pipe: pipe.then("after", lambda run, weights: weights * times.get(run.part, 1.0))


def _share(known: Array, right: Array) -> float:
    """Return the p with which right / (1 − p) comes nearest to other numbers (n,)."""
    best = 1 - float(np.dot(right, right) / np.dot(known, right))
    short = short_of((known,))
    # Large weights count most, and may have been rounded to the same side.
    rounding = 0.0 if short is None else short.eps / 2 * root_mean_square(known)

    def far(shares: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.array([root_mean_square(known - right / (1 - shares[0]))])

    return float(few_digits(np.array([best]), far, rounding)[0])


FITTINGS = (
    at_first(counted_keys, "counted_keys"),
    Fitting(dropout, of_part=True),
)
# Made of everything that the weights of the files show: they explain much, but say little. The
# mask of one head may be something else in the others.
SHOWN = (
    Fitting(another_mask, needs_of("another_mask"), of_part=True),
    Fitting(zeroed_weights, of_part=True),
)
