"""Padding that is not what the problem states, inferred from a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted
from attncli.referee import topics
from attncli.referee.catalogue.helpers import lengths_of
from attncli.referee.convention import Convention, with_rule
from attncli.referee.fitted.cut_keys import WHOLE, Family, Spans, first_keys, found_numbers
from attncli.referee.fitted.diagonals import ends_of, moved_to
from attncli.referee.fitted.places import told
from attncli.referee.options import also_causal, stands_in_corner, with_lengths
from attncli.referee.recipe import band

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = [
    "causal_and_padding_unasked",
    "other_lengths",
    "other_padding",
    "padding_on_the_left_unasked",
]

Bools = npt.NDArray[np.bool_]


def other_lengths(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that batch entries have other lengths than the problem states."""
    whole = cases[0].recipe.whole
    lengths = _lengths(cases)
    moved = lengths is None
    if lengths is None:
        lengths = _lengths_in_corner(cases)
    right = lengths_of(whole)
    # Rows of zeros have more likely not been written.
    if lengths is None or any(new == 0 < old for new, old in zip(lengths, right, strict=True)):
        return None
    steps = tuple(new - old for new, old in zip(lengths, right, strict=True))
    name, meaning, fix = _lengths_in_words(whole, lengths)
    return Convention(
        name,
        meaning,
        lambda recipe: _with_lengths(recipe, lengths, steps if moved else None),
        topic=topics.PADDING,
        fix=fix,
        shows="more keys than these lengths",
        option=lambda problem: with_lengths(lengths, problem, moved=moved),
        needs=WHOLE,
        variant_of=("other_padding",),
    )


def _lengths(cases: Sequence[Case]) -> tuple[int, ...] | None:
    """Return the lengths that files show, while each query stands where it should."""
    whole = cases[0].recipe.whole
    numbers = np.arange(whole.shape[3] + 1)
    family = Family(
        numbers,
        frozenset({"kv_lengths"}),
        lambda *_: (np.zeros_like(numbers), numbers),
        lengths_of(whole),
    )
    return found_numbers(cases, family)


def _lengths_in_corner(cases: Sequence[Case]) -> tuple[int, ...] | None:
    """Return the lengths that files show if the last query stands at the last key of each."""
    whole = cases[0].recipe.whole
    visible, right = whole.visible, lengths_of(whole)
    ruled = visible.causal or visible.window is not None
    moves_more = whole.alibi_slopes is not None or whole.rope is not None
    if not (ruled and stands_in_corner(whole)) or moves_more:
        return None
    numbers = np.arange(whole.shape[3] + 1)

    def spans(problem: Problem, b: int, i: int) -> Spans:
        first, end = ends_of(problem, i + problem.visible.offset(b) + numbers - right[b])
        return np.minimum(first, numbers), np.minimum(end, numbers)

    rules = frozenset({"kv_lengths", "causal", "window"})
    return found_numbers(cases, Family(numbers, rules, spans, right))


def _lengths_in_words(whole: Problem, lengths: tuple[int, ...]) -> tuple[str, str, str]:
    """Return name, meaning and fix of the convention that batch entries have these lengths."""
    keys, right = whole.shape[3], lengths_of(whole)
    if whole.visible.kv_lengths is not None:
        pairs = [
            (f"batch entry {b}", f"{counted(new, 'key')} where {old} are right")
            for b, (new, old) in enumerate(zip(lengths, right, strict=True))
            if new != old
        ]
        return (
            "other_lengths",
            f"batch entries take other lengths: {told(pairs, 'takes')}",
            "give each batch entry the length that the problem states",
        )
    seen = _counted(keys, lengths)
    return (
        "padding_unasked",
        f"the last keys do not count, like padding, {_beyond_padding(whole)}: {seen}",
        "let every key count, or state the padding: kv_lengths (--kv-lengths)",
    )


def _counted(keys: int, lengths: tuple[int, ...]) -> str:
    """Say how many of the keys of each batch entry count."""
    if len(set(lengths)) > 1:
        pairs = [(f"batch entry {b}", f"{n} of {keys} keys") for b, n in enumerate(lengths)]
        return told(pairs, "has")
    return f"only {first_keys(lengths[0])} of {keys} {'counts' if lengths[0] == 1 else 'count'}"


def _beyond_padding(whole: Problem) -> str:
    if whole.visible.key_padding_mask is None:
        return "which the problem does not state"
    return "beside that which the problem states"


