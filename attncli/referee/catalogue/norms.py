"""Norms in the wrong place: of the embeddings, or of what attention gives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee import topics
from attncli.referee.catalogue.helpers import (
    SOURCES,
    Given,
    made_again,
    of_context,
    of_embeddings,
    of_projections,
)
from attncli.referee.catalogue.residual import with_embeddings
from attncli.referee.convention import then

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.referee.convention import Apply
    from attncli.referee.recipe import Recipe

__all__ = ["EMBEDDING_NORMS", "OUTPUT_NORMS"]

Array = npt.NDArray[Any]
# Of PyTorch's LayerNorm and Llama 3, of Qwen and Gemma, of BERT.
_EPSILONS = (1e-5, 1e-6, 1e-12)


def _layer_norm(epsilon: float, rows: Array) -> Array:
    """Return rows with mean 0 and variance 1 (Ba, Kiros, Hinton 2016, equation 4)."""
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return _rms_norm(epsilon, centred)


def _rms_norm(epsilon: float, rows: Array) -> Array:
    """Return rows of root mean square 1 (Zhang, Sennrich 2019, equation 4)."""
    scaled: Array = rows / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + epsilon)
    return scaled


def _of_embeddings(norm: Callable[[Array], Array]) -> Apply:
    """Make an `apply` that normalises the embeddings before they are projected."""

    def change(given: Given) -> Given:
        wide = {name: widen(given[name], np.float64) for name in SOURCES & set(given)}
        return {**given, **{name: norm(array) for name, array in wide.items()}}

    return made_again(change)


def _of_the_output(norm: Callable[[Array], Array], *, residual: bool) -> Apply:
    """Make an `apply` that normalises what attention gives, with or without the embeddings."""

    def apply(recipe: Recipe) -> Recipe | None:
        added = with_embeddings(recipe) if residual else recipe
        if added is None or recipe.problem.output is None:
            return None
        finish = of_context(lambda _, context: norm(context))
        return then(added, behind=finish)

    return apply


def _kinds() -> Iterator[tuple[str, str, Callable[[Array], Array], list[str]]]:
    """Yield the name of each norm, its words, what it does, and those of larger epsilons."""
    for kind, word, norm in (
        ("layer_norm", "LayerNorm", _layer_norm),
        ("rms_norm", "RMSNorm", _rms_norm),
    ):
        names = [f"{kind}_{epsilon:g}".replace("-", "_") for epsilon in _EPSILONS]
        for place, (name, epsilon) in enumerate(zip(names, _EPSILONS, strict=True)):
            words = f"{word} (epsilon {epsilon:g}, no gain)"
            yield name, words, partial(norm, epsilon), names[:place]


def _unit_length(rows: Array) -> Array:
    lengths = np.sqrt(np.square(rows).sum(axis=-1, keepdims=True))
    return rows / np.where(lengths == 0, 1, lengths)


EMBEDDING_NORMS = (
    *(
        of_embeddings(
            f"embeddings_{name}",
            topics.EMBEDDING_NORM,
            f"the embeddings go through a {words} before they are projected",
            "give the embeddings as they come out of the norm, or leave the norm out",
            _of_embeddings(norm),
            variant_of=tuple(f"embeddings_{larger}" for larger in before),
        )
        for name, words, norm, before in _kinds()
    ),
    *(
        of_embeddings(
            f"embeddings_{name}",
            topics.EMBEDDING_NORM,
            f"the embeddings {words} before they are projected",
            "give the embeddings as they are projected, or leave that out",
            _of_embeddings(change),
        )
        for name, words, change in (
            ("of_unit_length", "are divided by their lengths", _unit_length),
            (
                "centred",
                "lose the mean of their numbers",
                lambda rows: rows - rows.mean(axis=-1, keepdims=True),
            ),
        )
    ),
)

OUTPUT_NORMS = tuple(
    of_projections(
        f"{of}_{name}",
        topics.OUTPUT_NORM,
        f"the {what} went through a {words}",
        "compare the output of attention, before the residual connection and the norm",
        _of_the_output(norm, residual=residual),
        variant_of=tuple(f"{of}_{larger}" for larger in before),
        needs=frozenset({"batch", "heads", "rows"}),
    )
    for name, words, norm, before in _kinds()
    for of, what, residual in (
        ("output", "output", False),
        ("output_and_embeddings", "sum of output and embeddings", True),
    )
)
