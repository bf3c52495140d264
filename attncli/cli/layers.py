"""What is shown of one problem, of several layers, or of words made of subwords."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.cli.question import Asked, ask_or_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from attncli.cli.options import MergeOptions, QuestionOptions
    from attncli.gather import Finished

__all__ = ["ask_or_join", "computed", "layers_of"]


def ask_or_join(options: MergeOptions, *, saved: bool = False) -> Asked | Finished:
    """Return what the files hold, rolled out and joined to words where that is asked for."""
    if options.rollout is not None:
        return _joined(_rolled(options), options)
    return _joined(ask_or_read(_unpicked(options), saved=saved), options)


def layers_of(options: MergeOptions) -> Iterator[tuple[int, str, Asked | Finished]]:
    """Yield number, module and `ask_or_join` of each layer, or of all of them rolled out."""
    if options.rollout is not None:
        yield 0, "", ask_or_join(options)
        return
    for number, name, asked in _each_layer(_unpicked(options)):
        yield number, name, _joined(asked, options)


def _unpicked(options: MergeOptions) -> MergeOptions:
    # Of words, heads are picked afterwards.
    return options.but(batch=None, head=None) if options.merge else options


def _joined(asked: Asked | Finished, options: MergeOptions) -> Asked | Finished:
    if options.merge is None:
        return asked
    from attncli.cli.merging import merged

    return merged(asked, options)


def _each_layer(options: QuestionOptions) -> Iterator[tuple[int, str, Asked | Finished]]:
    from attncli.gather import layers_in

    files = options.files or []
    found = layers_in(files[0]) if len(files) == 1 and options.layer is None else {}
    for number, name in found.items() or [(options.layer, "")]:
        yield number or 0, name, ask_or_read(options.but(layer=number), saved=True)


def _rolled(options: MergeOptions) -> Finished:
    import numpy as np

    from attncli.numerics.indices import EVERYTHING
    from attncli.summaries.rollout import rollout

    layers: list[Finished] = []

    def each() -> Iterator[tuple[str, npt.NDArray[np.floating]]]:
        # Several files hold a layer each.
        for files in [[file] for file in options.files or ()] or [[]]:
            for _, _, asked in _each_layer(options.but(files=files, batch=None, head=None)):
                layer = computed(asked, options)
                layers.append(layer._replace(values=np.empty(0), hidden=None))
                yield layer.name, layer.checked("weights", EVERYTHING)

    residual = options.rollout == "half"
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


def computed(asked: Asked | Finished, options: QuestionOptions) -> Finished:
    """Return the weights of a problem as if they had been finished before."""
    import numpy as np

    from attncli.api import solve
    from attncli.gather.finished import Finished

    if not isinstance(asked, Asked):
        return asked
    problem = asked.problem
    answer = solve(problem, ("weights", "scores"), threads=options.threads)
    return Finished(
        np.asarray(answer.weights),
        " ".join(asked.inputs) or "the example",
        asked.inputs,
        problem.query_labels,
        problem.key_labels,
        asked.bfloat16,
        problem.layout.weight_axes == "b",
        np.isneginf(np.asarray(answer.scores)),
    )
