"""Mistakes in the output projection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attncli.referee.convention import Convention
from attncli.referee.recipe import Outputs, Recipe, vary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OUTPUT", "of_projections"]


def _joined(_: Recipe, outputs: Outputs) -> Outputs:
    batch, _heads, rows, _width = outputs["context"].shape
    joined = outputs["context"].transpose(0, 2, 1, 3).reshape(batch, 1, rows, -1)
    return {**outputs, "context": joined}


def _missing(recipe: Recipe) -> Recipe | None:
    output = recipe.problem.output
    if output is None or output.weight.shape[0] != output.weight.shape[1]:
        return None
    return replace(vary(recipe, output=None), finish=(*recipe.finish, _joined))


def _transposed(recipe: Recipe) -> Recipe | None:
    output = recipe.problem.output
    if output is None or output.weight.shape[0] != output.weight.shape[1]:
        return None
    return vary(recipe, output=replace(output, weight=output.weight.T))


def _without_bias(recipe: Recipe) -> Recipe | None:
    output = recipe.problem.output
    if output is None or output.bias is None:
        return None
    return vary(recipe, output=replace(output, bias=None))


def of_projections(
    name: str,
    topic: str,
    meaning: str,
    fix: str,
    apply: Callable[[Recipe], Recipe | None],
    option: str = "",
    **more: Any,
) -> Convention:
    """Return a convention that shows itself in nearly all projections."""
    return Convention(
        name=name,
        topic=topic,
        meaning=meaning,
        fix=fix,
        shows="projections that are not the identity",
        apply=apply,
        option=lambda _: option,
        **more,
    )


OUTPUT = (
    of_projections(
        "output_projection_missing",
        "output projection",
        "the output projection is missing: these are the contexts of the heads, joined",
        "multiply the joined contexts with Wo, and add its bias",
        _missing,
    ),
    of_projections(
        "output_projection_transposed",
        "output projection",
        "the output projection is transposed: its rows are taken for columns",
        "mind the orientation: nn.Linear stores (out, in), and X · W wants (in, out)",
        _transposed,
    ),
    of_projections(
        "output_bias_missing",
        "output bias",
        "the bias of the output projection is missing",
        "add the bias after the product with Wo",
        _without_bias,
    ),
)
