"""Mistakes with the rules that hide by position: causal and window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.referee.convention import Convention, without
from attncli.referee.recipe import Recipe, band

__all__ = ["CAUSAL", "WINDOW"]

Apply = Callable[[Recipe], Recipe | None]
Offsets = tuple[int, ...]


def _with_rule(recipe: Recipe, name: str, rule: npt.NDArray[np.bool_]) -> Recipe:
    return replace(recipe, rules={**recipe.rules, name: rule})


def _causal_at(offsets: Callable[[Recipe], Offsets | None], *, given: bool = True) -> Apply:
    """Make an `apply` with the causal rule, and the window, at other offsets."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem, visible = recipe.problem, recipe.problem.visible
        first = offsets(recipe)
        if first is None:
            return None
        # The first query of a slice is not the first query.
        there = tuple(offset + recipe.start for offset in first)
        if there == visible.offsets if given else visible.causal:
            return None
        if visible.causal or not given:
            recipe = _with_rule(recipe, "causal", band(problem, causal=True, offsets=there))
        if visible.window is not None and given:
            window = band(problem, window=visible.window, offsets=there)
            recipe = _with_rule(recipe, "window", window)
        return recipe if visible.causal or visible.window or not given else None

    return apply


def _causal_shifted(step: int) -> Apply:
    """Make an `apply` with the causal diagonal moved, and nothing else."""

    def apply(recipe: Recipe) -> Recipe | None:
        if not recipe.problem.visible.causal:
            return None
        there = tuple(offset + step for offset in recipe.problem.visible.offsets)
        return _with_rule(recipe, "causal", band(recipe.problem, causal=True, offsets=there))

    return apply


def _reversed(recipe: Recipe) -> Recipe | None:
    if not recipe.problem.visible.causal:
        return None
    return _with_rule(recipe, "causal", band(recipe.problem, window=(0, None)))


def _corner(recipe: Recipe) -> Offsets:
    """Return the offsets that align the last query with the last key."""
    _, _, queries, keys = recipe.whole.shape
    return tuple(length - queries for length in recipe.problem.visible.kv_lengths or (keys,))


def _corner_of_all(recipe: Recipe) -> Offsets | None:
    """Return the same, padding counted as keys; None where there is none."""
    _, _, queries, keys = recipe.whole.shape
    lengths = recipe.problem.visible.kv_lengths or (keys,)
    return (keys - queries,) if min(lengths) < keys else None


def _far_corner(recipe: Recipe) -> Offsets | None:
    """Return the corner's offsets; None where both corners are one."""
    there = _corner(recipe)
    return there if any(there) else None


def _causal(name: str, meaning: str, apply: Apply, **more: Any) -> Convention:
    fix = more.pop("fix", "hide key j from query i where j > i + offset, and only there")
    shows = more.pop("shows", "more than one key")
    return Convention(
        name=name, topic="causal", meaning=meaning, fix=fix, shows=shows, apply=apply, **more
    )


_ALIGNED = {"shows": "queries and keys of different number"}