def causal_and_padding_unasked(cases: Sequence[Case]) -> Convention | None:
    """Return the convention of a causal mask beside padding, where the problem states neither."""
    whole = cases[0].recipe.whole
    visible, (_, _, queries, keys) = whole.visible, whole.shape
    padded = visible.kv_lengths is not None or visible.key_padding_mask is not None
    # Of one query, a causal mask is only another length.
    if padded or visible.causal or visible.window is not None or queries == 1:
        return None
    numbers = np.arange(1, keys + 1)
    family = Family(
        numbers,
        frozenset(),
        lambda problem, b, i: (
            np.zeros_like(numbers),
            np.minimum(numbers, max(i + problem.visible.offset(b) + 1, 0)),
        ),
        lengths_of(whole),
    )
    lengths = found_numbers(cases, family)
    if lengths is None:
        return None

    def option(problem: Problem) -> str:
        options = also_causal("top-left")(problem), with_lengths(lengths, problem, moved=False)
        return " ".join(options) if all(options) else ""

    return Convention(
        "causal_and_padding_unasked",
        "a causal mask is applied, and the last keys do not count, like padding; the problem "
        f"states neither: {_counted(keys, lengths)}",
        lambda recipe: moved_to(
            _with_lengths(recipe, lengths, None), (0,) * len(lengths), causal=True
        ),
        topic=topics.PADDING,
        fix="leave causal mask and padding out, or state both: causal (--causal) and kv_lengths "
        "(--kv-lengths)",
        shows="more than one key, and more than these lengths",
        option=option,
        needs=WHOLE,
    )


def padding_on_the_left_unasked(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that the first keys are padding, which the problem does not state."""
    whole = cases[0].recipe.whole
    keys = whole.shape[3]
    numbers = np.arange(keys)
    family = Family(
        numbers,
        frozenset(),
        lambda *_: (numbers, np.full_like(numbers, keys)),
        (0,) * whole.shape[0],
    )
    counts = found_numbers(cases, family)
    if counts is None or (np.array(counts) >= lengths_of(whole)).any():
        return None
    real = np.arange(keys) >= np.array(counts)[:, None, None, None]
    pairs = [(f"batch entry {b}", f"its first {n}") for b, n in enumerate(counts) if n]
    words = told(pairs, "loses") if len(set(counts)) > 1 else _keys_before(counts[0])
    return Convention(
        "padding_on_the_left_unasked",
        f"the first keys do not count, like padding, {_beyond_padding(whole)}: {words}",
        lambda recipe: with_rule(recipe, "padding on the left", real),
        topic=topics.PADDING,
        fix="let every key count, or state the padding: key_padding_mask (--key-padding-mask)",
        shows="as many keys",
        needs=WHOLE,
        # The second and the third are of a single query.
        variant_of=("other_padding", "window_unasked", "another_window"),
    )


def other_padding(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that the padding at one end of the keys is longer or shorter."""
    whole = cases[0].recipe.whole
    mask, keys = whole.visible.key_padding_mask, whole.shape[3]
    if mask is None:
        return None
    right = tuple(map(int, np.count_nonzero(mask, axis=1)))
    side = next(
        (side for side in ("first", "last") if (_real(side, right, keys) == mask).all()), None
    )
    if side is None:
        return None
    numbers = np.arange(keys + 1)
    all_keys = np.zeros_like(numbers), np.full_like(numbers, keys)
    spans = (all_keys[0], numbers) if side == "first" else (keys - numbers, all_keys[1])
    family = Family(numbers, frozenset({"key_padding_mask"}), lambda *_: spans, right)
    counts = found_numbers(cases, family)
    if counts is None or not all(counts):
        return None
    pairs = [
        (f"batch entry {b}", f"its {side} {counted(new, 'key')} where {old} are right")
        for b, (new, old) in enumerate(zip(counts, right, strict=True))
        if new != old
    ]
    real = _real(side, counts, keys)[:, None, None]
    return Convention(
        "other_padding",
        f"another key_padding_mask: {told(pairs, 'sees')}",
        lambda recipe: with_rule(recipe, "key_padding_mask", real),
        topic=topics.PADDING,
        fix="hide the keys that the problem hides, no more and no fewer",
        shows="more keys than these",
        needs=WHOLE,
    )


def _real(side: str, counts: Sequence[int], keys: int) -> Bools:
    """Return which keys are real (B, S), if so many at one end of them are."""
    places = np.arange(keys) if side == "first" else np.arange(keys)[::-1]
    return np.asarray(places < np.array(counts)[:, None])


def _keys_before(count: int) -> str:
    return "key 0" if count == 1 else f"keys 0 to {count - 1}"


def _with_lengths(
    recipe: Recipe, lengths: tuple[int, ...], steps: tuple[int, ...] | None
) -> Recipe:
    """Return the recipe with other lengths, and the queries so many keys further."""
    cut = with_rule(recipe, "kv_lengths", band(recipe.problem, kv_lengths=lengths))
    return cut if steps is None else moved_to(cut, steps, causal=recipe.problem.visible.causal)
