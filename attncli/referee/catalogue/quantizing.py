"""How inputs are quantized: to which format, which numbers share a scale, and what stays exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee.catalogue.helpers import factors_of
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.grids import Ends
    from attncli.referee.recipe import Recipe

__all__ = [
    "ALL",
    "COLUMNS",
    "TOKENS",
    "Scheme",
    "Sharing",
    "Way",
    "Ways",
    "left_as_codes",
    "quantized",
    "with_scales_exchanged",
]

Array = npt.NDArray[Any]
# Larger inputs, in numbers, are not quantized again and again.
_MOST_NUMBERS = 2**22
# What is made of so few numbers is kept, for other conventions that quantize the same input so.
_FEW_NUMBERS = 2**12
TOKENS, COLUMNS = 2, 3


class Sharing(NamedTuple):
    """Which numbers share a scale: those along some axes of (B, H, L or S, D).

    Where there are groups, so many along one of the axes share it. Blocks are those that a format
    itself has; of columns they are whole.
    """

    name: str
    meaning: str
    axes: tuple[int, ...]
    group: int = 0
    along: int = 0
    blocks: bool = False


ALL = Sharing("_scaled", "with one scale, by the largest magnitude", (0, 1, 2, 3))


class Scheme(NamedTuple):
    """A format, and who shares what: a scale alone, or a scale and a zero point.

    Attributes
    ----------
    rounded : callable
        An array and the ends of what shares a scale in, the quantized array out.
    of_all : bool
        It takes the ends of all numbers, too.
    """

    name: str
    meaning: str
    rounded: Callable[..., Array]
    sharings: tuple[Sharing, ...]
    of_all: bool = False


class Way(NamedTuple):
    """How one input is quantized.

    Attributes
    ----------
    scheme : Scheme
    sharing : Sharing
    exact : callable
        How many of so many tokens, the last ones, are not quantized.
    less_mean : bool
        The mean of all tokens is subtracted before, which changes no weight.
    """

    scheme: Scheme
    sharing: Sharing
    exact: Callable[[int], int] = lambda _: 0
    less_mean: bool = False


# By the names of inputs.
Ways = dict[str, Way]


def quantized(ways: Ways, recipe: Recipe) -> Recipe | None:
    """Put some inputs on a grid, as they are when they are multiplied."""
    if recipe.problem.score not in ("dot", "cosine") or not all(
        _can(way, getattr(recipe.whole, name)) for name, way in ways.items()
    ):
        return None
    given = _known(("factors", recipe.part), recipe, lambda: factors_of(recipe.problem))
    made = {name: _made_once(recipe, name, way, given[name]) for name, way in ways.items()}
    if all(np.array_equal(made[name], given[name]) for name in ways):
        return None
    return replace(vary(recipe, rope=None, **{**given, **made}), codes=True)


def left_as_codes(ways: Ways, recipe: Recipe) -> Recipe | None:
    """Put some inputs into codes that are multiplied as they are, without their scales.

    Nothing is left to chance here: another scale of the scores makes about the same.
    """
    made = quantized(ways, recipe)
    return None if made is None else replace(made, codes=False)


def with_scales_exchanged(ways: Ways, recipe: Recipe) -> Recipe | None:
    """Multiply the codes of the keys by the scale of the values, and the other way round."""
    made = left_as_codes(ways, recipe)
    whole = _known("whole factors", recipe, lambda: factors_of(recipe.whole))
    of_keys, of_values = (np.abs(whole.get(name, 0)).max() for name in ("key", "value"))
    if made is None or not (of_keys and of_values):
        return None
    key, value, ratio = made.problem.key, np.asarray(made.problem.value), of_values / of_keys
    return vary(made, key=key * ratio, value=value / ratio)


def _can(way: Way, array: Array | None) -> bool:
    """Return whether an input is small enough, and has more than one group, or whole blocks."""
    if array is None or array.size > _MOST_NUMBERS:
        return False
    sharing = way.sharing
    length = int(array.shape[sharing.along])
    if sharing.blocks:
        return sharing.along == TOKENS or length % sharing.group == 0
    return length > sharing.group


def _made_once(recipe: Recipe, name: str, way: Way, given: Array) -> Array:
    """Do as `_made` does, once for each way where an input is small."""
    if given.size > _FEW_NUMBERS:
        return _made(recipe, name, way, given)
    made: Array = _known((recipe.part, name, way), recipe, lambda: _made(recipe, name, way, given))
    return made


def _made(recipe: Recipe, name: str, way: Way, given: Array) -> Array:
    """Return an input as it is when it went through its format."""
    dtype = np.float64 if getattr(recipe.whole, name).dtype == np.float64 else np.float32
    array: Array = given.astype(dtype)
    mean = array.mean(axis=TOKENS, keepdims=True) if way.less_mean else None
    if mean is not None:
        array = array - mean
    shared = [way.sharing, *([ALL] if way.scheme.of_all else [])]
    ends = [_shared_ends(recipe, name, array, sharing) for sharing in shared]
    made = way.scheme.rounded(array, *ends)
    if mean is not None:
        made = made + mean
    exact = min(way.exact(array.shape[TOKENS]), array.shape[TOKENS])
    if exact:
        made[:, :, -exact:] = given[:, :, -exact:]
    return made.astype(np.float64)


def _known(what: object, recipe: Recipe, work_out: Callable[[], Any]) -> Any:
    """Return what was worked out before, for another convention of the same search."""
    if what not in recipe.memory:
        recipe.memory[what] = work_out()
    return recipe.memory[what]


def _shared_ends(recipe: Recipe, name: str, array: Array, sharing: Sharing) -> Ends | None:
    """Return the ends of those that share a scale, in the whole problem; None without a scale."""
    if not sharing.axes:
        return None
    batch, head, rows = recipe.part
    cut = {0: batch, 1: head, 2: rows if name == "query" else None}
    if all(part is None for axis, part in cut.items() if axis in sharing.axes):
        return _ends(array, sharing)
    whole = _known("whole factors", recipe, lambda: factors_of(recipe.whole))
    found = _known(("ends", name, sharing), recipe, lambda: _extremes(whole[name], sharing))
    shared = recipe.whole.shape[1] // getattr(recipe.whole, name).shape[1]
    low, high = (
        _spread(
            each[
                _one(batch, each.shape[0]),
                _one(None if head is None else head // shared, each.shape[1]),
            ],
            sharing,
            whole[name].shape[sharing.along],
        )
        for each in found
    )
    own = slice(*rows) if rows and low.shape[2] > 1 else slice(None)
    return low[:, :, own], high[:, :, own]


def _one(index: int | None, length: int) -> slice:
    return slice(None) if index is None or length == 1 else slice(index, index + 1)


def _ends(array: Array, sharing: Sharing) -> Ends:
    """Return least and largest of those that share a scale, broadcast to the array."""
    length = array.shape[sharing.along]
    low, high = (_spread(each, sharing, length) for each in _extremes(array, sharing))
    return low, high


def _extremes(array: Array, sharing: Sharing) -> Ends:
    """Return least and largest of those that share a scale, once for each group."""
    return _reduced(np.minimum, array, sharing), _reduced(np.maximum, array, sharing)


def _reduced(extreme: np.ufunc, array: Array, sharing: Sharing) -> Array:
    if not sharing.group:
        return np.asarray(extreme.reduce(array, axis=sharing.axes, keepdims=True))
    starts = np.arange(0, array.shape[sharing.along], sharing.group)
    others = tuple(axis for axis in sharing.axes if axis != sharing.along)
    groups = extreme.reduceat(array, starts, axis=sharing.along)
    return np.asarray(extreme.reduce(groups, axis=others, keepdims=True))


def _spread(groups: Array, sharing: Sharing, length: int) -> Array:
    """Return what was found for each group at all its places, along an axis of some length."""
    if not sharing.group:
        return groups
    starts = np.arange(0, length, sharing.group)
    return np.repeat(groups, np.diff(starts, append=length), axis=sharing.along)
