"""Mistakes with the causal rule."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import topics
from attncli.referee.catalogue.helpers import changed, dropped
from attncli.referee.convention import Apply, Convention, with_rule, with_term, without
from attncli.referee.options import aligned, also_causal, stands_in_corner, without_placed
from attncli.referee.recipe import Recipe, band, recipe_of, vary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CAUSAL"]

Offsets = tuple[int, ...]


def _causal_at(offsets: Callable[[Recipe], Offsets | None], *, given: bool = True) -> Apply:
    """Make an `apply` with the causal rule, and the window, at other offsets."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem, visible = recipe.problem, recipe.problem.visible
        there = _in_slice(recipe, offsets)
        if there is None or (there == visible.offsets if given else visible.causal):
            return None
        if visible.causal or not given:
            recipe = with_rule(recipe, "causal", band(problem, causal=True, offsets=there))
        if visible.window is not None and given:
            window = band(problem, window=visible.window, offsets=there)
            recipe = with_rule(recipe, "window", window)
        return recipe if visible.causal or visible.window or not given else None

    return apply


def _in_slice(recipe: Recipe, offsets: Callable[[Recipe], Offsets | None]) -> Offsets | None:
    """Return offsets of the whole for a slice, whose first query is not the first query."""
    whole = offsets(recipe)
    return None if whole is None else tuple(offset + recipe.start for offset in whole)


def _all_at(offsets: Callable[[Recipe], Offsets | None]) -> Apply:
    """Make an `apply` with ALiBi and rope at other offsets, as well as the rules."""
    rules_there = _causal_at(offsets)

    def apply(recipe: Recipe) -> Recipe | None:
        problem, there = recipe.problem, _in_slice(recipe, offsets)
        moved = rules_there(recipe)
        positional = problem.alibi_slopes is not None or problem.rope is not None
        if moved is None or there is None or not positional:
            return None
        moved = vary(moved, visible=problem.visible._replace(offsets=there))
        alibi = recipe_of(moved.problem).terms.get("alibi")
        return moved if alibi is None else with_term(moved, "alibi", alibi)

    return apply


def _causal_shifted(step: int) -> Apply:
    """Make an `apply` with the causal diagonal moved, and nothing else."""

    def apply(recipe: Recipe) -> Recipe | None:
        if not recipe.problem.visible.causal:
            return None
        there = tuple(offset + step for offset in recipe.problem.visible.offsets)
        return with_rule(recipe, "causal", band(recipe.problem, causal=True, offsets=there))

    return apply


def _strictly_at(offsets: Callable[[Recipe], Offsets | None]) -> Apply:
    """Make an `apply` with the causal rule at other offsets, and its diagonal hidden there."""
    rules_there = _causal_at(offsets)

    def apply(recipe: Recipe) -> Recipe | None:
        moved, there = rules_there(recipe), _in_slice(recipe, offsets)
        if moved is None or there is None or not recipe.problem.visible.causal:
            return None
        before = tuple(offset - 1 for offset in there)
        return with_rule(moved, "causal", band(recipe.problem, causal=True, offsets=before))

    return apply


def _reversed(recipe: Recipe) -> Recipe | None:
    if not recipe.problem.visible.causal:
        return None
    return with_rule(recipe, "causal", band(recipe.problem, window=(0, None)))


def _corner(recipe: Recipe) -> Offsets:
    """Return the offsets that align the last query with the last key."""
    return recipe.problem.visible._replace(queries=recipe.whole.shape[2]).bottom_right


def _corner_of_all(recipe: Recipe) -> Offsets | None:
    """Return the corner's offsets, padding counted as keys; None where there is none."""
    _, _, queries, keys = recipe.whole.shape
    lengths = recipe.problem.visible.kv_lengths or (keys,)
    return (keys - queries,) if min(lengths) < keys else None


def _with_padding(recipe: Recipe) -> Recipe | None:
    """Let padded keys count, for what is seen and for where queries stand."""
    moved = _all_at(_corner_of_all)(recipe)
    return (
        moved if moved is None or "kv_lengths" not in moved.rules else without(moved, "kv_lengths")
    )


def _far_corner(recipe: Recipe) -> Offsets | None:
    """Return the corner's offsets; None where both corners are one."""
    there = _corner(recipe)
    return there if any(there) else None


def _beside(step: int) -> Callable[[Recipe], Offsets]:
    """Make a function that returns the offsets one step further than the problem states."""
    return lambda recipe: tuple(
        offset - recipe.start + step for offset in recipe.problem.visible.offsets
    )


def _own(recipe: Recipe) -> Offsets | None:
    """Return the offsets that the problem states; None where they are those of a corner."""
    there = recipe.whole.visible.offsets
    return None if not any(there) or there == _corner(recipe) else there


_causal = partial(
    Convention,
    topic=topics.CAUSAL,
    fix="hide key j from query i where j > i + offset, and only there",
    shows="more than one key",
)


