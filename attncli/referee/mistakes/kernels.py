"""Mistakes of kernels: blocks of keys, online softmax, causal masks block by block, split keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.softmax import exponentials
from attncli.referee.mistakes.table import SIZES, Change, Rows
from attncli.referee.options import stated, with_first_keys
from attncli.referee.pipeline import Pipeline, Run, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.formats import Array, Bools

__all__ = ["BLOCKS", "CAUSAL_BLOCKS", "ONLINE", "SPLITS", "with_zeros"]

# Keys that are taken at once: one, or a block.
ONLINE_SIZES = (1, 4, *SIZES)
# Blocks of one kind and of the other, as kernels have them.
_TWO_SIZES = ((256, 128), (256, 64), (128, 64), (128, 32), (64, 32), (64, 16), (32, 16))
_PARTS = (2, 3, 4, 8)


# Blocks of keys that are lost, or filled up.

BLOCKS = Rows(stages.BLOCKS)


def _last(block: int) -> Callable[[int], slice]:
    return lambda keys: slice((keys - 1) // block * block, keys)


def _without(lost: Callable[[int], slice], least: int) -> Change:
    """Leave out some of more keys than so many."""

    def change(pipe: Pipeline) -> Pipeline | None:
        keys = pipe.shape[3]
        gone = lost(keys)
        if keys <= least:
            return None
        return pipe.with_rule("block", lambda run: (run.j < gone.start) | (run.j >= gone.stop))

    return change


def with_zeros(pipe: Pipeline, count: int) -> Pipeline:
    """Return the pipeline with so many keys of zeros, which every query sees: sinks, in effect."""
    known = np.full(pipe.shape[1], -np.inf) if pipe.sinks is None else pipe.sinks
    return pipe.but(sinks=np.logaddexp(known, math.log(count)))


def _filled_up(block: int) -> Change:
    """Count the keys of zeros that fill the last block: each has the score 0."""

    def change(pipe: Pipeline) -> Pipeline | None:
        extra = -pipe.shape[3] % block
        return with_zeros(pipe, extra) if extra else None

    return change


BLOCKS.add(
    "last_block_of_{}_lost",
    lambda size: _without(_last(size), size),
    values=SIZES,
    option=lambda size: with_first_keys(lambda keys: (keys - 1) // size * size),
)
BLOCKS.add(
    "first_block_of_{}_lost", lambda size: _without(lambda _: slice(0, size), size), values=SIZES
)
BLOCKS.add("zeros_to_{}_counted", _filled_up, values=SIZES, variant_of=("mask_as_zeros",))
BLOCKS.add(
    "last_key_lost",
    _without(lambda keys: slice(keys - 1, keys), 1),
    option=with_first_keys(lambda keys: keys - 1),
)
BLOCKS.add("first_key_lost", _without(lambda _: slice(0, 1), 1))


# A causal mask that is applied block by block.

CAUSAL_BLOCKS = Rows(stages.CAUSAL_BLOCKS)


def _causal_as(
    seen: Callable[[Array, Array], Bools], least: int, *, one_query: bool = True
) -> Change:
    """Return the change to another causal rule, of more keys than so many.

    Where ``one_query`` is false, for a single query it is rather the last block that is lost.
    """

    def change(pipe: Pipeline) -> Pipeline | None:
        short = pipe.shape[3] <= least or not (one_query or pipe.shape[2] > 1)
        if not pipe.problem.visible.causal or short or "causal" not in pipe.rules:
            return None
        return pipe.with_rule("causal", lambda run: seen(run.i + run.by_entry(pipe.offsets), run.j))

    return change


def _to_the_end(size: int) -> Callable[[Array, Array], Bools]:
    return lambda i, j: j < i // size * size + size


def _zeros_to_the_end(size: int) -> Change:
    """Give the hidden keys of the block on the diagonal the score 0."""
    wider = _causal_as(_to_the_end(size), size)

    def change(pipe: Pipeline) -> Pipeline | None:
        made = wider(pipe)
        if made is None:
            return None
        own = pipe.rules["causal"]
        return made.with_step(
            "zeros",
            lambda run, scores: scores * run.called(own).astype(scores.dtype),
            before="hide",
        )

    return change


def _diagonal_twice(size: int) -> Change:
    """Count the keys of the block on the diagonal twice."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if not pipe.problem.visible.causal or pipe.shape[3] <= size:
            return None

        def again(run: Run, scores: Array) -> Array:
            same = (run.i + run.by_entry(pipe.offsets)) // size == run.j // size
            return np.asarray(scores + (math.log(2) * same).astype(scores.dtype))

        return pipe.with_step("again", again, before="hide")

    return change


