"""Mistakes of kernels: blocks of keys, causal masks by block, online softmax, split keys."""

from __future__ import annotations

import math
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.mistakes.softmax import exponentials
from attncli.referee.mistakes.table import SIZES, Rows, require, ruled, softmaxed
from attncli.referee.run import Run, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.formats import Array
    from attncli.referee.pipeline import Pipeline

    # From the lse and row max of each part, (..., parts), to the factor of its weights.
    Share = Callable[[Array, Array], Array]

ROWS = Rows()

# How many keys an online softmax may read at once.
ONLINE_SIZES = (1, 4, *SIZES)
_PARTS = (2, 3, 4, 8)


# Blocks of keys that are lost, or filled up with zeros.


def _lost(pipe: Pipeline, size: int, *, end: str) -> Pipeline:
    """Leave out the block at one end; the last block may be shorter."""
    last = (pipe.shape[3] - 1) // size * size
    require(last)
    return pipe.with_rule("block", lambda run: run.j < last if end == "last" else run.j >= size)


def _filled_up(pipe: Pipeline, block: int) -> Pipeline:
    """Count the zeros that fill the last block: each has the score 0, like a sink of 0."""
    extra = -pipe.shape[3] % block
    require(extra)
    known = np.full(pipe.shape[1], -np.inf) if pipe.sinks is None else pipe.sinks
    return pipe.but(sinks=np.logaddexp(known, math.log(extra)))


ROWS.family("last_block_of_{}_lost", partial(_lost, end="last"), SIZES)
ROWS.family("first_block_of_{}_lost", partial(_lost, end="first"), SIZES)
ROWS.family("zeros_to_{}_counted", _filled_up, SIZES)
ROWS.add("last_key_lost", partial(_lost, end="last"), 1)
ROWS.add("first_key_lost", partial(_lost, end="first"), 1)


# A causal mask that is applied block by block.