CAUSAL = (
    _causal(
        "causal_missing",
        "the causal mask is missing: queries see later keys",
        lambda recipe: without(recipe, "causal") if "causal" in recipe.rules else None,
        option=lambda _: "leave --causal out",
    ),
    _causal(
        "causal_unasked",
        "a causal mask is applied that nobody asked for",
        _causal_at(lambda _: (0,), given=False),
        fix="leave the causal mask out, or state that the problem is causal",
        option=lambda _: "--causal --causal-align top-left",
    ),
    _causal(
        "causal_unasked_bottom_right",
        "a causal mask is applied that nobody asked for, aligned with the last key",
        _causal_at(_far_corner, given=False),
        fix="leave the causal mask out, or state that the problem is causal",
        option=lambda _: "--causal --causal-align bottom-right",
        **_ALIGNED,
    ),
    _causal(
        "causal_top_left",
        "the causal mask is aligned top-left: query 0 stands at key 0",
        _causal_at(lambda _: (0,)),
        fix="add the offset, S − L or the length of the cache, to the query's index",
        option=lambda _: "--causal-align top-left",
        **_ALIGNED,
    ),
    _causal(
        "causal_bottom_right",
        "the causal mask is aligned bottom-right: the last query stands at the last key",
        _causal_at(_far_corner),
        fix="compare key j with query i itself, without adding S − L",
        option=lambda _: "--causal-align bottom-right",
        **_ALIGNED,
    ),
    _causal(
        "causal_bottom_right_of_padding",
        "the causal mask is aligned with the last key of the padded length, not the real one",
        _causal_at(_corner_of_all),
        fix="align with kv_length − L of each batch entry",
        **_ALIGNED,
    ),
    _causal(
        "diagonal_hidden",
        "the diagonal is hidden too: a query does not see its own key (j < i instead of j ≤ i)",
        _causal_shifted(-1),
    ),
    _causal(
        "causal_one_late",
        "the causal mask begins one key late: a query sees the next key (j ≤ i + 1)",
        _causal_shifted(1),
    ),
    _causal(
        "causal_reversed",
        "the causal mask is the wrong triangle: a query sees itself and the later keys",
        _reversed,
    ),
)


def _window_as(change: Callable[[int | None, int | None], tuple[int | None, int | None]]) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        window = recipe.problem.visible.window
        if window is None:
            return None
        new = change(*window)
        if new == window or any(side is not None and side < 0 for side in new):
            return None
        return _with_rule(recipe, "window", band(recipe.problem, window=new))

    return apply


def _step(side: int | None, step: int) -> int | None:
    return None if side is None else side + step


def _window_moved(left: int, right: int) -> Apply:
    return _window_as(lambda a, b: (_step(a, left), _step(b, right)))


def _with_first_keys(count: int) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        if "window" not in recipe.rules:
            return None
        first = np.arange(recipe.problem.shape[3]) < count
        return _with_rule(recipe, "window", recipe.rules["window"] | first)

    return apply


def _window(name: str, meaning: str, apply: Apply) -> Convention:
    return Convention(
        name=name,
        topic="window",
        meaning=meaning,
        fix="see key j where i + offset − left ≤ j ≤ i + offset + right, itself included",
        shows="more keys than the window holds",
        apply=apply,
        option=lambda _: "--window",
    )


def _windows() -> Iterator[Convention]:
    for step, word, how in ((-1, "short", "narrow"), (1, "long", "wide")):
        for side, left, right in (("left", step, 0), ("right", 0, step), ("both", step, step)):
            where = "both sides" if side == "both" else f"the {side}"
            yield _window(
                f"window_{side}_{word}",
                f"the window is off by one: a key too {how} on {where}",
                _window_moved(left, right),
            )


WINDOW = (
    _window(
        "window_ignored",
        "the window is ignored",
        lambda recipe: without(recipe, "window") if "window" in recipe.rules else None,
    ),
    *_windows(),
    _window(
        "window_one_sided",
        "the window is one-sided: it ends at the query itself",
        _window_as(lambda left, _: (left, 0)),
    ),
    _window(
        "window_left_only",
        "the window bounds the left side only",
        _window_as(lambda left, _: (left, None)),
    ),
    _window(
        "window_right_only",
        "the window bounds the right side only",
        _window_as(lambda _, right: (None, right)),
    ),
    _window(
        "window_halved",
        "the window's size is taken for both sides together",
        _window_as(lambda left, right: (_half(left), _half(right))),
    ),
    _window("window_swapped", "the window's sides are exchanged", _window_as(lambda a, b: (b, a))),
    _window("window_first_key", "the first key is seen from everywhere", _with_first_keys(1)),
    _window(
        "window_first_four",
        "the first four keys are seen from everywhere (attention sinks of StreamingLLM)",
        _with_first_keys(4),
    ),
)


def _half(side: int | None) -> int | None:
    return None if side is None else side // 2