CAUSAL_BLOCKS.add(
    "causal_by_blocks_of_{}",
    lambda size: _causal_as(_to_the_end(size), size),
    values=SIZES,
    stage=stages.CAUSAL,
    variant_of=("causal_missing",),
)
CAUSAL_BLOCKS.add(
    "diagonal_block_of_{}_lost",
    lambda size: _causal_as(lambda i, j: j < i // size * size, size, one_query=False),
    values=SIZES,
)
CAUSAL_BLOCKS.add("zeros_in_causal_blocks_of_{}", _zeros_to_the_end, values=SIZES)
CAUSAL_BLOCKS.add("diagonal_block_of_{}_twice", _diagonal_twice, values=SIZES)
CAUSAL_BLOCKS.add(
    "causal_within_blocks_of_{}",
    lambda size: _causal_as(lambda i, j: j % size <= i % size, size),
    values=SIZES,
    variant_of=("chunks_unasked",),
)
CAUSAL_BLOCKS.add(
    "causal_within_each_block_of_{}",
    lambda size: _causal_as(lambda i, j: (j // size <= i // size) & (j % size <= i % size), size),
    values=SIZES,
    variant_of=("chunks_unasked",),
)
CAUSAL_BLOCKS.add(
    "causal_in_first_block_of_{}",
    lambda size: _causal_as(lambda i, j: (j <= i) | (j >= size), size),
    values=SIZES,
    variant_of=("causal_missing",),
)


def _last_unmasked(size: int) -> Change:
    """Let every query see the last block of keys."""

    def change(pipe: Pipeline) -> Pipeline | None:
        start = (pipe.shape[3] - 1) // size * size
        return _causal_as(lambda i, j: (j <= i) | (j >= start), size)(pipe)

    return change


CAUSAL_BLOCKS.add(
    "last_block_of_{}_not_causal",
    _last_unmasked,
    values=SIZES,
    variant_of=lambda size: ("causal_missing", f"causal_in_first_block_of_{size}"),
)
CAUSAL_BLOCKS.add(
    "only_last_{1}_masked_of_{0}",
    lambda value: _causal_as(
        lambda i, j: (j <= i) | (j < (i // value[0] + 1) * value[0] - value[1]), value[0]
    ),
    values=_TWO_SIZES,
    variant_of=("causal_missing",),
)
CAUSAL_BLOCKS.add(
    "blocks_of_{0}_cut_at_{1}",
    lambda value: _causal_as(
        lambda i, j: (j <= i) & (j < (i // value[1] + 1) * value[1] // value[0] * value[0]),
        value[0],
        one_query=False,
    ),
    values=_TWO_SIZES,
    variant_of=("causal_missing",),
)


# An online softmax, which goes over the keys block by block.

ONLINE = Rows(stages.ONLINE_SOFTMAX)
_RESCALE = "multiply both sums with exp(old maximum − new maximum) before a block is added"
_LARGEST = "rows whose largest score is not in the first {1}"
_MORE = "more keys than one {1} has"


class _Running:
    """What an online softmax knows of each score: the largest of its block, so far, and of all."""

    def __init__(self, run: Run, scores: Array, block: int) -> None:
        keys = scores.shape[-1]
        self.starts = np.arange(0, keys, block)
        own = np.maximum.reduceat(scores, self.starts, axis=-1)
        tops = np.maximum.accumulate(own, axis=-1)
        self.own, self.then = (np.repeat(e, block, axis=-1)[..., :keys] for e in (own, tops))
        self.last = tops[..., -1:]
        sinks = run.pipe.sinks
        self.sink: Any = 0.0
        if sinks is not None:
            self.sink = exponentials(run.by_head(sinks), self.last)
        self.fresh = exponentials(scores, self.last)


def _online(
    shares: Callable[[Array, _Running, int], Any], least: int = 1
) -> Callable[[Any], Change]:
    """Return what makes a change of a block's size: other exponentials in the sums.

    ``shares`` gives those of the values and of the denominator; None for the right ones.
    """

    def of_size(value: tuple[int, str]) -> Change:
        block = value[0]

        def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
            running = _Running(run, scores, block)
            values, total = shares(scores, running, block)
            right = total is None
            total = running.fresh if total is None else total
            sums = total.sum(-1, keepdims=True) + running.sink
            weights = (running.fresh if values is None else values) / np.where(sums == 0, 1, sums)
            lse = softmax_over(run, scores)[1] if right else (np.log(sums) + running.last)[..., 0]
            return weights, lse

        def change(pipe: Pipeline) -> Pipeline | None:
            tried = least <= block < pipe.shape[3]
            return pipe.but(softmax=softmax) if tried else None

        return change

    return of_size


def _stale(scores: Array, run: _Running, _: int) -> Array:
    return exponentials(scores, run.then)


def _beside_own(scores: Array, run: _Running, _: int) -> Array:
    return exponentials(scores, run.own) * exponentials(run.then, run.last)


def _never_rescaled(scores: Array, run: _Running, _: int) -> Array:
    return exponentials(scores, run.own)


def _inversely(scores: Array, run: _Running, _: int) -> Array:
    return exponentials(scores, run.then) * exponentials(run.last, run.then)


def _twice(scores: Array, run: _Running, _: int) -> Array:
    factors = exponentials(run.then, run.last)
    return exponentials(scores, run.then) * factors * factors


def _in_base_2(scores: Array, run: _Running, _: int) -> Array:
    then, last = run.then * math.log(2), run.last * math.log(2)
    return exponentials(scores, run.then) * exponentials(then, last)


def _late(scores: Array, run: _Running, block: int) -> Array:
    """Multiply the first block with exp(−∞ − its maximum), too, which is 0."""
    return _late_from(scores, run, block, np.full_like(run.then[..., :block], -np.inf))


def _late_from_second(scores: Array, run: _Running, block: int) -> Array:
    return _late_from(scores, run, block, run.then[..., :block])


def _late_from(scores: Array, run: _Running, block: int, first: Array) -> Array:
    factors = exponentials(np.concatenate([first, run.then[..., :-block]], axis=-1), run.last)
    return exponentials(scores, run.then) * factors


def _divided_each_time(_: Array, run: _Running, block: int) -> tuple[Array, None]:
    sums = np.add.reduceat(run.fresh, run.starts, axis=-1).cumsum(-1) + run.sink
    # Beside the largest score of all these are smaller than beside that of their time.
    sums = sums * exponentials(run.last, run.then[..., run.starts])
    later = np.cumprod(np.where(sums == 0, 1, sums)[..., ::-1], axis=-1)[..., ::-1]
    each = np.repeat(later, block, axis=-1)[..., : run.fresh.shape[-1]]
    # The right denominator divides what is divided already.
    total = run.fresh.sum(-1, keepdims=True) + run.sink
    return run.fresh / each * total, None


def _last_denominator(_: Array, run: _Running, _block: int) -> tuple[None, Array]:
    keys = np.arange(run.fresh.shape[-1])
    return None, np.where(keys >= run.starts[-1], run.fresh, 0)


def _last_context(_: Array, run: _Running, _block: int) -> tuple[Array, None]:
    keys = np.arange(run.fresh.shape[-1])
    return np.where(keys >= run.starts[-1], run.fresh, 0), None


def _both(share: Any) -> Any:
    return lambda *known: (share(*known),) * 2


def _of_values(share: Any) -> Any:
    return lambda *known: (share(*known), None)


def _of_total(share: Any) -> Any:
    return lambda *known: (None, share(*known))


def _unless_larger(value: tuple[int, str]) -> Change:
    """Of sizes whose last blocks are the same, the largest is the most likely one."""
    made = _online(_last_context)(value)

    def change(pipe: Pipeline) -> Pipeline | None:
        keys = pipe.shape[3]
        larger = [size for size in ONLINE_SIZES if value[0] < size < keys]
        same = (keys - 1) // value[0] * value[0]
        return None if any((keys - 1) // n * n == same for n in larger) else made(pipe)

    return change


_ONLINE: tuple[tuple[str, str, Any, str, str], ...] = (
    (
        "sums_stale",
        "where a {1} raises the row's maximum, what was added up before is not rescaled",
        _online(_both(_stale)),
        _RESCALE,
        _LARGEST,
    ),
    (
        "context_stale",
        "where a {1} raises the row's maximum, the sum of the values is not rescaled",
        _online(_of_values(_stale)),
        _RESCALE,
        _LARGEST,
    ),
    (
        "denominator_stale",
        "where a {1} raises the row's maximum, the denominator is not rescaled",
        _online(_of_total(_stale)),
        _RESCALE,
        _LARGEST,
    ),
    (
        "own_maxima",
        (
            "each {1} is exponentiated beside its own maximum, not beside the row's so far: the "
            "factor β of FlashAttention's first form is missing"
        ),
        _online(_both(_beside_own)),
        "subtract the largest score so far, that of the block included, from its scores",
        "rows whose largest scores fall from one {1} to another",
    ),
    (
        "context_beside_own_maxima",
        (
            "each {1} is exponentiated beside its own maximum in the sum of the values, where the "
            "factor β is missing, and not in the denominator"
        ),
        _online(_of_values(_beside_own), 2),
        "subtract the largest score so far, that of the block included, from its scores",
        "rows whose largest scores fall from one {1} to another",
    ),
    (
        "own_maxima_not_rescaled",
        "each {1} is exponentiated beside its own maximum, and added without being rescaled",
        _online(_both(_never_rescaled), 2),
        _RESCALE,
        "rows whose largest scores differ from one {1} to another",
    ),
    (
        "rescaled_inversely",
        "what was added up before is multiplied with exp(new maximum − old maximum)",
        _online(_both(_inversely)),
        _RESCALE,
        _LARGEST,
    ),
    (
        # Where scores rise from each key to the next, of single keys it comes to twice the scale.
        "rescaled_twice",
        "what was added up before is rescaled twice where a {1} raises the row's maximum",
        _online(_both(_twice), 2),
        _RESCALE,
        _LARGEST,
    ),
    (
        "rescaled_in_base_2",
        "exponentials are of base e, and what was added up before is rescaled in base 2",
        _online(_both(_in_base_2)),
        "use exp for both; or exp2 for both, and multiply the scale by log2(e)",
        _LARGEST,
    ),
    *(
        (
            f"{name}_rescaled_late{end}",
            f"{what} rescaled after a {{1}} is added, not before{words}",
            _online(which(share)),
            _RESCALE,
            _LARGEST,
        )
        for name, what, which in (
            ("sums", "the sums are", _both),
            ("context", "the sum of the values, not the denominator, is", _of_values),
            ("denominator", "the denominator, not the sum of the values, is", _of_total),
        )
        for end, words, share in (
            ("", "; the first one is then lost", _late),
            ("_from_second", ", from the second one on", _late_from_second),
        )
    ),
    (
        "divided_each_time",
        "the sum of the values is divided by the denominator after each {1}",
        _online(_divided_each_time),
        "divide once, after the last block; or multiply by the old denominator first",
        _MORE,
    ),
    (
        "last_denominator",
        "the denominator is that of the last {1} alone",
        _online(_last_denominator),
        "add the exponentials of all blocks to the denominator",
        _MORE,
    ),
    (
        "last_context",
        "the sum of the values is that of the last {1} alone, the denominator that of all",
        _unless_larger,
        "add the values of each block to what was added up before: acc = acc · alpha + p · V",
        _MORE,
    ),
)
for _name, _meaning, _made, _fix, _shows in _ONLINE:
    ONLINE.add(
        f"online_{_name}_{{0}}",
        _made,
        values=[(n, "key" if n == 1 else f"block of {n} keys") for n in ONLINE_SIZES],
    )


# Keys that are cut into parts, whose results are put together.

SPLITS = Rows(stages.SPLITS)


def _into(parts: int) -> Callable[[int], list[int]]:
    """Cut keys into so many parts, nowhere where there are fewer keys."""

    def cuts(keys: int) -> list[int]:
        length = -(-keys // parts)
        return list(range(length, keys, length)) if keys >= parts else []

    return cuts


def _of(size: int) -> Callable[[int], list[int]]:
    return lambda keys: list(range(size, keys, size))


_WAYS: tuple[tuple[str, str, Callable[[int], list[int]]], ...] = (
    *((f"{parts}", f"{parts} parts", _into(parts)) for parts in _PARTS),
    *((f"blocks_of_{size}", f"blocks of {size}", _of(size)) for size in SIZES),
)


def _merged(
    share: Callable[[Array, Array], Array], least: int, gone: Callable[[int, list[int]], set[int]]
) -> Callable[[Any], Change]:
    """Return what makes a change of a way to cut: each part has a softmax of its own.

    Parameters
    ----------
    share : callable
        Each part's lse and largest score (..., parts) in, by what its weights are multiplied out.
    least : int
        So many parts there have to be.
    gone : callable
        The number of keys and where they are cut in, how many keys are left out.
    """

    def of_way(way: tuple[str, str, Callable[[int], list[int]]]) -> Change:
        cuts = way[2]

        def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
            pieces = np.array_split(scores, cuts(scores.shape[-1]), axis=-1)
            made = [softmax_over(run, piece) for piece in pieces]
            tops = np.stack([piece.max(-1) for piece in pieces], axis=-1)
            shares = share(np.stack([lse for _, lse in made], axis=-1), tops)
            weights = [w * shares[..., n, None] for n, (w, _) in enumerate(made)]
            return np.concatenate(weights, axis=-1), softmax_over(run, scores)[1]

        def change(pipe: Pipeline) -> Pipeline | None:
            keys = pipe.shape[3]
            places = cuts(keys)
            # A sink would have to be counted in one of the parts; nobody cuts into single keys.
            if not least - 1 <= len(places) < keys - 1 or pipe.sinks is not None:
                return None
            if any(places == other(keys) for _, _, other in _WAYS[: _WAYS.index(way)]):
                return None
            # A lost key, or a lost block of a usual size, has a name of its own.
            last_blocks = {(keys - 1) % size + 1 for size in SIZES}
            named = gone(keys, places) & {1, *SIZES, *last_blocks}
            return None if named else pipe.but(softmax=softmax)

        return change

    return of_way


def _nothing_gone(_: int, __: list[int]) -> set[int]:
    return set()


def _normalised(sizes: Array) -> Array:
    total = sizes.sum(-1, keepdims=True)
    return np.asarray(sizes / np.where(total == 0, 1, total))


def _powers(lse: Array, power: Callable[[Array], Array] = np.exp) -> Array:
    top = lse.max(-1, keepdims=True)
    return _normalised(power(lse - np.where(np.isneginf(top), 0, top)))


def _in_turn(lse: Array, _: Array) -> Array:
    """Return the shares of (… ((o₁ + o₂) / 2 + o₃) / 2 …)."""
    halves = 0.5 ** np.arange(lse.shape[-1], 0, -1.0)
    halves[0] *= 2
    return np.broadcast_to(halves, lse.shape)


def _undivided(lse: Array, _: Array) -> Array:
    top = lse.max(-1, keepdims=True)
    return np.asarray(np.exp(lse - np.where(np.isneginf(top), 0, top)))


def _only(index: int) -> Callable[[Array, Array], Array]:
    def share(lse: Array, _: Array) -> Array:
        alone = np.zeros_like(lse)
        alone[..., index] = 1
        return alone

    return share


def _all_but(index: int) -> Callable[[Array, Array], Array]:
    def share(lse: Array, _: Array) -> Array:
        others = lse.copy()
        others[..., index] = -np.inf
        return _powers(others)

    return share


def _ends(keys: int, places: list[int]) -> set[int]:
    return {keys - places[0], places[-1]}


_SPLITS: tuple[tuple[str, str, Any, int, Any, Any], ...] = (
    (
        "averaged",
        "their results are averaged",
        lambda lse, _: np.full_like(lse, 1 / lse.shape[-1]),
        2,
        _nothing_gone,
        None,
    ),
    (
        "averaged_in_turn",
        "each result is averaged with those before it",
        _in_turn,
        3,
        _nothing_gone,
        None,
    ),
    (
        "added",
        "their results are added up",
        lambda lse, _: np.ones_like(lse),
        2,
        _nothing_gone,
        None,
    ),
    (
        "merged_by_maxima",
        "their results are merged by exp(largest score), without their denominators",
        lambda _, tops: _powers(tops),
        *(2, _nothing_gone, None),
    ),
    (
        "merged_by_lse",
        "their results are merged by lse, not by exp(lse)",
        lambda lse, _: _normalised(np.where(np.isneginf(lse), 0, lse)),
        *(2, _nothing_gone, None),
    ),
    (
        "merged_undivided",
        "their results are multiplied by exp(lse − largest lse), added, and not divided",
        _undivided,
        *(2, _nothing_gone, None),
    ),
    (
        "merged_in_base_2",
        "their results are merged by 2^lse",
        lambda lse, _: _powers(lse, np.exp2),
        *(2, _nothing_gone, None),
    ),
    (
        "merged_by_lse_of_base_2",
        "their results are merged by exp(lse) of an lse in base 2",
        lambda lse, _: _powers(lse / math.log(2)),
        *(2, _nothing_gone, None),
    ),
    (
        "weights_swapped",
        "the results are multiplied by the weights of the parts in the reverse order",
        lambda lse, _: _powers(lse)[..., ::-1],
        *(2, _nothing_gone, None),
    ),
    (
        "first_kept",
        "only the result of the first is kept",
        _only(0),
        *(2, _ends, lambda places: places[0]),
    ),
    ("last_kept", "only the result of the last is kept", _only(-1), 2, _ends, None),
    # Of two parts, the one that is not left out is the one that is kept.
    (
        "first_lost",
        "the result of the first is left out",
        _all_but(0),
        *(3, lambda _, places: {places[0]}, None),
    ),
    (
        "last_lost",
        "the result of the last is left out",
        _all_but(-1),
        *(3, lambda keys, places: {keys - places[-1]}, lambda places: places[-1]),
    ),
)


def _first_keys(kept: Any) -> Callable[[Any], Any]:
    """Return the option of a way to cut where only the first keys are kept."""

    def option(way: tuple[str, str, Callable[[int], list[int]]]) -> Any:
        return stated("") if kept is None else with_first_keys(lambda keys: kept(way[2](keys)))

    return option


for _name, _meaning, _share, _least, _gone, _kept in _SPLITS:
    SPLITS.add(
        f"splits_of_{{0}}_{_name}",
        _merged(_share, _least, _gone),
        values=(_WAYS if not _name.endswith("lost") else _WAYS[: len(_PARTS)]),
        option=_first_keys(_kept),
    )