# From the positions of queries and keys and the size of blocks to the visible keys.
_SEEN: dict[str, Callable[[Any, Any, int], Any]] = {
    "causal_by_blocks_of_{}": lambda i, j, size: j < i // size * size + size,
    "causal_within_blocks_of_{}": lambda i, j, size: j % size <= i % size,
    "causal_in_first_block_of_{}": lambda i, j, size: (j <= i) | (j >= size),
    "last_block_of_{}_not_causal": lambda i, j, n: (j <= i) | (j >= (j.size - 1) // n * n),
    "diagonal_block_of_{}_lost": lambda i, j, size: j < i // size * size,
}


def _queries(run: Run) -> Array:
    return run.i + run.by_entry(run.pipe.offsets)


def _causal_as(pipe: Pipeline, size: int, *, name: str) -> Pipeline:
    require(pipe.shape[3] > size)
    # With a single query, the lost block is the last one, which has its own name.
    require(pipe.shape[2] > 1 or not name.endswith("lost"))
    return ruled(pipe, "causal", lambda run, _: _SEEN[name](_queries(run), run.j, size))


def _zeros_to_the_end(pipe: Pipeline, size: int) -> Pipeline:
    """Give the hidden keys in the block on the diagonal the score 0."""
    wider, own = _causal_as(pipe, size, name="causal_by_blocks_of_{}"), pipe.rules["causal"]
    return wider.with_step("zeros", lambda run, scores: scores * run.called(own), before="hide")


def _diagonal_twice(pipe: Pipeline, size: int) -> Pipeline:
    require("causal" in pipe.rules, pipe.shape[3] > size)

    def again(run: Run, scores: Array) -> Array:
        same = _queries(run) // size == run.j // size
        return np.asarray(scores + (math.log(2) * same).astype(scores.dtype))

    return pipe.with_step("again", again, before="hide")


for _name in _SEEN:
    ROWS.family(_name, partial(_causal_as, name=_name), SIZES)
ROWS.family("zeros_in_causal_blocks_of_{}", _zeros_to_the_end, SIZES)
ROWS.family("diagonal_block_of_{}_twice", _diagonal_twice, SIZES)


# An online softmax, which goes over the keys block by block.


class _Running:
    """The state of an online softmax: scores; maxima of each block, so far, and of all keys."""

    def __init__(self, run: Run, scores: Array, block: int) -> None:
        keys = scores.shape[-1]
        self.scores, self.block, self.starts = scores, block, np.arange(0, keys, block)
        own = np.maximum.reduceat(scores, self.starts, axis=-1)
        tops = np.maximum.accumulate(own, axis=-1)
        self.own, self.then = (np.repeat(e, block, axis=-1)[..., :keys] for e in (own, tops))
        self.last, self.sink = tops[..., -1:], np.zeros(1)
        if run.pipe.sinks is not None:
            self.sink = exponentials(run.by_head(run.pipe.sinks), self.last)
        self.fresh = exponentials(scores, self.last)

    @property
    def stale(self) -> Array:
        """Exponentials relative to the row max so far, never rescaled later."""
        return exponentials(self.scores, self.then)

    @property
    def alone(self) -> Array:
        """Exponentials relative to the maximum of the block."""
        return exponentials(self.scores, self.own)

    def factors(self, times: float = 1) -> Array:
        """Return the factors that rescale stale exponentials to the final row max."""
        return exponentials(times * self.then, times * self.last)


def _late(known: _Running, *, first_lost: bool) -> Array:
    """Rescale each block by the row max before it; the first block has none, and may be lost."""
    first = known.then[..., : known.block]
    first = np.full_like(first, -np.inf) if first_lost else first
    before = np.concatenate([first, known.then[..., : -known.block]], axis=-1)
    return known.stale * exponentials(before, known.last)


def _divided_each_time(known: _Running) -> Array:
    sums = np.add.reduceat(known.fresh, known.starts, axis=-1).cumsum(-1) + known.sink
    # The sums are relative to the row max so far, not to the final one.
    sums = sums * exponentials(known.last, known.then[..., known.starts])
    later = np.cumprod(np.where(sums == 0, 1, sums)[..., ::-1], axis=-1)[..., ::-1]
    each = np.repeat(later, known.block, axis=-1)[..., : known.fresh.shape[-1]]
    # Times the right row sum: the weights are divided by it later.
    return np.asarray(known.fresh / each * (known.fresh.sum(-1, keepdims=True) + known.sink))


def _last(known: _Running) -> Array:
    keys = np.arange(known.fresh.shape[-1])
    return np.where(keys >= known.starts[-1], known.fresh, 0)


def _online(
    pipe: Pipeline, block: int, *, share: Callable[[_Running], Array], sums: str, least: int = 1
) -> Pipeline:
    """Use wrong exponentials for the sum of values, for the row sum, or for both."""
    keys = pipe.shape[3]
    require(least <= block < keys)
    if share is _last and sums == "values":
        # If several sizes have the same last block, the largest size is the most likely.
        larger = [size for size in ONLINE_SIZES if block < size < keys]
        require(all((keys - 1) // n * n != (keys - 1) // block * block for n in larger))

    def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
        known = _Running(run, scores, block)
        powers = share(known)
        above, below = (known.fresh if sums == other else powers for other in ("total", "values"))
        total = below.sum(-1, keepdims=True) + known.sink
        return above / np.where(total == 0, 1, total), (np.log(total) + known.last)[..., 0]

    return pipe.but(softmax=softmax)


# By name: the exponentials, the sums that they enter, and the least size of blocks.
_ONLINE: dict[str, tuple[Callable[[_Running], Array], str, int]] = {
    "own_maxima": (lambda known: known.alone * known.factors(), "both", 1),
    "context_beside_own_maxima": (lambda known: known.alone * known.factors(), "values", 2),
    "own_maxima_not_rescaled": (lambda known: known.alone, "both", 2),
    "rescaled_inversely": (
        lambda known: known.stale * exponentials(known.last, known.then),
        *("both", 1),
    ),
    # With blocks of one key and rising scores, it is the same as twice the scale.
    "rescaled_twice": (lambda known: known.stale * known.factors() ** 2, "both", 2),
    "rescaled_in_base_2": (lambda known: known.stale * known.factors(math.log(2)), "both", 1),
    "divided_each_time": (_divided_each_time, "values", 1),
    "last_denominator": (_last, "total", 1),
    "last_context": (_last, "values", 1),
}
for _name, _sums in {"sums": "both", "context": "values", "denominator": "total"}.items():
    _ONLINE[f"{_name}_stale"] = (lambda known: known.stale), _sums, 1
    _ONLINE[f"{_name}_rescaled_late"] = partial(_late, first_lost=True), _sums, 1
    _ONLINE[f"{_name}_rescaled_late_from_second"] = partial(_late, first_lost=False), _sums, 1
_AT_ONCE = {(n, "key" if n == 1 else f"block of {n} keys"): n for n in ONLINE_SIZES}
for _name, (_share, _sums, _least) in _ONLINE.items():
    _change = partial(_online, share=_share, sums=_sums, least=_least)
    ROWS.family(f"online_{_name}_{{0}}", _change, _AT_ONCE)


# Keys that are cut into parts whose results are merged.


def _cuts(kind: str, count: int, keys: int) -> list[int]:
    """Return the first key of each part but the first; ``count``: of parts, or keys in a block."""
    length = -(-keys // count) if kind == "parts" else count
    return [] if kind == "parts" and keys < count else list(range(length, keys, length))


_INTO = {(f"{n}", f"{n} parts"): ("parts", n) for n in _PARTS}
_WAYS = _INTO | {(f"blocks_of_{n}", f"blocks of {n}"): ("blocks", n) for n in SIZES}


def _merged(pipe: Pipeline, kind: str, count: int, *, name: str) -> Pipeline:
    keys, share = pipe.shape[3], _MERGES[name]
    places = _cuts(kind, count, keys)
    # With two parts, losing one is the same as keeping the other. With sinks, one part would have
    # to count them. Nobody cuts into single keys.
    least = 2 if name.endswith("lost") else 1
    require(least <= len(places) < keys - 1, pipe.sinks is None)
    ways = list(_WAYS.values())
    require(all(places != _cuts(*way, keys) for way in ways[: ways.index((kind, count))]))
    # A lost key, or a lost block of a usual size, has a name of its own.
    last_blocks = {(keys - 1) % size + 1 for size in SIZES}
    require(not _gone(name, keys, places) & {1, *SIZES, *last_blocks})

    def change(run: Run, scores: Array, _: Array, lse: Array) -> tuple[Array, Array]:
        pieces = np.array_split(scores, places, axis=-1)
        made = [softmax_over(run, piece) for piece in pieces]
        tops = np.stack([piece.max(-1) for piece in pieces], axis=-1)
        shares = share(np.stack([lse for _, lse in made], axis=-1), tops)
        weights = [w * shares[..., n, None] for n, (w, _) in enumerate(made)]
        return np.concatenate(weights, axis=-1), lse

    return softmaxed(pipe, change)


def _gone(name: str, keys: int, places: list[int]) -> set[int]:
    """Return how many keys are left out, at either end."""
    if name.endswith("kept"):
        return {keys - places[0], places[-1]}
    return {"first_lost": {places[0]}, "last_lost": {keys - places[-1]}}.get(name, set())


def _normalised(sizes: Array) -> Array:
    total = sizes.sum(-1, keepdims=True)
    return np.asarray(sizes / np.where(total == 0, 1, total))


def _undivided(lse: Array, power: Callable[[Array], Array] = np.exp) -> Array:
    """Return exp(lse − largest lse)."""
    top = lse.max(-1, keepdims=True)
    return np.asarray(power(lse - np.where(np.isneginf(top), 0, top)))


def _powers(lse: Array, power: Callable[[Array], Array] = np.exp) -> Array:
    return _normalised(_undivided(lse, power))


def _only(lse: Array, index: int) -> Array:
    return np.broadcast_to(np.eye(lse.shape[-1])[index], lse.shape)


def _all_but(lse: Array, index: int) -> Array:
    others = lse.copy()
    others[..., index] = -np.inf
    return _powers(others)


_MERGES: dict[str, Share] = {
    "averaged": lambda lse, _: np.full_like(lse, 1 / lse.shape[-1]),
    "added": lambda lse, _: np.ones_like(lse),
    "merged_by_maxima": lambda _, tops: _powers(tops),
    "merged_by_lse": lambda lse, _: _normalised(np.where(np.isneginf(lse), 0, lse)),
    "merged_undivided": lambda lse, _: _undivided(lse),
    "merged_in_base_2": lambda lse, _: _powers(lse, np.exp2),
    "merged_by_lse_of_base_2": lambda lse, _: _powers(lse / math.log(2)),
    "weights_swapped": lambda lse, _: _powers(lse)[..., ::-1],
    "first_kept": lambda lse, _: _only(lse, 0),
    "last_kept": lambda lse, _: _only(lse, -1),
    "first_lost": lambda lse, _: _all_but(lse, 0),
    "last_lost": lambda lse, _: _all_but(lse, -1),
}
for _name in _MERGES:
    ROWS.family(
        f"splits_of_{{0}}_{_name}",
        partial(_merged, name=_name),
        _INTO if _name.endswith("lost") else _WAYS,
    )


def _own_positions(pipe: Pipeline, kind: str, count: int) -> Pipeline:
    """Count the positions of causal rule, window, ALiBi and rope from the start of each part."""
    keys = pipe.shape[3]
    edges = [0, *_cuts(kind, count, keys), keys]
    moved = {"causal", "window"} & pipe.rules.keys() | {"alibi"} & pipe.terms.keys()
    require(len(edges) > 2, moved or pipe.rope)
    starts = np.repeat(edges[:-1], np.diff(edges))

    def own(of_indices: Callable[[Run], Array]) -> Callable[[Run], Array]:
        def called(run: Run) -> Array:
            other = copy(run)
            other.j = run.j - starts
            return of_indices(other)

        return called

    return pipe.but(
        rules={name: own(rule) if name in moved else rule for name, rule in pipe.rules.items()},
        terms={name: own(term) if name in moved else term for name, term in pipe.terms.items()},
        key_positions=pipe.key_positions - starts,
    )


ROWS.family("splits_of_{0}_own_positions", _own_positions, _INTO)
