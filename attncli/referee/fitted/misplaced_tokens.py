"""Keys and values of other tokens, read off a causal context from its first row to its last.

Row i sees one place more than the row before it. Once it is known which tokens stand at the places
before, each token that may stand at place i gives one context, and the file tells which it is.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of
from attncli.referee.convention import Convention
from attncli.referee.fitted.found_weights import is_plain
from attncli.referee.fitted.places import told
from attncli.referee.fitted.rank_orders import order_told
from attncli.referee.fitted.spans import LOST, SLACK, TYPICAL
from attncli.referee.recipe import vary
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["misplaced_tokens"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.intp]
# Which of keys and values stand elsewhere.
_SIDES = (("key", "value"), ("key",), ("value",))
# Products of all rows with all tokens of all heads and columns.
_MOST_PRODUCTS = 5e8


def misplaced_tokens(case: Case) -> Convention | None:
    """Return the convention that keys and values of other tokens stand at some places."""
    if not _is_tried(case):
        return None
    for sides in _SIDES:
        found = _tokens(case, sides)
        if found is not None:
            return _convention(found, sides)
    return None


def _is_tried(case: Case) -> bool:
    """Return whether each query sees the places up to its own, and nothing else counts there."""
    problem = case.recipe.problem
    _, _, queries, keys = problem.shape
    return bool(
        is_plain(case)
        and set(case.recipe.rules) == {"causal"}
        and not any(problem.visible.offsets)
        and 2 < queries <= keys
        and math.prod(problem.shape) * case.right["context"].shape[3] <= _MOST_PRODUCTS
        and np.isfinite(case.canonical("context")).all()
    )


def _tokens(case: Case, sides: tuple[str, ...]) -> tuple[Ints, ...] | None:
    """Return which token stands at each place, (S,) for each batch entry; None where none fit."""
    problem = case.recipe.problem
    factors = factors_of(problem)
    batch, _, _, keys = problem.shape
    query = factors["query"] * problem.scale
    key, value = (
        np.broadcast_to(wide, (batch, *wide.shape[1:]))
        for wide in (shared(problem, factors["key"]), shared(problem, factors["value"]))
    )
    file = case.canonical("context")
    error = case.recipe.resolution + LOST * float(np.abs(file).max())
    found = []
    for b in range(batch):
        scores = query[b] @ key[b].swapaxes(-1, -2)
        with np.errstate(under="ignore"):
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        tokens = _decoded(shares, value[b], file[b], error, sides, case.deadline)
        if tokens is None:
            return None
        found.append(tokens)
    own = np.arange(keys)
    return None if all((tokens == own).all() for tokens in found) else tuple(found)


def _decoded(
    shares: Array,
    value: Array,
    file: Array,
    error: float,
    sides: tuple[str, ...],
    deadline: float,
) -> Ints | None:
    """Return the token at each place, of one batch entry; what no query sees has its own.

    Parameters
    ----------
    shares : ndarray (H, L, S)
        exp(score) of each query and token, up to a factor for each query.
    value : ndarray (H, S, E)
    file : ndarray (H, L, E)
    error : float
        How far a row may lie from what it is.
    sides : tuple of str
        What stands elsewhere: keys, values or both.
    deadline : float
    """
    own = np.arange(value.shape[1])
    tokens = own.copy()
    keys = tokens if "key" in sides else own
    values = tokens if "value" in sides else own
    for i in range(file.shape[1]):
        if time.monotonic() > deadline:
            return None
        before = shares[:, i, keys[:i]]
        sums, total = np.matmul(before[:, None], value[:, values[:i]]), before.sum(axis=1)
        new = shares[:, i] if "key" in sides else shares[:, i, [i]]
        what = value if "value" in sides else value[:, [i]]
        with np.errstate(invalid="ignore", divide="ignore"):
            made = (sums + new[..., None] * what) / (total[:, None] + new)[..., None]
        apart = np.abs(made - file[:, i, None]).max(axis=(0, 2))
        best = int(np.nanargmin(apart)) if np.isfinite(apart).any() else i
        # A token with next to no weight is as good as any other: it is taken for its own.
        tokens[i] = i if apart[i] <= max(2 * apart[best], TYPICAL * error) else best
        if not apart[tokens[i]] <= SLACK * error:
            return None
    return tokens


def _convention(found: tuple[Ints, ...], sides: tuple[str, ...]) -> Convention:
    what = " and ".join(f"{side}s" for side in sides)
    alike = all((tokens == found[0]).all() for tokens in found)
    entries = found[:1] if alike else found
    pairs = [
        (
            _range("token", token, token + stop - start),
            _range("place", start, stop) + ("" if alike else f" of batch entry {b}"),
        )
        for b, tokens in enumerate(entries)
        for start, stop, token in _runs(tokens)
    ]
    order = order_told(found[0]) if alike else None
    return Convention(
        "tokens_misplaced",
        f"{what} stand {order}"
        if order
        else f"{what} of other tokens stand at some places: {told(pairs, 'at')}",
        lambda recipe: _read(recipe, found, sides),
        topic=topics.SLOTS,
        fix="read the keys and values of each place from where those of its token were written",
        shows="more than one key",
        needs=frozenset({"batch", "heads", "rows"}),
    )


def _runs(tokens: Ints) -> list[tuple[int, int, int]]:
    """Return where others than the own tokens stand in a row: first place, end, first token."""
    moved = tokens - np.arange(len(tokens))
    ends = [0, *(np.flatnonzero(np.diff(moved)) + 1).tolist(), len(tokens)]
    return [(a, b, int(tokens[a])) for a, b in itertools.pairwise(ends) if moved[a] != 0]


def _range(noun: str, start: int, stop: int) -> str:
    return f"{noun} {start}" if stop - start == 1 else f"{noun}s {start} to {stop - 1}"


def _read(recipe: Recipe, found: tuple[Ints, ...], sides: tuple[str, ...]) -> Recipe:
    """Return the recipe in which each place has the keys and values of another token."""
    factors: Mapping[str, Array] = factors_of(recipe.problem)
    read = {
        side: np.stack([factors[side][b % len(factors[side])][:, t] for b, t in enumerate(found)])
        for side in sides
    }
    return vary(recipe, **{**factors, **read}, rope=None)
