"""Inputs that were quantized: 8 bits and fewer, as a cache of keys and values holds them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of
from attncli.referee.convention import Convention
from attncli.referee.grids import (
    FLOATS,
    INTEGERS,
    Ends,
    between,
    in_q4_0,
    in_q8_0,
    on_grid,
)
from attncli.referee.recipe import vary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.referee.recipe import Recipe

__all__ = ["QUANTIZED"]

Array = npt.NDArray[Any]
# Larger inputs, in numbers, are not quantized again and again.
_MOST_NUMBERS = 2**22


class _Sharing(NamedTuple):
    """Which numbers share a scale: those along some axes of (B, H, L or S, D).

    Where there are groups, so many along one of the axes share it.
    """

    name: str
    meaning: str
    axes: tuple[int, ...]
    group: int = 0
    along: int = 0


_TOKENS, _COLUMNS = 2, 3
_NONE = _Sharing("", "without a scale", ())
# What a format itself says.
_BY_32 = _Sharing("", "", (_COLUMNS,), 32, _COLUMNS)
# From the simplest to the finest: where two come to the same, the simpler one is named.
_SCALED = (
    _Sharing("_scaled", "with one scale, by the largest magnitude", (0, 1, 2, 3)),
    _Sharing("_by_head", "with a scale for each head", (0, 2, 3)),
    _Sharing("_by_entry", "with a scale for each head of each batch entry", (2, 3)),
    _Sharing("_by_token", "with a scale for each token of each head", (_COLUMNS,)),
    _Sharing("_by_channel", "with a scale for each column of each head", (_TOKENS,)),
)


def _by_tokens(count: int) -> _Sharing:
    meaning = f"with a scale for {count} tokens of a head"
    return _Sharing(f"_by_{count}_tokens", meaning, (_TOKENS, _COLUMNS), count, _TOKENS)


def _by_columns(count: int) -> _Sharing:
    meaning = f"with a scale for {count} columns of a token"
    return _Sharing(f"_by_{count}_columns", meaning, (_COLUMNS,), count, _COLUMNS)


def _by_channel_of_tokens(count: int) -> _Sharing:
    meaning = f"with a scale for each column of {count} tokens"
    return _Sharing(f"_by_channel_of_{count}_tokens", meaning, (_TOKENS,), count, _TOKENS)


_GROUPED = (
    *map(_by_tokens, (128, 64)),
    *map(_by_columns, (128, 64, 32)),
    *map(_by_channel_of_tokens, (128, 64, 32)),
)


class _Scheme(NamedTuple):
    """A format, and who shares what: a scale alone, or a scale and a zero point."""

    name: str
    meaning: str
    rounded: Callable[..., Array]
    sharings: tuple[_Sharing, ...]


def _with_zero_point(bits: int) -> _Scheme:
    return _Scheme(
        f"int{bits}_with_zero_point",
        f"int{bits} with zero points",
        partial(between, bits),
        (*_SCALED[2:], *_GROUPED),
    )


_SCHEMES = (
    *(_Scheme(g.name, g.name, partial(on_grid, g), (*_SCALED, *_GROUPED)) for g in INTEGERS),
    *(_Scheme(g.name, g.name, partial(on_grid, g), (_NONE, *_SCALED, *_GROUPED)) for g in FLOATS),
    _with_zero_point(8),
    _with_zero_point(4),
    _with_zero_point(2),
    _Scheme("q8_0", "Q8_0 of llama.cpp (int8, a scale for 32 columns)", in_q8_0, (_BY_32,)),
    _Scheme("q4_0", "Q4_0 of llama.cpp (int4, a scale for 32 columns)", in_q4_0, (_BY_32,)),
)
# What is quantized; each after those beside which it says nothing more.
_PARTS = {
    "key": ("the keys are", ("key",)),
    "value": ("the values are", ("value",)),
    "cache": ("keys and values are", ("key", "value")),
    "query_key": ("query and key are", ("query", "key")),
    "inputs": ("query, key and value are", ("query", "key", "value")),
}


def _quantized(
    names: tuple[str, ...], scheme: _Scheme, sharing: _Sharing, recipe: Recipe
) -> Recipe | None:
    """Put some inputs on a grid, as they are when they are multiplied."""
    inputs = [getattr(recipe.whole, name) for name in names]
    if recipe.problem.score not in ("dot", "cosine") or any(
        array is None or array.size > _MOST_NUMBERS for array in inputs
    ):
        return None
    if not all(_has_groups(array, sharing) for array in inputs):
        return None
    given = _known(("factors", recipe.part), recipe, lambda: factors_of(recipe.problem))
    made = {}
    for name in names:
        dtype = np.float64 if getattr(recipe.whole, name).dtype == np.float64 else np.float32
        array = given[name].astype(dtype)
        ends = _shared_ends(recipe, name, array, sharing) if sharing.axes else None
        made[name] = scheme.rounded(array, ends).astype(np.float64)
    if all(np.array_equal(made[name], given[name]) for name in names):
        return None
    return replace(vary(recipe, rope=None, **{**given, **made}), codes=True)


def _has_groups(array: Array, sharing: _Sharing) -> bool:
    """Return whether an input has more than one group, or whole blocks of a format."""
    length = int(array.shape[sharing.along])
    return length % sharing.group == 0 if sharing is _BY_32 else length > sharing.group


def _known(what: object, recipe: Recipe, work_out: Callable[[], Any]) -> Any:
    """Return what was worked out before, for another convention of the same search."""
    if what not in recipe.memory:
        recipe.memory[what] = work_out()
    return recipe.memory[what]


def _shared_ends(recipe: Recipe, name: str, array: Array, sharing: _Sharing) -> Ends:
    """Return the ends of those that share a scale, in the whole problem."""
    batch, head, rows = recipe.part
    cut = {0: batch, 1: head, 2: rows if name == "query" else None}
    if all(part is None for axis, part in cut.items() if axis in sharing.axes):
        return _ends(array, sharing)
    whole = _known("whole factors", recipe, lambda: factors_of(recipe.whole))
    low, high = _known(("ends", name, sharing), recipe, lambda: _ends(whole[name], sharing))
    shared = recipe.whole.shape[1] // getattr(recipe.whole, name).shape[1]
    index = (
        _one(batch, low.shape[0]),
        _one(None if head is None else head // shared, low.shape[1]),
        slice(*rows) if rows and low.shape[2] > 1 else slice(None),
    )
    return low[index], high[index]


def _one(index: int | None, length: int) -> slice:
    return slice(None) if index is None or length == 1 else slice(index, index + 1)


def _ends(array: Array, sharing: _Sharing) -> Ends:
    """Return least and largest of those that share a scale, broadcast to the array."""
    return _reduced(np.minimum, array, sharing), _reduced(np.maximum, array, sharing)


def _reduced(extreme: np.ufunc, array: Array, sharing: _Sharing) -> Array:
    if not sharing.group:
        return np.asarray(extreme.reduce(array, axis=sharing.axes, keepdims=True))
    length = array.shape[sharing.along]
    starts = np.arange(0, length, sharing.group)
    others = tuple(axis for axis in sharing.axes if axis != sharing.along)
    groups = extreme.reduceat(array, starts, axis=sharing.along)
    groups = extreme.reduce(groups, axis=others, keepdims=True)
    return np.repeat(groups, np.diff(starts, append=length), axis=sharing.along)


def _conventions(scheme: _Scheme) -> Iterator[Convention]:
    for part, (words, names) in _PARTS.items():
        simpler = [p for p, (_, others) in _PARTS.items() if {*others} < {*names}]
        for place, sharing in enumerate(scheme.sharings):
            yield Convention(
                name=f"{part}_in_{scheme.name}{sharing.name}",
                topic=topics.QUANTIZED,
                meaning=f"{words} quantized to {scheme.meaning}"
                + (f", {sharing.meaning}" if sharing.meaning else ""),
                fix="give check the inputs as they are when they are dequantized, or judge by "
                "--rtol and --atol",
                shows="almost any input",
                apply=partial(_quantized, names, scheme, sharing),
                variant_of=(
                    *(f"{other}_in_{scheme.name}{sharing.name}" for other in simpler),
                    *(f"{part}_in_{scheme.name}{o.name}" for o in scheme.sharings[:place]),
                ),
            )


QUANTIZED = tuple(convention for scheme in _SCHEMES for convention in _conventions(scheme))
