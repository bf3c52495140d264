"""Few queries over many keys, as in decoding, by the formula as it stands in the paper.

Without a rule beyond the product, blocks and tiles would only slow them down. Several heads are
computed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.formula import exponentiate, grouped_heads, scaled_product, weighted_sum
from attncli.engine.refusals import refuse_scores
from attncli.engine.size import is_serial
from attncli.errors.names import SCORE_STAGES
from attncli.numerics.dtypes import widen
from attncli.numerics.finite import all_finite, within_range

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = ["attend_few", "few_parts", "is_few"]

Array = npt.NDArray[Any]

# Most scores held at once: half a megabyte in float32.
_CELLS = 2**17
_FEW_ROWS = 16

Part = tuple[slice, slice]


def is_few(problem: Problem) -> bool:
    """Return whether a problem is nothing but softmax(scale · QKᵀ) V of few queries."""
    batch, heads, queries, keys = problem.shape
    rows = heads // problem.key.shape[1] * queries
    return (
        rows <= _FEW_ROWS
        and rows * keys <= _CELLS
        and problem.score == "dot"
        and problem.softcap is None
        and problem.bias is None
        and problem.alibi_slopes is None
        and problem.sinks is None
        and problem.rope is None
        and problem.visible.is_clear(batch)
    )


def few_parts(problem: Problem, threads: int) -> list[Part]:
    """Return the parts of a problem: each some batch entries and groups of heads.

    There are hardly more parts than keep the threads busy: each NumPy call starts with cold
    caches, because keys and values have just passed through them. Heads do not affect each
    other, so the bits do not depend on how many are computed at once.
    """
    batch, heads, queries, keys = problem.shape
    groups = problem.key.shape[1]
    cells = heads // groups * queries * keys
    step = max(1, min(groups, -(-batch * groups // threads), _CELLS // cells))
    starts = range(0, groups, step)
    equal = [
        (slice(b, b + 1), slice(g, min(g + step, groups))) for b in range(batch) for g in starts
    ]
    return _staggered(equal, threads)


def _staggered(parts: list[Part], threads: int) -> list[Part]:
    """Cut the first parts, each in another place, and put what is cut off at the end.

    Threads with equal parts would all be between their products at the same time, and there wait
    for each other.
    """
    rests: list[Part] = []
    for number, (batch, groups) in enumerate(parts[: threads - 1]):
        size = groups.stop - groups.start
        own = max(1, size * (number + 1) // (2 * threads))
        if own < size:
            cut = groups.start + own
            parts[number] = batch, slice(groups.start, cut)
            rests.append((batch, slice(cut, groups.stop)))
    return parts + rests


def attend_few(problem: Problem, results: dict[str, Array], part: Part) -> None:
    """Fill a part of the results of a problem that `is_few`.

    Parameters
    ----------
    problem : Problem
    results : dict of str to ndarray (B, H, L, ...)
    part : (slice, slice)
        Batch entries and groups of heads.

    Raises
    ------
    DataError
        A score exceeds the range of the computing dtype.
    NotFiniteError
        A score or a context is not finite, and query, key and value are still unread.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    groups = problem.key.shape[1]
    own = {name: grouped_heads(array, groups)[part] for name, array in results.items()}
    scores, finite = _raw_scores(problem, part)
    if not finite:
        refuse_scores(problem)
    for name in SCORE_STAGES:
        if name in own:
            own[name][...] = scores
    highest, total = exponentiate(scores)
    if "lse" in own:
        own["lse"][...] = (np.log(total) + highest)[..., 0]
    weights = np.divide(scores, total, out=scores)
    if "weights" in own:
        own["weights"][...] = weights
    if "context" in own and problem.value is not None:
        value = widen(_cut(problem.value, part), problem.dtype)
        context = weighted_sum(weights, value)
        if not all_finite(context):
            if problem.unread is not None:
                refuse_scores(problem)
            context = within_range(context)
        own["context"][...] = context


def _raw_scores(problem: Problem, part: Part) -> tuple[Array, bool]:
    query = widen(grouped_heads(problem.query, problem.key.shape[1])[part], problem.dtype)
    key = widen(_cut(problem.key, part), problem.dtype)
    return scaled_product(query, key, problem.scale, one_blas_thread=not is_serial(problem))


def _cut(array: Array, part: Part) -> Array:
    """Return a part of keys or values (B or 1, G, S, ·)."""
    cut: Array = array[part] if array.shape[0] > 1 else array[:, part[1]]
    return cut
