"""Mistakes with the rotary embedding."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.operands import rotated
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import rope_frequencies, rotate
from attncli.problem.problem import Rope
from attncli.referee import topics
from attncli.referee.catalogue.helpers import other_pairing, turned_at
from attncli.referee.convention import Apply, Convention
from attncli.referee.options import based, shortest, stated, without_rope
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.errors.names import Pairing
    from attncli.problem.problem import Problem

__all__ = ["ROPE_USE"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
# That of the paper; models for long texts take others.
_PAPER = 10_000
# Of models whose rotation somebody may forget to state.
_OF_MODELS = (
    *(100_000, 150_000, 160_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 8_000_000, 10_000_000),
)
# Of two components there is only one order of pairs.
_TWO_PAIRS = 4
_PAIRINGS: tuple[Pairing, ...] = ("half", "interleaved")


def _rope_as(change: Callable[[Rope], Rope | None]) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        rope = recipe.problem.rope
        if rope is None:
            return None
        new = change(rope)
        return None if new == rope else vary(recipe, rope=new)

    return apply


def _rope_added(pairing: Pairing, base: int) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        width = problem.query.shape[3]
        # Two components are one pair, however they are paired, and turn by 1 with any base.
        same = width == 2 and (pairing == "interleaved" or base != _PAPER)
        if problem.rope is not None or width % 2 or same:
            return None
        return vary(recipe, rope=Rope(pairing, float(base)))

    return apply


def _with_base(base: float, rope: Rope) -> Rope:
    return rope._replace(base=base, frequencies=None)


def _with_exponents(factor: float, rope: Rope) -> Rope:
    return rope if rope.frequencies else rope._replace(base=rope.base**factor)


def _as_llama_3(factor: float, recipe: Recipe) -> Recipe | None:
    """Scale the frequencies as Llama 3.1 does: the slow ones by a factor, others by a part of it.

    References
    ----------
    ``rope_type: llama3`` in the configuration of Llama 3.1, with low_freq_factor 1,
    high_freq_factor 4 and 8192 positions.
    """
    rope = recipe.problem.rope
    if rope is None or rope.frequencies is not None:
        return None
    frequencies = rope.of_width(recipe.problem.query.shape[3])
    turns = 8192 * frequencies / (2 * math.pi)
    part = np.clip((turns - 1) / 3, 0, 1)
    scaled = (1 - part) * frequencies / factor + part * frequencies
    return vary(recipe, rope=rope._replace(frequencies=tuple(scaled.tolist())))


def _of_whole_width(recipe: Recipe) -> Recipe | None:
    """Turn a part of the components as fast as if all of them were turned."""
    rope, width = recipe.problem.rope, recipe.problem.query.shape[3]
    if rope is None or rope.frequencies is None or 2 * len(rope.frequencies) >= width:
        return None
    whole = rope_frequencies(width, _PAPER)[: len(rope.frequencies)]
    return vary(recipe, rope=rope._replace(frequencies=tuple(whole.tolist())))


def _exponents_option(factor: float, problem: Problem) -> str:
    """Return the base with which the exponents come out so."""
    return "" if problem.rope is None else f"--rope-base {shortest(problem.rope.base**factor)}"


def _turned_further(recipe: Recipe, steps: tuple[int, ...]) -> Recipe | None:
    """Return the recipe whose queries are turned as if they stood so many positions further."""
    batch, _, queries, _ = recipe.problem.shape
    if not any(steps):
        return None
    offsets = (recipe.problem.visible.offset(b) + steps[b % len(steps)] for b in range(batch))
    return turned_at(recipe, [np.arange(queries) + offset for offset in offsets])


def _rope_from_zero(recipe: Recipe) -> Recipe | None:
    offsets = recipe.problem.visible.offsets
    return _turned_further(recipe, tuple(recipe.start - offset for offset in offsets))


def _query_moved(step: int) -> Apply:
    """Make an `apply` in which queries are turned as if they stood a little elsewhere."""
    return lambda recipe: _turned_further(recipe, (step,))


def _new_tokens(move: Callable[[int, Ints], Ints], *, cache: bool = False) -> Apply:
    """Make an `apply` that turns new queries and keys, or those of the cache, as if elsewhere.

    Parameters
    ----------
    move : callable
        Where the first new token stands and the positions of some in, other positions out.
    cache : bool
        It moves the keys of the cache, and nothing else.
    """

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        batch, _, queries, keys = problem.shape
        firsts = [problem.visible.offset(b) - recipe.start for b in range(batch)]
        if not all(0 < first < keys for first in firsts):
            return None
        places, rows = np.arange(keys), np.arange(queries) + recipe.start
        own, new = [], []
        for first in firsts:
            moved = places < first if cache else places >= first
            new.append(np.where(moved, move(first, places), places))
            own.append(rows + first if cache else move(first, rows + first))
        return turned_at(recipe, own, new)

    return apply


def _position_of_first_entry(recipe: Recipe) -> Recipe | None:
    """Turn the queries of all batch entries as if they stood where those of the first do."""
    own, whole = recipe.problem.visible.offsets, recipe.whole.visible.offsets
    return _turned_further(recipe, tuple(whole[0] + recipe.start - offset for offset in own))


def _again(*sides: str) -> Apply:
    """Make an `apply` that turns what is turned already."""

    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.problem.rope is None:
            return None
        turned = rotated(recipe.problem)
        return vary(recipe, **{side: getattr(turned, side) for side in sides})

    return apply


def _values_too(recipe: Recipe) -> Recipe | None:
    problem = recipe.problem
    rope, value = problem.rope, problem.value
    if rope is None or value is None or value.shape[3] % 2:
        return None
    positions = np.arange(value.shape[2])
    frequencies = rope.of_width(value.shape[3])
    if 2 * len(frequencies) > value.shape[3]:
        return None
    wide = widen(value, np.float64)
    turned = rotate(wide, positions, pairing=rope.pairing, frequencies=frequencies)
    return vary(recipe, value=turned)


def _one_side(side: str) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.problem.rope is None:
            return None
        turned = getattr(rotated(recipe.problem), side)
        return vary(recipe, rope=None, **{side: turned})

    return apply


def _unrotated(*, cached: bool) -> Apply:
    """Make an `apply` that turns no key of a cache, or none of those that came after it."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        batch, _, _, keys = problem.shape
        firsts = np.array([problem.visible.offset(b) - recipe.start for b in range(batch)])
        if problem.rope is None or not ((firsts > 0) & (firsts < keys)).all():
            return None
        turned = rotated(problem)
        in_cache = np.arange(keys) < firsts[:, None, None]
        left = (in_cache == cached)[..., None]
        key = np.where(left, widen(problem.key, np.float64), turned.key)
        return vary(recipe, rope=None, query=turned.query, key=key)

    return apply


