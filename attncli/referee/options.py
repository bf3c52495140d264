"""The options with which attncli computes what a mistake computes, beside those given.

Most functions make or are the ``option`` of a `Mistake`: the problem in, words out; empty where no
option does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.numerics.positions import BASE, alibi_slopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.errors.names import Align
    from attncli.problem.problem import Problem

__all__ = [
    "aligned",
    "also_causal",
    "based",
    "inverted",
    "padded_queries",
    "placed_at",
    "scaled",
    "shortest",
    "together",
    "windowed",
    "with_first_keys",
    "with_lengths",
    "without_alibi",
    "without_lengths",
    "without_mask",
    "without_placed",
    "without_rope",
]


def together(options: Iterable[str], problem: Problem) -> tuple[str, ...]:
    """Return each option once; none where two of them set the same one to different values."""
    once = tuple(dict.fromkeys(option for option in options if option))
    names = {next((w for w in option.split() if w.startswith("--")), option) for option in once}
    if len(names) < len(once):
        return ()
    left = " ".join(option for option in once if option.startswith("leave ")).split()
    # Without any rule that asks where queries stand, it is an error to say so.
    idle = len(_placed_by(problem)) > 1 and _placed_by(problem) <= set(left)
    return (*once, *(f"leave {words} out" for words in _placement(problem) if idle))


def shortest(number: float) -> str:
    """Return the shortest text that is this number."""
    return repr(float(number)).removesuffix(".0")


def _short(numbers: tuple[int, ...]) -> str:
    """Return numbers of all batch entries; one that is the same for all of them once."""
    return ",".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))


def scaled(factor: float, problem: Problem) -> str:
    """Return the option for another scale."""
    default = problem.score != "dot" or problem.query.shape[3] == 1
    plain = "" if default or problem.scale != 1 else " (without --plain)"
    return f"--scale {shortest(factor)}{plain}"


# Masks.


def _masks(problem: Problem) -> set[str]:
    given = {"mask": problem.visible.mask, "key_padding_mask": problem.visible.key_padding_mask}
    return {name for name, array in given.items() if array is not None}


def _flag(rule: str) -> str:
    return f"--{rule.replace('_', '-')}"


def inverted(*rules: str) -> Callable[[Problem], str]:
    """Make the option that reads these masks the other way; it reads all that there are."""

    def option(problem: Problem) -> str:
        if _masks(problem) == set(rules):
            return f"--mask-means {'keep' if problem.mask_means == 'drop' else 'drop'}"
        given = " and ".join(map(_flag, rules))
        return f"give {given} inverted (--mask-means is of both masks)"

    return option


def without_mask(rule: str) -> Callable[[Problem], str]:
    """Make the option that leaves a mask out, and its polarity where nothing else has one."""

    def option(problem: Problem) -> str:
        idle = problem.mask_means == "drop" and _masks(problem) == {rule}
        return f"leave {_flag(rule)}{' and --mask-means' if idle else ''} out"

    return option


# Where queries stand: causal rule, window, ALiBi and rope ask for it.


def _stands_at(problem: Problem, offsets: tuple[int, ...]) -> bool:
    return bool((np.array(problem.visible.offsets) == np.array(offsets)).all())


def _stands_in_corner(problem: Problem) -> bool:
    """Return whether a rule places the queries, at the last real key and not at key 0."""
    in_corner = _stands_at(problem, problem.visible.bottom_right)
    return bool(_placed_by(problem)) and any(problem.visible.offsets) and in_corner


def _placed_by(problem: Problem) -> set[str]:
    visible = problem.visible
    asked = {
        "--causal": visible.causal,
        "--window": visible.window is not None,
        "--alibi": problem.alibi_slopes is not None,
        "--rope": problem.rope is not None,
    }
    return {rule for rule, given in asked.items() if given}


def _moves_positions(problem: Problem) -> bool:
    return problem.alibi_slopes is not None or problem.rope is not None


def _placement(problem: Problem) -> list[str]:
    """Return the option that says where queries stand, if one does or may."""
    in_corner = _stands_at(problem, problem.visible.bottom_right)
    if any(problem.visible.offsets):
        return ["--causal-align or --query-offset" if in_corner else "--query-offset"]
    return [] if in_corner else ["--causal-align, where it is given,"]


def without_placed(rule: str, also: str = "") -> Callable[[Problem], str]:
    """Make the option that leaves a rule out, and the alignment that only it needs.

    The rule is ``--causal``, ``--window``, ``--alibi`` or ``--rope``; ``also`` is how the user
    calls it, where that is another name.
    """

    def option(problem: Problem) -> str:
        alone = _placed_by(problem) == {rule}
        return f"leave {' and '.join([also or rule, *(_placement(problem) if alone else [])])} out"

    return option


def without_alibi(problem: Problem) -> str:
    """Return how ALiBi is left out, under the name by which it was given."""
    usual = np.array_equal(np.asarray(problem.alibi_slopes), alibi_slopes(problem.shape[1]))
    return without_placed("--alibi", "--alibi" if usual else "--alibi-slopes")(problem)


def without_rope(problem: Problem) -> str:
    """Return how the rotary embedding is left out, and its base, which only it has."""
    words = "--rope"
    if problem.rope is not None and problem.rope.frequencies is not None:
        words += " and --rope-frequencies"
    elif problem.rope is not None and problem.rope.base != BASE:
        words += " and --rope-base"
    return without_placed("--rope", words)(problem)


def based(base: int) -> Callable[[Problem], str]:
    """Make the option for another base of the rotary embedding, instead of any frequencies."""

    def option(problem: Problem) -> str:
        listed = problem.rope is not None and problem.rope.frequencies is not None
        return f"--rope-base {base}{' (without --rope-frequencies)' if listed else ''}"

    return option


def aligned(align: Align, *, positions: bool = False) -> Callable[[Problem], str]:
    """Make the option that moves causal rule and window to another corner; ALiBi and rope too."""

    def option(problem: Problem) -> str:
        if _moves_positions(problem) != positions:
            return ""
        moved = any(problem.visible.offsets)
        if moved and align == "top-left" and not _stands_at(problem, problem.visible.bottom_right):
            return "--query-offset 0"
        return f"--causal-align {align}{' (without --query-offset)' if moved else ''}"

    return option


def also_causal(align: Align) -> Callable[[Problem], str]:
    """Make the option that adds the causal rule and leaves the others where they are."""

    def option(problem: Problem) -> str:
        corner = problem.visible.bottom_right
        if _placed_by(problem):
            there = (0,) if align == "top-left" else corner
            return "--causal" if _stands_at(problem, there) else ""
        return f"--causal --causal-align {align}" if any(corner) else "--causal"

    return option


def placed_at(offsets: tuple[int, ...], problem: Problem, *, causal: bool = False) -> str:
    """Return the option that moves causal rule and window alone, with the causal rule if asked."""
    if _moves_positions(problem):
        return ""
    number = _short(offsets)
    equals = "=" if number.startswith("-") else " "
    option = f"{'--causal ' if causal else ''}--query-offset{equals}{number}"
    default = not any(problem.visible.offsets) and not any(problem.visible.bottom_right)
    return option if default else f"{option} (without --causal-align)"


def windowed(left: int | None, right: int | None, problem: Problem) -> str:
    """Return the option for another window."""
    if left is None and right is None:
        return without_placed("--window")(problem)
    return "--window " + ",".join("-1" if side is None else str(side) for side in (left, right))


# Lengths.


def without_lengths(problem: Problem) -> str:
    """Return how kv_lengths are left out; nothing where queries stand at the last real key."""
    return "" if _stands_in_corner(problem) else "leave --kv-lengths out"


def with_lengths(lengths: tuple[int, ...], problem: Problem, *, moved: bool) -> str:
    """Return the option for these kv_lengths, with which queries at the last real key move or not.

    Nothing where they are to stay there.
    """
    option = f"--kv-lengths {_short(lengths)}"
    if moved:
        return f"{option} (with --causal-align bottom-right)"
    return "" if _stands_in_corner(problem) else option


def with_first_keys(kept: Callable[[int], int]) -> Callable[[Problem], str]:
    """Make the option that lets only the first keys count, for a function of how many there are."""

    def option(problem: Problem) -> str:
        keys = problem.shape[3]
        lengths = tuple(min(kept(keys), n) for n in problem.visible.kv_lengths or (keys,))
        return with_lengths(lengths, problem, moved=False)

    return option


def padded_queries(problem: Problem) -> str:
    """Return the option that makes as many queries real as there are real keys."""
    visible = problem.visible
    both = visible.kv_lengths and visible.key_padding_mask is not None
    lengths = visible.kv_lengths or visible.padded_lengths
    if visible.query_lengths is not None or both or not lengths:
        return ""
    return f"--query-lengths {','.join(map(str, lengths))}"
