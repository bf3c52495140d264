"""Causal rules and windows that lie elsewhere than the problem states, inferred from a context."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import counted
from attncli.referee import topics
from attncli.referee.convention import Convention, with_rule
from attncli.referee.fitted.cut_keys import WHOLE, Family, Ints, Spans, first_keys, found_numbers
from attncli.referee.fitted.places import told
from attncli.referee.options import placed_at
from attncli.referee.recipe import band

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["another_offset", "ends_of", "moved_to", "prefix_unasked"]

# More would take seconds.
_MOST_STEPS = 2**19


def another_offset(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that causal rule and window lie at another diagonal."""
    whole = cases[0].recipe.whole
    visible = whole.visible
    unasked = not visible.causal and visible.window is None
    steps = _steps(cases, unasked=unasked)
    if steps is None:
        return None
    offsets = tuple(visible.offset(b) + step for b, step in enumerate(steps))
    make = partial(
        Convention,
        apply=lambda recipe: moved_to(recipe, steps, causal=unasked or visible.causal),
        topic=topics.CAUSAL,
        shows="more than one key",
        needs=WHOLE,
        option=lambda problem: placed_at(offsets, problem, causal=unasked),
    )
    if unasked:
        return make(
            "causal_unasked_at_another_offset",
            "a causal mask is applied, but the problem is not causal: "
            f"{_stands(offsets, range(len(offsets)))}",
            fix="leave the causal mask out, or state that the problem is causal, and where its "
            "queries stand",
        )
    moved = [b for b, step in enumerate(steps) if step]
    return make(
        "another_offset",
        f"queries stand at other keys than the problem states: {_stands(offsets, moved)}",
        fix="add the offset that the problem states to the index of a query: the number of keys "
        "that come before query 0",
    )


def _steps(cases: Sequence[Case], *, unasked: bool) -> tuple[int, ...] | None:
    """Return how many keys further the queries of each batch entry stand, if files show that."""
    whole = cases[0].recipe.whole
    visible, most = whole.visible, max(whole.shape[2:])
    only_a_length = unasked and whole.shape[2] == 1
    if only_a_length or most > _MOST_STEPS:
        return None
    numbers = np.arange(-most, most + 1)
    family = Family(
        numbers,
        frozenset({"causal", "window"}),
        lambda problem, b, i: ends_of(problem, i + problem.visible.offset(b) + numbers),
        (most if unasked else 0,) * whole.shape[0],
    )
    steps = found_numbers(cases, family)
    # No rule at all, or one that leaves nothing, is something else.
    end = whole.shape[3] - 1 if visible.window is None else most
    for b, step in enumerate(steps or ()):
        if step and not -whole.shape[2] < visible.offset(b) + step < end:
            return None
    return steps


def _stands(offsets: tuple[int, ...], entries: Sequence[int]) -> str:
    """Say where the queries of some batch entries stand."""
    there = [f"i + {o}" if o > 0 else f"i − {-o}" if o else "i" for o in offsets]
    if len(set(offsets)) == 1:
        return f"query i at key {there[0]}"
    return told(((f"query i of batch entry {b}", f"key {there[b]}") for b in entries), "at")


def ends_of(problem: Problem, positions: Ints) -> Spans:
    """Return the keys that a query sees at each position; causal where no rule is stated."""
    visible, keys = problem.visible, problem.shape[3]
    left, right = visible.window or (None, None)
    if visible.causal or visible.window is None:
        right = 0
    first = np.zeros_like(positions) if left is None else positions - left
    end = np.full_like(positions, keys) if right is None else positions + right + 1
    return np.clip(first, 0, keys), np.clip(end, 0, keys)


def prefix_unasked(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that every query sees the first keys, beside those before it.

    References
    ----------
    Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", section 3.2.1, for causal masks with a prefix.
    """
    whole = cases[0].recipe.whole
    visible, keys = whole.visible, whole.shape[3]
    # Of one query, a prefix is only another length.
    if not visible.causal or visible.window is not None or whole.shape[2] == 1:
        return None
    numbers = np.arange(keys)
    family = Family(
        numbers,
        frozenset({"causal"}),
        lambda problem, b, i: (
            np.zeros_like(numbers),
            np.maximum(numbers, min(max(i + problem.visible.offset(b) + 1, 0), keys)),
        ),
        (0,) * whole.shape[0],
    )
    prefixes = found_numbers(cases, family)
    if prefixes is None:
        return None
    seen = np.arange(keys) < np.array(prefixes)[:, None, None, None]
    pairs = [(f"batch entry {b}", counted(n, "key")) for b, n in enumerate(prefixes)]
    words = f"{first_keys(prefixes[0])} {'key' if prefixes[0] == 1 else 'keys'}"
    if len(set(prefixes)) > 1:
        words = f"the first keys ({told(pairs, 'has')})"
    return Convention(
        "prefix_unasked",
        f"every query sees {words}, also those that stand before their end: a prefix, which the "
        "problem does not state",
        lambda recipe: with_rule(recipe, "causal", recipe.rules["causal"] | seen),
        topic=topics.CAUSAL,
        fix="hide later keys from the queries of the prefix, too; or state a mask in the place of "
        "the causal rule",
        shows="more than one key",
        needs=WHOLE,
    )


def moved_to(recipe: Recipe, steps: tuple[int, ...], *, causal: bool) -> Recipe:
    """Return the recipe with causal rule and window so many keys further."""
    visible = recipe.problem.visible
    there = tuple(visible.offset(b) + step for b, step in enumerate(steps))
    if causal:
        recipe = with_rule(recipe, "causal", band(recipe.problem, causal=True, offsets=there))
    if visible.window is not None:
        moved = band(recipe.problem, window=visible.window, offsets=there)
        recipe = with_rule(recipe, "window", moved)
    return recipe