def _permuted(side: str) -> Apply:
    """Make an `apply` that orders the components of one side as the other pairing has them."""

    def apply(recipe: Recipe) -> Recipe | None:
        rope, rows = recipe.problem.rope, getattr(recipe.problem, side)
        width = rows.shape[3]
        if rope is None or width < _TWO_PAIRS or 2 * len(rope.of_width(width)) != width:
            return None
        order = np.arange(width).reshape((-1, 2) if rope.pairing == "half" else (2, -1)).T
        return vary(recipe, **{side: widen(rows, np.float64)[..., order.ravel()]})

    return apply


def _one_otherwise(side: str, other: str) -> Apply:
    """Make an `apply` that turns one side by the other pairing, and the other as it should be."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem, rope = recipe.problem, recipe.problem.rope
        if rope is None:
            return None
        otherwise = rotated(vary(recipe, rope=other_pairing(rope)).problem)
        sides = {side: getattr(otherwise, side), other: getattr(rotated(problem), other)}
        return vary(recipe, rope=None, **sides)

    return apply


def _permuted_otherwise(order: Callable[[Ints], Ints]) -> Apply:
    """Make an `apply` with the other pairing, and rows in another order than this one needs."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem, rope = recipe.problem, recipe.problem.rope
        width = problem.query.shape[3]
        if rope is None or width <= _TWO_PAIRS or 2 * len(rope.of_width(width)) != width:
            return None
        right = np.arange(width).reshape((2, -1) if rope.pairing == "half" else (-1, 2)).T.ravel()
        query, key = (
            widen(rows, np.float64)[..., order(right)] for rows in (problem.query, problem.key)
        )
        return vary(recipe, query=query, key=key, rope=other_pairing(rope))

    return apply


def _exchanged(rope: Rope, width: int) -> Array:
    """Return the order of a row in which the two components of each pair are exchanged."""
    turned = 2 * len(rope.of_width(width))
    halves = np.arange(turned).reshape(2, -1)[::-1].reshape(-1)
    pairs = np.arange(turned).reshape(-1, 2)[:, ::-1].reshape(-1)
    return np.asarray(np.r_[halves if rope.pairing == "half" else pairs, turned:width])


def _backwards(recipe: Recipe) -> Recipe | None:
    """Turn by negative angles: exchange the two components of each pair before and after."""
    problem = recipe.problem
    if problem.rope is None:
        return None
    order = _exchanged(problem.rope, problem.query.shape[3])
    return vary(
        recipe,
        query=widen(problem.query, np.float64)[..., order],
        key=widen(problem.key, np.float64)[..., order],
    )


