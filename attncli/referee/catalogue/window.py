"""Mistakes with the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee import topics
from attncli.referee.catalogue.helpers import changed, dropped
from attncli.referee.convention import Apply, Convention, with_rule, without
from attncli.referee.options import windowed, without_placed
from attncli.referee.recipe import Recipe, band

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = ["WINDOW"]

Sides = tuple[int | None, int | None]
Change = Callable[[int | None, int | None], Sides]


def _window_as(change: Change) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        window = recipe.problem.visible.window
        if window is None:
            return None
        new = change(*window)
        if new == window or any(side is not None and side < 0 for side in new):
            return None
        return with_rule(recipe, "window", band(recipe.problem, window=new))

    return apply


def _step(side: int | None, step: int) -> int | None:
    return None if side is None else side + step


def _moved(left: int, right: int) -> Change:
    return lambda a, b: (_step(a, left), _step(b, right))


def _half(side: int | None) -> int | None:
    return None if side is None else side // 2


def _symmetric(recipe: Recipe) -> Recipe | None:
    window = recipe.problem.visible.window
    if window is None or window[0] is None:
        return None
    return _window_as(lambda left, _: (left, left))(without(recipe, "causal"))


def _with_first_keys(count: int) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        if "window" not in recipe.rules:
            return None
        first = np.arange(recipe.problem.shape[3]) < count
        return with_rule(recipe, "window", recipe.rules["window"] | first)

    return apply


def _trimmed(recipe: Recipe) -> Recipe | None:
    """Hide what lies before the window of the last query from all queries."""
    visible, whole = recipe.problem.visible, recipe.whole
    if visible.window is None or visible.window[0] is None or whole.shape[2] == 1:
        return None
    entries = range(whole.shape[0]) if recipe.part[0] is None else [recipe.part[0]]
    last = np.array([whole.visible.offset(entry) for entry in entries]) + whole.shape[2] - 1
    first = last - visible.window[0]
    kept = np.arange(visible.keys) >= first[:, None, None, None]
    return with_rule(recipe, "window", recipe.rules["window"] & kept) if first.max() > 0 else None


_window = partial(
    Convention,
    topic=topics.WINDOW,
    fix="see key j where i + offset − left ≤ j ≤ i + offset + right, itself included",
    shows="more keys than the window holds",
)


def _other_window(
    name: str, meaning: str, change: Change, variant_of: tuple[str, ...] = ()
) -> Convention:
    def option(problem: Problem) -> str:
        window = problem.visible.window
        return "" if window is None else windowed(*change(*window), problem)

    return _window(name, meaning, _window_as(change), option=option, variant_of=variant_of)


def _windows() -> Iterator[Convention]:
    for step, word, how in ((-1, "short", "narrow"), (1, "long", "wide")):
        for side, left, right in (("left", step, 0), ("right", 0, step), ("both", step, step)):
            where = "both sides" if side == "both" else f"the {side}"
            # Where the causal rule hides one side, that says nothing more than the other side.
            one = tuple(f"window_{each}_{word}" for each in ("left", "right") if side == "both")
            yield _other_window(
                f"window_{side}_{word}",
                f"the window is off by one: a key too {how} on {where}",
                _moved(left, right),
                one,
            )


WINDOW = (
    _window(
        "window_ignored",
        "the window is ignored",
        dropped("window"),
        option=without_placed("--window"),
    ),
    _window(
        "window_inverted",
        "the window is inverted: a query sees the keys outside of it",
        changed("window", np.logical_not),
    ),
    *_windows(),
    _other_window(
        "window_one_sided",
        "the window is one-sided: it ends at the query itself",
        lambda left, _: (left, 0),
    ),
    _other_window(
        "window_left_only",
        "the window bounds only the left side",
        lambda left, _: (left, None),
    ),
    _other_window(
        "window_right_only",
        "the window bounds only the right side",
        lambda _, right: (None, right),
    ),
    _other_window(
        "window_halved",
        "the size of the window is split between both sides",
        lambda left, right: (_half(left), _half(right)),
    ),
    _window(
        "window_symmetric",
        "the window reaches as far to the right as to the left, and later keys are seen",
        _symmetric,
        variant_of=("window_right_long",),
    ),
    _other_window("window_swapped", "the window's sides are exchanged", lambda a, b: (b, a)),
    _window(
        "window_cache_trimmed",
        "the cache is cut to the window of the last query before the others have read it: their "
        "windows begin there, too",
        _trimmed,
        fix="cut the cache after all queries of a chunk have read it, or keep as many keys more as "
        "the chunk has queries",
        shows="several queries behind a cache",
    ),
    _window("window_first_key", "the first key is seen from everywhere", _with_first_keys(1)),
    _window(
        "window_first_four",
        "the first four keys are seen from everywhere (attention sinks of StreamingLLM)",
        _with_first_keys(4),
    ),
)
