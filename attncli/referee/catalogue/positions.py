"""Mistakes in the positional encoding that is added to embeddings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.numerics.positions import BASE, sinusoidal
from attncli.referee import topics
from attncli.referee.catalogue.helpers import SOURCES, made_again, of_embeddings

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.catalogue.helpers import Given
    from attncli.referee.convention import Apply, Convention

__all__ = ["POSITIONS"]

Array = npt.NDArray[Any]
_FIX = (
    "column 2i of row p is sin(p / 10000^(2i/W)), column 2i + 1 its cosine; p counts from 0, and "
    "the encoding is added once"
)


def _waves(exponents: Array, length: int) -> Array:
    """Return p / 10000^e for each position p and exponent e."""
    waves: Array = np.multiply.outer(np.arange(length), BASE**-exponents)
    return waves


def _interleaved(one: Array, other: Array, width: int) -> Array:
    """Return two halves column by column in turn."""
    both = np.stack([one, other], axis=-1).reshape(len(one), -1)
    cut: Array = both[:, :width]
    return cut


def _concatenated(x: Array) -> Array:
    length, width = x.shape[-2:]
    angles = _waves(np.arange(0, width, 2) / width, length)
    halves: Array = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    return x + halves[:, :width]


def _exchanged(x: Array) -> Array:
    length, width = x.shape[-2:]
    angles = _waves(np.arange(0, width, 2) / width, length)
    return x + _interleaved(np.cos(angles), np.sin(angles), width)


def _from_one(x: Array) -> Array:
    return x + sinusoidal(*x.shape[-2:], first=1)


def _own_exponents(x: Array) -> Array:
    length, width = x.shape[-2:]
    angles = _waves(np.arange(width) / width, length)
    return x + np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))


def _exponents_times(factor: float, x: Array) -> Array:
    length, width = x.shape[-2:]
    angles = _waves(factor * np.arange(0, width, 2) / width, length)
    return x + _interleaved(np.sin(angles), np.cos(angles), width)


def _double_own_exponents(x: Array) -> Array:
    length, width = x.shape[-2:]
    angles = _waves(2 * np.arange(width) / width, length)
    return x + np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))


def _alone(x: Array) -> Array:
    return np.broadcast_to(sinusoidal(*x.shape[-2:]), x.shape)


def _of_first_token(x: Array) -> Array:
    return x + sinusoidal(1, x.shape[-1])


def _twice(x: Array) -> Array:
    return x + 2 * sinusoidal(*x.shape[-2:])


def _of_entries(x: Array) -> Array:
    """Add row b to every token of batch entry b, as a table for (L, B, W) does to (B, L, W)."""
    return x + sinusoidal(len(x), x.shape[-1])[:, None]


def _along_the_batch(given: Given) -> Given | None:
    # Where there is one entry, each token gets the first row.
    if any(given[name].ndim != 3 for name in SOURCES & set(given)):
        return None
    return _exchanged_for(_of_entries, given)


def _embeddings_scaled(given: Given) -> Given:
    """Multiply the embeddings, and then add positions, if there are any."""
    place = sinusoidal if "positions" in given else _nowhere
    rest = {name: value for name, value in given.items() if name != "positions"}
    wide = {name: widen(given[name], np.float64) for name in SOURCES & set(given)}
    return rest | {n: x * np.sqrt(x.shape[-1]) + place(*x.shape[-2:]) for n, x in wide.items()}


def _nowhere(_: int, __: int) -> float:
    return 0.0


def _placed(place: Callable[[Array], Array]) -> Apply:
    return made_again(partial(_exchanged_for, place))


def _exchanged_for(place: Callable[[Array], Array], given: Given) -> Given | None:
    if "positions" not in given:
        return None
    rest = {name: value for name, value in given.items() if name != "positions"}
    return rest | {n: place(widen(given[n], np.float64)) for n in SOURCES & set(given)}


def _asked_for(given: Given) -> Given | None:
    return None if "positions" in given else {**given, "positions": "sinusoidal"}


def _other_encoding(name: str, meaning: str, place: Callable[[Array], Array]) -> Convention:
    return of_embeddings(name, topics.POSITIONS, meaning, _FIX, _placed(place))


POSITIONS = (
    _other_encoding(
        "positions_concatenated",
        "the positional encoding has all sines first and then all cosines, but they should "
        "alternate",
        _concatenated,
    ),
    _other_encoding(
        "positions_cosine_first",
        "sine and cosine of the positional encoding are exchanged",
        _exchanged,
    ),
    _other_encoding("positions_from_one", "positions are counted from 1, not from 0", _from_one),
    _other_encoding(
        "positions_own_exponents",
        "each column j of the positional encoding has its own frequency, 10000^(−j/W), but "
        "sine and cosine should share one",
        _own_exponents,
    ),
    _other_encoding(
        "positions_double_exponents",
        "the exponents of the positional encoding are twice as large as they should be: 2j/W for "
        "column j = 2i",
        partial(_exponents_times, 2),
    ),
    _other_encoding(
        "positions_halved_exponents",
        "the exponents of the positional encoding are half as large as they should be: i/W for "
        "columns 2i and 2i + 1",
        partial(_exponents_times, 0.5),
    ),
    _other_encoding(
        "positions_double_own_exponents",
        "column j of the positional encoding has the frequency 10000^(−2j/W): j counts columns, "
        "not pairs of them, and sine and cosine should share one",
        _double_own_exponents,
    ),
    _other_encoding(
        "positions_alone",
        "the positional encoding takes the place of the embeddings, to which it should be added",
        _alone,
    ),
    _other_encoding(
        "positions_of_first_token",
        "every token gets the positional encoding of position 0",
        _of_first_token,
    ),
    _other_encoding("positions_twice", "the positional encoding is added twice", _twice),
    of_embeddings(
        "embeddings_scaled",
        topics.POSITIONS,
        "the embeddings are multiplied by √W, before positions are added, if any are",
        "leave √W out, or give X as it is after the product",
        made_again(_embeddings_scaled),
    ),
    of_embeddings(
        "positions_along_the_batch",
        topics.POSITIONS,
        "each token gets the positional encoding of its batch entry's number, not of its own",
        "add the encoding along the tokens: a table for (L, B, W) does not fit (B, L, W)",
        made_again(_along_the_batch),
    ),
    of_embeddings(
        "positions_unasked",
        topics.POSITIONS,
        "sinusoidal positions are added to the embeddings but the problem states none",
        "leave the positional encoding out, or state it",
        made_again(_asked_for),
        option="--positions sinusoidal",
    ),
)