def _one_backwards(side: str, other: str) -> Apply:
    """Make an `apply` that turns one side by negative angles, and the other as it should be."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem, both = recipe.problem, _backwards(recipe)
        if problem.rope is None or both is None:
            return None
        order = _exchanged(problem.rope, problem.query.shape[3])
        back = getattr(rotated(both.problem), side)[..., order]
        return vary(recipe, rope=None, **{side: back, other: getattr(rotated(problem), other)})

    return apply


_rope = partial(
    Convention,
    topic=topics.ROPE,
    fix="rotate query and key, each by its own position, before the product",
    shows="more than one position",
)


def _unasked(pairing: Pairing, base: int) -> Convention:
    usual = base == _PAPER
    return _rope(
        f"rope_unasked_{pairing}{'' if usual else f'_{base}'}",
        f"a rotary embedding is applied that the problem does not state ({pairing} pairing, "
        f"base {base})",
        _rope_added(pairing, base),
        fix="leave the rotation out, or state it",
        shows="more than one position" if usual else "a width above 2",
        option=stated(f"--rope {pairing}{'' if usual else f' --rope-base {base}'}"),
        topic=topics.ROPE if usual else topics.ROPE_UNASKED,
    )


ROPE_USE = (
    _rope(
        "rope_pairing",
        "the rotary embedding uses the other pairing (half instead of interleaved, or vice versa)",
        _rope_as(other_pairing),
        fix="pair component p with p + D/2 (half) or 2p with 2p + 1 (interleaved), as the "
        "weights were trained",
        shows="a width above 2",
        option=lambda p: "" if p.rope is None else f"--rope {other_pairing(p.rope).pairing}",
        topic=topics.ROPE_PAIRING,
    ),
    *(
        _rope(
            "rope_base" if base == _PAPER else f"rope_base_{base}",
            f"the rotary embedding has the frequencies of base {base} over the whole width, not "
            "those that the problem states",
            _rope_as(partial(_with_base, float(base))),
            fix="take the base, or the frequencies, that the problem states",
            shows=f"a base other than {base}",
            option=based(base),
            topic=topics.ROPE_FREQUENCIES,
        )
        for base in (_PAPER, 100_000, 500_000, 1_000_000)
    ),
    _rope(
        "rope_frequencies_of_whole_width",
        "of the components only a part is turned, but as fast as if all D were: by 10000^(−2p/D)",
        _of_whole_width,
        fix="go by the number of components that are turned: 10000^(−2p/R) for R of them",
        shows="a rotary embedding of a part of the components",
        topic=topics.ROPE_FREQUENCIES,
    ),
    *(
        _rope(
            f"rope_scaled_as_llama_3_{factor}",
            f"the frequencies of the rotary embedding are scaled as in Llama 3.1 (factor {factor})",
            partial(_as_llama_3, factor),
            fix="leave rope_scaling out, or state the scaled frequencies (rope_frequencies)",
            shows="many positions, or a width of many pairs",
            topic=topics.ROPE_FREQUENCIES,
        )
        for factor in (8, 32)
    ),
    *(
        _rope(
            f"rope_exponents_{word}",
            f"the exponent of pair p in the rotary embedding is {wrong} instead of −2p/D",
            _rope_as(partial(_with_exponents, factor)),
            fix="turn pair p by base^(−2p/D) per position, p from 0 to D/2 − 1",
            shows="a width above 2",
            option=partial(_exponents_option, factor),
            topic=topics.ROPE_FREQUENCIES,
        )
        for word, wrong, factor in (("halved", "−p/D", 0.5), ("doubled", "−4p/D", 2.0))
    ),
    _rope(
        "rope_missing",
        "the rotary embedding is missing, or all rows of a head are given the same position",
        _rope_as(lambda _: None),
        option=without_rope,
    ),
    *(_unasked(pairing, base) for base in (_PAPER, *_OF_MODELS) for pairing in _PAIRINGS),
    _rope(
        "rope_without_offset",
        "the rotary embedding counts queries from 0, although they stand at an offset",
        _rope_from_zero,
        fix="rotate query i by the angle of position i + offset",
        shows="an offset other than 0",
        topic=topics.ROPE_PLACE,
    ),
    *(
        _rope(
            f"rope_{side}_permuted",
            f"the components of the {side} are ordered for the other pairing, those of the "
            f"{other} are not",
            _permuted(side),
            fix="permute the rows of both projections, of query and key, or of neither",
            shows="a width above 2",
        )
        for side, other in (("key", "query"), ("query", "key"))
    ),
    *(
        _rope(
            f"rope_permuted_{name}",
            f"query and key are rotated by the other pairing, for which their rows are permuted "
            f"{words}",
            _permuted_otherwise(order),
            fix="permute the rows of both projections once, from (2, D/2) to (D/2, 2) for the "
            "interleaved pairing and from (D/2, 2) to (2, D/2) for halves (GGUF, Transformers)",
            shows="a width above 4",
            topic=topics.ROPE_ORDER,
        )
        for name, words, order in (
            ("twice", "twice", lambda right: right[right]),
            ("backwards", "in the wrong direction", np.argsort),
        )
    ),
    *(
        _rope(
            f"rope_{side}_other_pairing",
            f"the {side} is rotated by the other pairing (half instead of interleaved, or vice "
            f"versa), the {other} by the right one",
            _one_otherwise(side, other),
            fix="rotate query and key by the same pairing, the one that the weights were "
            "trained with",
            shows="a width above 2",
            topic=topics.ROPE_ORDER,
        )
        for side, other in (("key", "query"), ("query", "key"))
    ),
    _rope("rope_query_only", "only the query is rotated", _one_side("query")),
    _rope("rope_key_only", "only the key is rotated", _one_side("key")),
    _rope(
        "rope_backwards",
        "the rotation has the wrong direction, or cosine and sine are exchanged",
        _backwards,
    ),
    *(
        _rope(
            f"rope_{side}_backwards",
            f"the rotation of the {side} has the wrong direction, that of the {other} is right",
            _one_backwards(side, other),
            fix="turn query and key in the same direction",
        )
        for side, other in (("key", "query"), ("query", "key"))
    ),
    *(
        _rope(
            f"rope_query_{word}",
            f"the rotary embedding takes the queries one position too {word}",
            _query_moved(step),
            fix="rotate query i by the angle of position i + offset: after a cache of n keys, "
            "the first new query and its key stand at n",
            shows="any query",
            topic=topics.ROPE_PLACE,
        )
        for word, step in (("late", 1), ("early", -1))
    ),
    *(
        _rope(
            name,
            meaning,
            _unrotated(cached=cached),
            fix="rotate every key once, by its own position: before it goes into the cache, or all "
            "of them when they come out of it",
            shows="new queries after a cache of keys",
            topic=topics.ROPE_PLACE,
        )
        for name, meaning, cached in (
            ("rope_cache_unrotated", "the keys before the first query are not rotated", True),
            (
                "rope_new_keys_unrotated",
                (
                    "the keys from the first query on are not rotated, or one new key is turned by "
                    "the angle of position 0"
                ),
                False,
            ),
        )
    ),
    *(
        _rope(
            name,
            meaning,
            _new_tokens(move, cache=cache),
            fix="rotate the new queries and keys by their positions behind the cache, n, n + 1, …, "
            "and keys of the cache only once",
            shows="new queries after a cache of keys",
            topic=topics.NEW_POSITIONS,
        )
        for name, meaning, move, cache in (
            (
                "rope_new_tokens_from_zero",
                "the rotary embedding counts the new queries and keys from 0, not behind the cache",
                lambda first, places: places - first,
                False,
            ),
            (
                "rope_new_tokens_late",
                "the rotary embedding takes the new queries and keys one position too late",
                lambda _, places: places + 1,
                False,
            ),
            (
                "rope_new_tokens_early",
                "the rotary embedding takes the new queries and keys one position too early",
                lambda _, places: places - 1,
                False,
            ),
            (
                "rope_new_tokens_alike",
                "all new queries and keys are rotated by the position of the first of them",
                lambda first, places: np.full_like(places, first),
                False,
            ),
            (
                "rope_cache_twice",
                "the keys of the cache, which are rotated, are rotated once more",
                lambda _, places: 2 * places,
                True,
            ),
        )
    ),
    _rope(
        "rope_of_first_entry",
        "the queries of all batch entries are rotated by the positions of those of the first",
        _position_of_first_entry,
        fix="rotate the queries of each batch entry by their own positions",
        shows="batch entries whose queries stand at different places",
        topic=topics.NEW_POSITIONS,
        needs=frozenset({"batch"}),
    ),
    _rope(
        "rope_twice",
        "query and key are rotated twice",
        _again("query", "key"),
        fix="rotate once: before the keys go into the cache, or after they come out of it",
    ),
    _rope(
        "rope_keys_twice",
        "the keys are rotated twice, the queries once",
        _again("key"),
        fix="rotate once: before the keys go into the cache, or after they come out of it",
    ),
    _rope(
        "rope_on_values",
        "the values are rotated too",
        _values_too,
        fix="rotate only query and key",
    ),
)
