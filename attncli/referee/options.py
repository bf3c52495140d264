"""The options that reproduce a mistake with attncli, in addition to the given ones.

Most functions are, or return, the ``option`` of a `Mistake`: a function from the problem to a
text, which is empty if no option reproduces the mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.errors.names import Align
    from attncli.problem.problem import Problem


def together(options: Iterable[str]) -> tuple[str, ...]:
    """Return each option once; none at all if one option would get two values."""
    once = tuple(dict.fromkeys(option for option in options if option))
    names = {next((w for w in option.split() if w.startswith("--")), option) for option in once}
    return once if len(names) == len(once) else ()


def shortest(number: float) -> str:
    """Return the shortest text that reads back as this number."""
    return repr(float(number)).removesuffix(".0")


def _short(numbers: tuple[int, ...]) -> str:
    """List the numbers of the batch entries, or the one number that they share."""
    return ",".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))


def scaled(factor: float, _: Problem) -> str:
    """Return the option for another scale."""
    return f"--scale {shortest(factor)}"


def inverted(problem: Problem) -> str:
    """Return the option that inverts a mask; none if it would invert two masks."""
    visible = problem.visible
    if visible.mask is not None and visible.key_padding_mask is not None:
        return ""
    return f"--mask-means {'keep' if problem.mask_means == 'drop' else 'drop'}"


# The positions of queries, which causal rule, window, ALiBi and rope depend on.


def _stands_at(problem: Problem, offsets: tuple[int, ...]) -> bool:
    return bool((np.array(problem.visible.offsets) == np.array(offsets)).all())


def _stands_in_corner(problem: Problem) -> bool:
    """Return whether a rule needs positions, and the last query stands at the last key."""
    in_corner = _stands_at(problem, problem.visible.bottom_right)
    return _needs_places(problem) and any(problem.visible.offsets) and in_corner


def _needs_places(problem: Problem) -> bool:
    visible = problem.visible
    return visible.causal or visible.window is not None or _moves_positions(problem)


def _moves_positions(problem: Problem) -> bool:
    return problem.alibi_slopes is not None or problem.rope is not None


def aligned(align: Align, *, positions: bool = False) -> Callable[[Problem], str]:
    """Make the option that aligns rules otherwise; ``positions``: only if ALiBi or rope is used."""
    option = f"--causal-align {align}"
    return lambda problem: option if _moves_positions(problem) == positions else ""


def also_causal(align: Align) -> Callable[[Problem], str]:
    """Make the option that adds the causal rule without moving other rules."""

    def option(problem: Problem) -> str:
        corner = problem.visible.bottom_right
        if _needs_places(problem):
            there = (0,) if align == "top-left" else corner
            return "--causal" if _stands_at(problem, there) else ""
        return f"--causal --causal-align {align}" if any(corner) else "--causal"

    return option


def placed_at(offsets: tuple[int, ...], problem: Problem, *, causal: bool = False) -> str:
    """Return the option that moves causal rule and window; none if ALiBi or rope would move."""
    if _moves_positions(problem):
        return ""
    return f"{'--causal ' if causal else ''}--query-offset={_short(offsets)}"


def windowed(left: int | None, right: int | None) -> str:
    """Return the option for another window."""
    if left is None and right is None:
        return "leave --window out"
    return "--window " + ",".join("-1" if side is None else str(side) for side in (left, right))


# Lengths.


def with_lengths(lengths: tuple[int, ...] | None, problem: Problem) -> str:
    """Return the option for other kv_lengths, or for none; empty if it would move queries."""
    if _stands_in_corner(problem):
        return ""
    return f"--kv-lengths {_short(lengths)}" if lengths else "leave --kv-lengths out"
