"""Mistakes of which axis is attended over, and of how many heads a width is cut into."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from attncli.problem.visibility import Visibility
from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_context, of_inputs
from attncli.referee.convention import Apply, Convention, Need
from attncli.referee.recipe import Recipe, recipe_of, vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = ["ATTENDED"]

Array = npt.NDArray[Any]

_NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
_HEADS: frozenset[Need] = frozenset({"heads"})


def _along(*axes: int) -> Apply:
    """Make an `apply` that exchanges the sequence for another axis, and the context's back."""

    def turned(array: Array) -> Array:
        return array.transpose(axes)

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        inputs = of_inputs(problem, turned)
        query, key = inputs["query"], inputs["key"]
        ruled = set(recipe.rules) - {"causal"} or recipe.terms or problem.sinks is not None
        if query is None or key is None or ruled or not _fit(query, key):
            return None
        queries, keys = query.shape[2], key.shape[2]
        visible = Visibility(
            queries=queries,
            keys=keys,
            # Aligned with the last key, as it was, or with the first.
            offsets=(keys - queries if any(problem.visible.offsets) else 0,),
            causal=problem.visible.causal,
        )
        turned_problem = vary(recipe, visible=visible, **inputs).problem
        changed = recipe_of(turned_problem, recipe.whole)
        return replace(
            changed,
            finish=(*recipe.finish, of_context(lambda _, context: turned(context))),
            shape=recipe.shape,
            largest=recipe.largest,
            fill=recipe.fill,
        )

    return apply


def _fit(query: Array, key: Array) -> bool:
    """Return whether attention is possible, and over more than one key."""
    batch, heads = query.shape[:2]
    return bool(key.shape[0] == batch and heads % key.shape[1] == 0 and key.shape[2] > 1)


def _other_layout(problem: Problem) -> str:
    other = problem.layout.exchanged
    return f"--layout {other}" if other else ""


def _heads_first(problem: Problem) -> str:
    return "" if problem.layout.packed or problem.layout.axes != "bsd" else "--layout shd"


def _joined(array: Array, heads: int) -> Array:
    """Return (B, H, S, D) as (B, heads, S, ·): the same packed width, cut into other heads."""
    batch, _, rows, _ = array.shape
    packed = array.transpose(0, 2, 1, 3).reshape(batch, rows, heads, -1)
    return packed.transpose(0, 2, 1, 3)


def _cut_into(heads: int) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not _can_be_cut(recipe, heads):
            return None
        count = problem.shape[1]
        inputs = of_inputs(problem, lambda array: _joined(array, heads))
        width = problem.query.shape[3] * count // heads
        usual = math.isclose(problem.scale, problem.query.shape[3] ** -0.5)
        scale = width**-0.5 if usual else problem.scale
        changed = vary(recipe, scale=scale, **inputs)
        back = of_context(lambda _, context: _joined(context, count))
        return replace(changed, finish=(*recipe.finish, back))

    return apply


def _can_be_cut(recipe: Recipe, heads: int) -> bool:
    """Return whether all widths can be cut into so many heads, and no rule depends on the head."""
    problem = recipe.problem
    count, groups = problem.query.shape[1], problem.key.shape[1]
    arrays = [array for array in (problem.query, problem.key, problem.value) if array is not None]
    # Other outputs of heads that the layout does not know would have no axis for them.
    told = problem.layout.packed or not set(recipe.file_shapes) - {"context"}
    of_heads = [rule.shape[1] for rule in (*recipe.rules.values(), *recipe.terms.values())]
    return (
        told
        and "h" not in problem.layout.axes
        and heads != count == groups
        and problem.rope is None
        and problem.score == "dot"
        and problem.sinks is None
        and all(number == 1 for number in of_heads)
        and all(count * array.shape[3] % heads == 0 for array in arrays)
    )


def _with_heads(number: int, problem: Problem) -> str:
    usual = math.isclose(problem.scale, problem.query.shape[3] ** -0.5)
    shared = "" if problem.key.shape[1] == problem.shape[1] else f" --kv-heads {number}"
    return f"--heads {number}{shared}" if usual else ""


_ALONG = "transpose to (B, H, L, D), so that the softmax runs along the sequence"

ATTENDED = (
    Convention(
        name="axes_exchanged",
        topic=topics.HEADS,
        meaning="(B, H, L, D) is read as (B, L, H, D) or the other way round: at every position "
        "heads attend to heads",
        fix="transpose heads and sequence before attention",
        shows="more than one head",
        apply=_along(0, 2, 1, 3),
        option=_other_layout,
        needs=frozenset({"heads", "rows"}),
    ),
    Convention(
        name="batch_attended",
        topic=topics.HEADS,
        meaning="the first two axes are exchanged: at every position batch entries attend "
        "to batch entries, as in nn.MultiheadAttention without batch_first=True, or where "
        "(L, H, D) is read as (B, L, D)",
        fix=f"set batch_first=True; or {_ALONG}; or, if the inputs are (L, B, ·), say --layout sbd",
        shows="more than one batch entry",
        apply=_along(2, 1, 0, 3),
        option=_heads_first,
        needs=frozenset({"batch", "rows"}),
    ),
    *(
        Convention(
            name=f"heads_{number}",
            topic=topics.NUMBER_OF_HEADS,
            meaning=f"the width is cut into {number} {'head' if number == 1 else 'heads'}",
            fix="cut the width into as many heads as the problem states",
            shows="any width",
            apply=_cut_into(number),
            option=partial(_with_heads, number),
            needs=_HEADS,
        )
        for number in _NUMBERS
    ),
)
