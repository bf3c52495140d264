"""Inputs that were quantized: 8 bits and fewer, as a cache of keys and values holds them."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.quantizing import (
    ALL,
    COLUMNS,
    TOKENS,
    Scheme,
    Sharing,
    Way,
    Ways,
    left_as_codes,
    quantized,
    with_scales_exchanged,
)
from attncli.referee.convention import Convention
from attncli.referee.grids import (
    E2M1,
    FLOATS,
    INTEGERS,
    between,
    codes_on_grid,
    in_q4_0,
    in_q8_0,
    on_grid,
    with_power_of_two,
    with_scale_of_e4m3,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.referee.grids import Grid
    from attncli.referee.recipe import Recipe

__all__ = ["FLOAT8_INPUTS", "NOT_SCALED_BACK", "QUANTIZED"]

Array = npt.NDArray[Any]
# Of a cache as KIVI has it; what is beyond is not quantized yet.
_PART = 128
_NONE = Sharing("", "without a scale", ())
_BY_TOKEN = Sharing("_by_token", "with a scale for each token of each head", (COLUMNS,))
# From the simplest to the finest: where two come to the same, the simpler one is named.
_SCALED = (
    ALL,
    Sharing("_by_head", "with a scale for each head", (0, 2, 3)),
    Sharing("_by_entry", "with a scale for each head of each batch entry", (2, 3)),
    _BY_TOKEN,
    Sharing("_by_channel", "with a scale for each column of each head", (TOKENS,)),
)


def _by_tokens(count: int) -> Sharing:
    meaning = f"with a scale for {count} tokens of a head"
    return Sharing(f"_by_{count}_tokens", meaning, (TOKENS, COLUMNS), count, TOKENS)


def _by_columns(count: int) -> Sharing:
    meaning = f"with a scale for {count} columns of a token"
    return Sharing(f"_by_{count}_columns", meaning, (COLUMNS,), count, COLUMNS)


def _by_channel_of_tokens(count: int) -> Sharing:
    meaning = f"with a scale for each column of {count} tokens"
    return Sharing(f"_by_channel_of_{count}_tokens", meaning, (TOKENS,), count, TOKENS)


_GROUPED = (
    *map(_by_tokens, (128, 64)),
    *map(_by_columns, (128, 64, 32)),
    *map(_by_channel_of_tokens, (128, 64, 32)),
)


def _blocks(count: int) -> Sharing:
    """Return the blocks of so many columns that a format itself has."""
    return Sharing("", "", (COLUMNS,), count, COLUMNS, blocks=True)


def _blocks_of_tokens(count: int) -> Sharing:
    return Sharing("", "", (TOKENS,), count, TOKENS, blocks=True)


def _with_zero_point(bits: int) -> Scheme:
    return Scheme(
        f"int{bits}_with_zero_point",
        f"int{bits} with zero points",
        partial(between, bits),
        (*_SCALED[2:], *_GROUPED),
    )


def _microscaled(name: str, meaning: str, rounded: Callable[..., Array], block: int) -> Scheme:
    words = f"{meaning} as the scale of {block} numbers)"
    return Scheme(name, words, rounded, (_blocks(block),), of_all=name.endswith("_scaled"))


_E4M3, _E5M2 = FLOATS
_SCHEMES = (
    *(Scheme(g.name, g.name, partial(on_grid, g), (*_SCALED, *_GROUPED)) for g in INTEGERS),
    *(Scheme(g.name, g.name, partial(on_grid, g), (_NONE, *_SCALED, *_GROUPED)) for g in FLOATS),
    *map(_with_zero_point, (8, 4, 2)),
    Scheme("q8_0", "Q8_0 of llama.cpp (int8, a scale for 32 columns)", in_q8_0, (_blocks(32),)),
    Scheme("q4_0", "Q4_0 of llama.cpp (int4, a scale for 32 columns)", in_q4_0, (_blocks(32),)),
)
# Of caches whose scales get lost.
_OF_CACHES = (*FLOATS, INTEGERS[0])
_OF_HEADS = _SCALED[:3]
_OF_E4M3 = next(scheme for scheme in _SCHEMES if scheme.name == _E4M3.name)
_POWERS = (
    ("mxfp8_e4m3", "MXFP8 (E4M3, a power of 2", _E4M3),
    ("mxfp8_e5m2", "MXFP8 (E5M2, a power of 2", _E5M2),
    ("mxfp4", "MXFP4 (E2M1, a power of 2", E2M1),
)
_MICROSCALED = (
    *(_microscaled(n, words, partial(with_power_of_two, g), 32) for n, words, g in _POWERS),
    *(
        _microscaled(
            f"{n}_up", f"{words}, rounded up,", partial(with_power_of_two, grid, up=True), 32
        )
        for n, words, grid in _POWERS
    ),
    _microscaled("nvfp4", "NVFP4 (E2M1, E4M3", with_scale_of_e4m3, 16),
    _microscaled(
        "nvfp4_scaled", "NVFP4 (E2M1, one scale of all numbers, E4M3", with_scale_of_e4m3, 16
    ),
)
# What is quantized; each after those beside which it says nothing more.
_PARTS = {
    "key": ("the keys are", ("key",)),
    "value": ("the values are", ("value",)),
    "cache": ("keys and values are", ("key", "value")),
    "query_key": ("query and key are", ("query", "key")),
    "inputs": ("query, key and value are", ("query", "key", "value")),
}


def _conventions(scheme: Scheme) -> Iterator[Convention]:
    """Yield those by which inputs are all quantized in the same way."""
    for part, (words, names) in _PARTS.items():
        for place, sharing in enumerate(scheme.sharings):
            yield _convention(
                f"{part}_in_{scheme.name}{sharing.name}",
                f"{words} quantized to {scheme.meaning}"
                + (f", {sharing.meaning}" if sharing.meaning else ""),
                dict.fromkeys(names, Way(scheme, sharing)),
                (
                    *(f"{other}_in_{scheme.name}{sharing.name}" for other in _simpler(names)),
                    *(f"{part}_in_{scheme.name}{o.name}" for o in scheme.sharings[:place]),
                    # Where no number is small, powers of 2 change no rounding of floats.
                    *(f"{part}_in_{g.name}" for g in FLOATS if scheme in _MICROSCALED),
                ),
            )


def _of_values_along_tokens(scheme: Scheme) -> Iterator[Convention]:
    """Yield those whose blocks lie along the axis over which each product sums."""
    for part in ("value", "cache", "inputs"):
        words, names = _PARTS[part]
        ways = dict.fromkeys(names, Way(scheme, scheme.sharings[0]))
        ways["value"] = Way(scheme, _blocks_of_tokens(scheme.sharings[0].group))
        simpler = [f"{other}_in_{scheme.name}" for other in (part, *_simpler(names))]
        if part != "value":
            simpler.append(f"value_in_{scheme.name}_along_tokens")
        yield _convention(
            f"{part}_in_{scheme.name}_along_tokens",
            f"{words} quantized to {scheme.meaning}, the blocks of the values along the tokens",
            ways,
            tuple(simpler),
        )


def _of_kivi() -> Iterator[Convention]:
    """Yield caches as KIVI makes them: keys by the column, values by the token."""
    columns = (_BY_TOKEN, *map(_by_columns, (128, 64, 32)))
    for bits, tokens, sharing in product((4, 2), (128, 64, 32), columns):
        scheme, by_channel = _with_zero_point(bits), _by_channel_of_tokens(tokens)
        name = f"kivi_in_{bits}_bits_of_{tokens}_tokens{sharing.name}"
        meaning = (
            f"keys and values are quantized to {scheme.meaning}, the keys "
            f"{by_channel.meaning}, the values {sharing.meaning}"
        )
        yield _convention(
            name, meaning, {"key": Way(scheme, by_channel), "value": Way(scheme, sharing)}
        )
        yield _convention(
            f"{name}_but_the_last",
            f"{meaning}; keys that fill no part of {_PART}, and the last {_PART} values, are not",
            {
                "key": Way(scheme, by_channel, exact=lambda count: count % _PART),
                "value": Way(scheme, sharing, exact=lambda _: _PART),
            },
            (name,),
        )


def _of_sage() -> Iterator[Convention]:
    """Yield queries and keys as SageAttention multiplies them, the keys less their mean."""
    int8 = _SCHEMES[0]
    for tokens in (128, 64, 32):
        of_queries, of_keys = _by_tokens(tokens), _by_tokens(64)
        yield _convention(
            f"sage_of_{tokens}_queries",
            f"query and key are quantized to int8, the query {of_queries.meaning}, the key, less "
            f"its mean over the tokens, {of_keys.meaning} (SageAttention)",
            {"query": Way(int8, of_queries), "key": Way(int8, of_keys, less_mean=True)},
        )


def _without_scales(grid: Grid) -> Iterator[Convention]:
    """Yield those whose codes nobody multiplies by their scale again."""
    codes = Scheme(grid.name, grid.name, partial(codes_on_grid, grid), ())
    for part in ("key", "value", "cache", "inputs"):
        words, names = _PARTS[part]
        for place, sharing in enumerate(_OF_HEADS):
            yield _convention(
                f"{part}_in_{grid.name}{sharing.name}_not_scaled_back",
                f"{words} quantized to {grid.name}, {sharing.meaning}, and not multiplied by it "
                "again",
                dict.fromkeys(names, Way(codes, sharing)),
                (
                    "strongest_keys",  # all that is left of scores so large, where keys are few
                    *(f"{o}_in_{grid.name}{sharing.name}_not_scaled_back" for o in _simpler(names)),
                    *(f"{part}_in_{grid.name}{o.name}_not_scaled_back" for o in _OF_HEADS[:place]),
                ),
                apply=left_as_codes,
                fix="multiply what is read from the cache by its scale again: keys by k_scale, "
                "values by v_scale",
            )


def _with_scales_exchanged(grid: Grid) -> Convention:
    scheme = Scheme(grid.name, grid.name, partial(on_grid, grid), ())
    return _convention(
        f"cache_in_{grid.name}_scales_exchanged",
        f"keys and values are quantized to {grid.name}, each with one scale, and multiplied by the "
        "scale of the other",
        dict.fromkeys(("key", "value"), Way(scheme, ALL)),
        apply=with_scales_exchanged,
        fix="multiply keys by k_scale, and values by v_scale",
    )


def _simpler(names: tuple[str, ...]) -> list[str]:
    """Return the parts that consist of fewer inputs."""
    return [part for part, (_, others) in _PARTS.items() if {*others} < {*names}]


def _convention(
    name: str,
    meaning: str,
    ways: Ways,
    variant_of: tuple[str, ...] = (),
    *,
    apply: Callable[[Ways, Recipe], Recipe | None] = quantized,
    fix: str = "give check the inputs as they are when they are dequantized, or judge by --rtol "
    "and --atol",
) -> Convention:
    return Convention(
        name=name,
        topic=topics.QUANTIZED,
        meaning=meaning,
        fix=fix,
        shows="almost any input",
        apply=partial(apply, ways),
        variant_of=variant_of,
    )


QUANTIZED = (
    *(one for scheme in (*_SCHEMES, *_MICROSCALED) for one in _conventions(scheme)),
    *(one for scheme in _MICROSCALED for one in _of_values_along_tokens(scheme)),
    *_of_kivi(),
    *_of_sage(),
    *map(_with_scales_exchanged, _OF_CACHES),
)
NOT_SCALED_BACK = tuple(one for grid in _OF_CACHES for one in _without_scales(grid))

# Those of a kernel that multiplies numbers of 8 bits: name, meaning, and how they are made.
FLOAT8_INPUTS = tuple(
    (
        f"inputs_in_{_E4M3.name}{sharing.name}",
        f"{_PARTS['inputs'][0]} quantized to {_E4M3.name}, {sharing.meaning}",
        dict.fromkeys(_PARTS["inputs"][1], Way(_OF_E4M3, sharing)),
    )
    for sharing in (_NONE, *_OF_HEADS)
)