_aligned = partial(_causal, shows="different numbers of queries and keys")

CAUSAL = (
    _causal(
        "causal_missing",
        "the causal mask is missing: queries see later keys",
        dropped("causal"),
        option=without_placed("--causal"),
    ),
    _causal(
        "causal_unasked",
        "a causal mask is applied, but the problem is not causal",
        _causal_at(lambda _: (0,), given=False),
        fix="leave the causal mask out, or state that the problem is causal",
        option=also_causal("top-left"),
    ),
    _causal(
        "causal_unasked_strict",
        "a causal mask that also hides the diagonal (j < i) is applied, but the problem is not "
        "causal",
        _causal_at(lambda _: (-1,), given=False),
        fix="leave the causal mask out; where there is one, a query sees its own key",
    ),
    _aligned(
        "causal_unasked_bottom_right",
        "a causal mask aligned with the last key is applied, but the problem is not causal",
        _causal_at(_far_corner, given=False),
        fix="leave the causal mask out, or state that the problem is causal",
        option=also_causal("bottom-right"),
    ),
    _causal(
        "causal_unasked_at_the_offset",
        "a causal mask is applied where the queries stand, but the problem is not causal",
        _causal_at(_own, given=False),
        fix="leave the causal mask out, or state that the problem is causal",
        option=lambda _: "--causal",
    ),
    _aligned(
        "causal_top_left",
        "the causal mask is aligned top-left: query 0 stands at key 0",
        _causal_at(lambda _: (0,)),
        fix="add the offset, S − L or the length of the cache, to the query's index",
        option=aligned("top-left"),
    ),
    _aligned(
        "causal_bottom_right",
        "the causal mask is aligned bottom-right: the last query stands at the last key",
        _causal_at(_far_corner),
        fix="compare key j with query i itself, without adding S − L; or, where that is meant, "
        "state --causal-align bottom-right",
        option=aligned("bottom-right"),
    ),
    *(
        _aligned(
            f"causal_{word.replace('-', '_')}_strict",
            f"the causal mask is aligned {word}, and hides its diagonal too (j < i instead of "
            "j ≤ i)",
            _strictly_at(offsets),
        )
        for word, offsets in (("top-left", lambda _: (0,)), ("bottom-right", _far_corner))
    ),
    _aligned(
        "positions_top_left",
        "all positions are aligned top-left, those of ALiBi or the rotary embedding too: query 0 "
        "stands at key 0",
        _all_at(lambda _: (0,)),
        fix="add the offset, S − L or the length of the cache, to the query's index",
        option=aligned("top-left", positions=True),
    ),
    _aligned(
        "positions_bottom_right",
        "all positions are aligned bottom-right, those of ALiBi or the rotary embedding too: the "
        "last query stands at the last key",
        _all_at(_far_corner),
        fix="take the query's index itself for its position, without adding S − L",
        option=aligned("bottom-right", positions=True),
    ),
    *(
        _causal(
            f"positions_one_{word}",
            f"queries stand one position too {word}, for the causal rule, the window, ALiBi and "
            "the rotary embedding alike",
            _all_at(_beside(step)),
            fix="query i stands at i + offset: the offset is the number of keys before query 0",
        )
        for word, step in (("late", 1), ("early", -1))
    ),
    _aligned(
        "causal_bottom_right_of_padding",
        "the causal mask is aligned with the last padded key, not with the last real one",
        _causal_at(_corner_of_all),
        fix="align with kv_length − L of each batch entry",
    ),
    _aligned(
        "positions_bottom_right_of_padding",
        "all positions are aligned with the last padded key, those of ALiBi or the rotary "
        "embedding too",
        _all_at(_corner_of_all),
        fix="align with kv_length − L of each batch entry",
    ),
    _aligned(
        "padding_counted_as_keys",
        "padded keys count as real ones: they get weight, and all positions are aligned with the "
        "last of them, those of ALiBi or the rotary embedding too",
        _with_padding,
        fix="hide the keys from kv_length on, and align with kv_length − L of each batch entry",
        option=lambda problem: "leave --kv-lengths out" if stands_in_corner(problem) else "",
        needs=frozenset({"rows"}),
    ),
    _causal(
        "diagonal_hidden",
        "the diagonal is hidden too: a query does not see its own key (j < i instead of j ≤ i)",
        _causal_shifted(-1),
    ),
    _causal(
        "causal_one_late",
        "the causal mask begins one key late: a query also sees the next key (j ≤ i + 1)",
        _causal_shifted(1),
    ),
    _causal(
        "causal_inverted",
        "the causal mask is inverted: a query sees only the later keys",
        changed("causal", np.logical_not),
        fix="hide where the triangle of ones (tril) is 0, not where it is 1",
    ),
    _causal(
        "causal_reversed",
        "the causal mask is the wrong triangle: a query sees itself and the later keys",
        _reversed,
    ),
)
