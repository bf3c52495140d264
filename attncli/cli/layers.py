"""Several layers: each by itself, or what comes through all of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from attncli.cli.options import PickOptions
from attncli.cli.question import Asked, ask_or_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from attncli.cli.options import ProblemOptions, RunOptions
    from attncli.gather import Finished

__all__ = ["computed", "each_layer", "rolled"]


def each_layer(
    options: ProblemOptions, pick: PickOptions, run: RunOptions
) -> Iterator[tuple[int, str, Asked | Finished]]:
    """Yield the number, the module and the problem or the weights of each layer.

    There are several in a folder of recorded calls, and in a file of five axes, unless one of
    them is chosen.
    """
    from attncli.gather import layers_in

    files = options.files or []
    found = layers_in(files[0]) if len(files) == 1 and options.layer is None else {}
    for number, name in found.items() or [(options.layer, "")]:
        one = copy.copy(options)
        one.layer = number
        yield number or 0, name, ask_or_read(one, pick, run, saved=True)


def rolled(options: ProblemOptions, run: RunOptions, *, residual: bool = True) -> Finished:
    """Return the rollout of all layers; several files hold a layer each.

    Raises
    ------
    ShapeError, UsageError
        As `attncli.summaries.rollout.rollout`.
    """
    import numpy as np

    from attncli.numerics.indices import EVERYTHING
    from attncli.summaries.rollout import rollout

    layers: list[Finished] = []

    def each() -> Iterator[tuple[str, npt.NDArray[np.floating]]]:
        apart: list[list[str]] = [[file] for file in options.files or ()]
        for files in apart or [[]]:
            one = copy.copy(options)
            one.files = files
            for _, _, asked in each_layer(one, PickOptions(), run):
                layer = computed(asked, run)
                layers.append(layer._replace(values=np.empty(0), hidden=None))
                yield layer.name, layer.checked("weights", EVERYTHING)

    values, count = rollout(each(), residual=residual)
    remark = f"rollout of {count} layers" + ("" if residual else " without the residual")
    return layers[0]._replace(
        values=values,
        name=remark,
        inputs=tuple(dict.fromkeys(file for layer in layers for file in layer.inputs)),
        batched=True,
        hidden=values == 0,
        remark=remark,
    )


def computed(asked: Asked | Finished, run: RunOptions) -> Finished:
    """Return the weights of a problem as if they had been finished before."""
    import numpy as np

    from attncli.api import solve
    from attncli.gather.finished import Finished

    if not isinstance(asked, Asked):
        return asked
    problem = asked.problem
    answer = solve(problem, ("weights", "scores"), threads=run.threads)
    weights, scores = np.asarray(answer.weights), np.asarray(answer.scores)
    return Finished(
        weights,
        " ".join(asked.inputs) or "the example",
        asked.inputs,
        problem.query_labels,
        problem.key_labels,
        asked.bfloat16,
        problem.layout.weight_axes == "b",
        np.isneginf(scores),
    )
