"""Subwords joined to words: weights are summed over keys and averaged over queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Array: TypeAlias = npt.NDArray[Any]

# Marks of subwords: WordPiece marks those that continue a word; byte-level BPE and
# SentencePiece mark those that begin one.
_CONTINUES, _BEGINS = "##", ("Ġ", "▁")


class Words(NamedTuple):
    """Words made of tokens: the index of each word's first token, and its name."""

    starts: tuple[int, ...]
    names: tuple[str, ...]


def words_of(tokens: Sequence[str], groups: Sequence[str] | None = None) -> Words:
    """Return the words that tokens make; with groups, neighbours of one group make a word.

    Tokenizers write subwords as ``play ##ing``, ``Ġplay ing`` or ``▁play ing``.
    """
    marked = groups is None and any(token.startswith(_BEGINS) for token in tokens)
    starts = []
    for at, token in enumerate(tokens):
        if groups is not None:
            joined = at > 0 and groups[at] == groups[at - 1]
        elif marked:
            joined = at > 0 and _is_part(token) and not _is_special(tokens[at - 1])
        else:
            joined = at > 0 and token.startswith(_CONTINUES) and token != _CONTINUES
        if not joined:
            starts.append(at)
    ends = [*starts[1:], len(tokens)]
    pairs = zip(starts, ends, strict=True)
    return Words(tuple(starts), tuple("".join(map(_plain, tokens[a:b])) for a, b in pairs))


def _is_part(token: str) -> bool:
    inside = not token.startswith(_BEGINS) and not _is_special(token)
    return inside and any(letter.isalnum() for letter in token)


def _is_special(token: str) -> bool:
    return len(token) > 2 and (token[0], token[-1]) in (("<", ">"), ("[", "]"))


def _plain(token: str) -> str:
    text = token.lstrip("".join(_BEGINS))
    if text.startswith(_CONTINUES):
        text = text.removeprefix(_CONTINUES)
    return text or token


def merged_weights(weights: Array, queries: Words, keys: Words) -> Array:
    """Return weights (…, words, words) from weights (…, L, S)."""
    sums = np.add.reduceat(weights, keys.starts, axis=-1)
    counts = np.diff([*queries.starts, weights.shape[-2]])[:, None]
    mean: Array = np.add.reduceat(sums, queries.starts, axis=-2) / counts.astype(sums.dtype)
    return mean


def merged_hidden(hidden: npt.NDArray[np.bool_], queries: Words, keys: Words) -> Array:
    """Return which words are hidden: all tokens of the key from all tokens of the query."""
    parts = np.logical_and.reduceat(hidden, keys.starts, axis=-1)
    whole: Array = np.logical_and.reduceat(parts, queries.starts, axis=-2)
    return whole
