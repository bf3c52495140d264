"""What is added to the denominators of the softmax or to every context, or multiplies all numbers.

What weighs in a row and has the value 0, such as a sink, an epsilon or a key of zeros, makes each
number Z / (Z + r) of what is right, Z = exp(lse) being the right denominator. So every row of a
file tells its r.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.fits.numbers import few_digits
from attncli.referee.fits.rows import shown_by
from attncli.referee.fits.table import Fitting, at_first, found, needs_of, told
from attncli.referee.mistakes.softmax import with_epsilon
from attncli.referee.options import shortest
from attncli.referee.tolerance import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.formats import Array
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.run import Outputs, Run

__all__ = ["FITTINGS"]

# Rows that tell what was added to each; parts of the keys that may each add a sink.
_FEW_ROWS, _LEAST_ROWS, _MOST_PARTS = 4, 2, 256
# A number of few digits is as likely as the median where it lies within so much of its scatter.
_AS_LIKELY, _LEAST = 16.0, 1e-16
# What differs so little from the stated sink is that sink.
_NEAR_A_SINK = 1e-4
# Contexts have to differ by so many times as much as what a vector leaves. What is added to all
# numbers is one number where it differs by such a share of itself.
_LEAST_SPREAD, _LESS, _ALIKE = 30.0, 0.5, 0.01


def _added(case: Case) -> Array | None:
    """Return what was added to the denominator of each row, (B, H, L); None where it is hidden."""
    name = shown_by(case)
    if name is None:
        return None
    file, right = case.canonical(name), case.right[name]
    with np.errstate(all="ignore"):
        shares = (file * right).sum(-1) / np.square(right).sum(-1)
        return np.asarray((1 / shares - 1) * np.exp(case.right["lse"][..., 0]))


def _typical(numbers: Array) -> float:
    """Return the median of numbers, with as few digits as their scatter tells, or 0."""
    middle = float(np.median(numbers))
    scatter = float(np.median(np.abs(numbers - middle))) / math.sqrt(len(numbers))
    tried = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    near = _AS_LIKELY * max(scatter, _LEAST)
    return next((one for one in (0.0, *tried) if abs(one - middle) <= near), middle)


def zeros_counted(case: Case) -> Mistake | None:
    """Return the mistake that keys of zeros beyond the last one got weight: n add n to each sum."""
    added = _added(case)
    known = np.zeros(0) if added is None else added[np.isfinite(added)]
    count = round(float(np.median(known))) if known.size else 0
    if count < 1:
        return None

    def change(pipe: Pipeline) -> Pipeline:
        own = np.full(pipe.shape[1], -np.inf) if pipe.sinks is None else pipe.sinks
        return pipe.but(sinks=np.logaddexp(own, math.log(count)))

    return found("zeros_counted", change, str(count))


def epsilon_added(case: Case) -> Mistake | None:
    """Return the mistake that a number is added to the sum of exp(score − maximum)."""
    added = _added(case) if case.pipe.sinks is None else None
    if added is None:
        return None
    with np.errstate(all="ignore"):
        shifted = added * np.exp(-case.right["scores"].max(axis=-1))
    known = shifted[np.isfinite(shifted)]
    if len(known) < _FEW_ROWS or (epsilon := _typical(known)) <= 0:
        return None
    return found(
        "epsilon_added",
        lambda pipe: with_epsilon(pipe, epsilon),
        f"{epsilon:.6g}",
    )


def sinks_counted(case: Case) -> Mistake | None:
    """Return the mistake that the sink of every head counts the same number of times.

    Where it counts n times, (n − 1) exp(sink) is added to every denominator. Rows count by the
    share of their sink, which tells how sure their number is.
    """
    sinks, added = case.pipe.sinks, _added(case)
    if sinks is None or added is None:
        return None
    with np.errstate(all="ignore"):
        total = np.exp(case.right["lse"][..., 0])
        more, share = added / total, np.exp(case.run.by_head(sinks)[..., 0]) / total
    known = np.isfinite(more) & np.isfinite(share)
    if np.count_nonzero(known) < _LEAST_ROWS or not share[known].any():
        return None
    count = 1 + round(float((more[known] @ share[known]) / np.square(share[known]).sum()))
    if not 2 <= count <= _MOST_PARTS:
        return None
    return found(
        "sinks_counted",
        lambda pipe: pipe.but(sinks=sinks + math.log(count)),
        str(count),
        choice=math.log2(_MOST_PARTS),
    )


def another_sink(case: Case) -> Mistake | None:
    """Return the mistake that heads have other sinks: s' for s adds exp(s') − exp(s)."""
    stated = case.pipe.sinks
    right = np.full(case.pipe.shape[1], -np.inf) if stated is None else stated
    sinks = _sinks(case, right)
    if sinks is None or (sinks == right).all():
        return None
    pairs = [(f"head {h}", f"{sinks[h]:.4g}") for h in np.flatnonzero(sinks != right)]
    statable = stated is None and np.isfinite(sinks).all()
    option = f"--sinks={','.join(map(shortest, sinks))}" if statable else ""
    return found(
        "another_sink",
        lambda pipe: pipe.but(sinks=sinks),
        told(pairs, "takes"),
        option=lambda _: option,
        free=len(sinks),
    )


def _sinks(case: Case, right: Array) -> Array | None:
    """Return the sink of each head that the file shows; None where it shows none."""
    added = _added(case)
    if added is None:
        return None
    sinks = right.astype(np.float64)
    for head, own in enumerate(right):
        amounts = added[:, head][np.isfinite(added[:, head])]
        if len(amounts) < _LEAST_ROWS:  # a sink of its own explains any one row
            return None
        with np.errstate(all="ignore"):
            known = np.log(amounts + np.exp(own))
        known = known[np.isfinite(known)]
        if _typical(amounts) != 0 and known.size and abs(_typical(known) - own) > _NEAR_A_SINK:
            sinks[head] = _typical(known)
    return sinks


# A factor that all numbers of an output share, and a vector that is added to every context.


def another_factor(case: Case) -> Mistake | None:
    """Return the mistake of the factor with which right outputs come nearest to the files."""
    if set(case.files) - {"context", "weights"} or not case.comparable:
        return None
    pairs = [
        finite_in_both(file, case.shaped(case.pipe, case.right, name))
        for name, file in case.files.items()
    ]
    known, right = (np.concatenate(each) for each in zip(*pairs, strict=True))
    if not (known.any() and right.any()):
        return None
    factor = _factor_of(known, right)

    def times(_: Run, outputs: Outputs) -> Outputs:
        return outputs | {n: outputs[n] * factor for n in ("context", "weights") if n in outputs}

    # Of what was projected, its bias included.
    return found(
        "another_factor",
        lambda pipe: pipe.then("behind", times),
        shortest(factor),
    )


def _factor_of(known: Array, right: Array, roundings: float = 0.0) -> float:
    """Return the factor of few digits with which right numbers (n,) come nearest to others."""
    best = np.array([float(np.dot(known, right) / np.dot(right, right))])
    return float(
        few_digits(best, lambda f: np.array([root_mean_square(known - f[0] * right)]), roundings)[0]
    )


def added_vector(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that a vector is added to every context of a head.

    As weights sum to 1, b added to every value is b added to every context.
    """
    if not all("context" in case.files and case.comparable for case in cases):
        return None
    apart = np.concatenate([_away(case) for case in cases], axis=2)
    rows = np.count_nonzero(np.isfinite(apart[:, 0, :, 0]), axis=1)
    if rows.sum() < _LEAST_ROWS:
        return None
    right = np.concatenate([case.right["context"] for case in cases], axis=2)
    axes: tuple[int, ...] = (0, 2)
    vector = np.nanmean(apart, axis=axes, keepdims=True)
    # Entries have a vector each, such as a value of their own, where that leaves far less.
    if cases[0].pipe.projected is None and rows.min() >= _LEAST_ROWS:
        own = np.nanmean(apart, axis=2, keepdims=True)
        if _size(apart - own) < _LESS * _size(apart - vector):
            axes, vector = (2,), own
    spread = root_mean_square(right - right.mean(axis=axes, keepdims=True))
    if spread < _LEAST_SPREAD * _size(apart - vector):
        return None

    def add(run: Run, outputs: Outputs) -> Outputs:
        context = outputs["context"]
        seeing = context.any(axis=-1, keepdims=True)
        return {**outputs, "context": np.where(seeing, context + run.part.of(vector), context)}

    return found(
        "added_vector",
        lambda pipe: pipe.then("behind", add),
        _vector_told(vector),
    )


def _away(case: Case) -> Array:
    """Return how far a context is off, (B, H, L, E); NaN where a query sees no key."""
    file, right = case.canonical("context"), case.right["context"]
    seeing = right.any(axis=(1, 3), keepdims=True)
    known = np.isfinite(file).all(axis=(1, 3), keepdims=True)
    return np.where(np.logical_and(seeing, known), file - right, np.nan)


def _size(apart: Array) -> float:
    return root_mean_square(apart[np.isfinite(apart)])


def _vector_told(vector: Array) -> str:
    """Say what is added: one number where all are alike, or the first ones of a vector."""
    if vector.std() <= _ALIKE * abs(vector.mean()):
        return f"about {vector.mean():.3g}"
    each = " of each head" * (vector.shape[1] > 1) + " of each batch entry" * (len(vector) > 1)
    return f"a vector{each} that begins with {vector[0, 0, 0, 0]:.3g}"


FITTINGS = (
    at_first(another_factor, "another_factor"),
    Fitting(added_vector, needs_of("added_vector")),
    at_first(zeros_counted, "zeros_counted"),
    at_first(epsilon_added, "epsilon_added"),
    at_first(sinks_counted, "sinks_counted"),
    at_first(another_sink, "another_sink"),
)
