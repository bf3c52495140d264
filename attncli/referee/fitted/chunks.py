"""Chunks: a query sees only keys of its own part of the sequence, inferred from a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import topics
from attncli.referee.convention import Convention, with_rule
from attncli.referee.fitted.cut_keys import WHOLE, Family, found_numbers
from attncli.referee.recipe import distance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.fitted.cut_keys import Spans
    from attncli.referee.recipe import Recipe

__all__ = ["chunks_unasked"]


def chunks_unasked(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that a query sees only keys of its chunk, up to its own.

    References
    ----------
    Llama 4, ``attention_chunk_size`` in its configuration.
    """
    whole = cases[0].recipe.whole
    batch, _, queries, keys = whole.shape
    # Of one query, a chunk is only a window.
    if not whole.visible.causal or queries == 1:
        return None
    sizes = np.arange(1, keys + 1)

    def spans(problem: Problem, b: int, i: int) -> Spans:
        position = i + problem.visible.offset(b)
        first = np.clip(position // sizes * sizes, 0, keys)
        return first, np.full_like(sizes, min(max(position + 1, 0), keys))

    # A chunk of all keys is none; beside a window, none is right.
    right = (keys if whole.visible.window is None else 0,) * batch
    found = found_numbers(cases, Family(sizes, frozenset({"window"}), spans, right))
    if found is None or len(set(found)) > 1:
        return None
    (size,) = set(found)
    # A boundary that no other follows as far behind it is that of two parts of any length.
    if not 1 < size <= keys // 2:
        return None
    words = "" if whole.visible.window is None else ", not in the window"
    return Convention(
        "chunks_unasked",
        f"a query sees only keys of its own chunk of {size} tokens{words}, as in the local layers "
        "of Llama 4",
        lambda recipe: _in_chunks(recipe, size),
        topic=topics.WINDOW,
        fix="let a query see the keys that its window leaves, or without a window all before it",
        shows="more keys than a chunk has",
        needs=WHOLE,
    )


def _in_chunks(recipe: Recipe, size: int) -> Recipe:
    keys = np.arange(recipe.problem.shape[3])
    positions = distance(recipe.problem) + keys
    return with_rule(recipe, "window", keys // size == positions // size)
