"""Mistakes in the output projection."""

from __future__ import annotations

from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_projections
from attncli.referee.recipe import Outputs, Recipe, vary
from attncli.referee.replacing import replace

__all__ = ["OUTPUT", "transposed_output", "without_output_bias"]


def _joined(_: Recipe, outputs: Outputs) -> Outputs:
    batch, _heads, rows, _width = outputs["context"].shape
    joined = outputs["context"].transpose(0, 2, 1, 3).reshape(batch, 1, rows, -1)
    return {**outputs, "context": joined}


def _missing(recipe: Recipe) -> Recipe | None:
    output, found = recipe.problem.output, recipe.file_shapes.get("context")
    if output is None:
        return None
    unprojected = replace(vary(recipe, output=None), finish=(*recipe.finish, _joined))
    if output.weight.shape[0] == output.weight.shape[1]:
        return unprojected
    # Contexts of another width than the answer's are in files of another shape alone.
    of_right_shape = found == recipe.whole.output_shapes["context"]
    return None if of_right_shape else replace(unprojected, resized=True)


def transposed_output(recipe: Recipe) -> Recipe | None:
    """Return the recipe with Wo transposed; None where it is not square, or there is none."""
    output = recipe.problem.output
    if output is None or output.weight.shape[0] != output.weight.shape[1]:
        return None
    return vary(recipe, output=replace(output, weight=output.weight.T))


def without_output_bias(recipe: Recipe) -> Recipe | None:
    """Return the recipe without the bias of Wo; None where there is none."""
    output = recipe.problem.output
    if output is None or output.bias is None:
        return None
    return vary(recipe, output=replace(output, bias=None))


OUTPUT = (
    of_projections(
        "output_projection_missing",
        topics.OUTPUT_PROJECTION,
        "the output projection is missing: these are the contexts of the heads, joined",
        "multiply the joined contexts with Wo, and add its bias",
        _missing,
    ),
    of_projections(
        "output_projection_transposed",
        topics.OUTPUT_PROJECTION,
        "the output projection is transposed: its rows are taken for columns",
        "check the orientation: nn.Linear stores (out, in), and X · W wants (in, out)",
        transposed_output,
    ),
    of_projections(
        "output_bias_missing",
        topics.OUTPUT_BIAS,
        "the bias of the output projection is missing",
        "add the bias after the product with Wo",
        without_output_bias,
    ),
)
