"""Norms in the wrong place: of the embeddings, or of what attention gives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
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

    from attncli.referee.convention import Apply, Convention
    from attncli.referee.recipe import Recipe

__all__ = ["EMBEDDING_NORMS", "OUTPUT_NORMS", "QUERY_KEY_NORMS"]

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


def _of_the_layer(norm: Callable[[Array], Array], *, centred: bool, more: float = 0.0) -> Apply:
    """Make an `apply` that takes the embeddings through the norm in front of their layer.

    Parameters
    ----------
    norm : callable
        Without its weight.
    centred : bool
        It may have a bias.
    more : float
        What is added to the weight that is stored.
    """

    def apply(recipe: Recipe) -> Recipe | None:
        made = recipe.whole.made_from
        parts = {} if made is None else made.norm_before
        if not parts or ("bias" in parts and not centred):
            return None
        weight = widen(parts["weight"], np.float64) + more
        bias = widen(parts["bias"], np.float64) if "bias" in parts else 0.0
        return _of_embeddings(lambda rows: norm(rows) * weight + bias)(recipe)

    return apply


def _of_the_output(norm: Callable[[Array], Array], *, residual: bool) -> Apply:
    """Make an `apply` that normalises what attention gives, with or without the embeddings."""

    def apply(recipe: Recipe) -> Recipe | None:
        added = with_embeddings(recipe) if residual else recipe
        if added is None or recipe.problem.output is None:
            return None
        finish = of_context(lambda _, context: norm(context))
        return then(added, behind=finish)

    return apply


def _kinds(gain: str) -> Iterator[tuple[str, str, Callable[[Array], Array], list[str]]]:
    """Yield the name of each norm, its words, what it does, and those of larger epsilons."""
    for kind, word, norm in (
        ("layer_norm", "LayerNorm", _layer_norm),
        ("rms_norm", "RMSNorm", _rms_norm),
    ):
        names = [f"{kind}_{epsilon:g}".replace("-", "_") for epsilon in _EPSILONS]
        for place, (name, epsilon) in enumerate(zip(names, _EPSILONS, strict=True)):
            words = f"{word} (epsilon {epsilon:g}, {gain})"
            yield name, words, partial(norm, epsilon), names[:place]


def _unit_length(rows: Array) -> Array:
    lengths = np.sqrt(np.square(rows).sum(axis=-1, keepdims=True))
    return rows / np.where(lengths == 0, 1, lengths)


def _norms(given: Given) -> Given | None:
    """Return the weights of the norms of query and key, if there are any."""
    return {name: given[name] for name in ("q_norm", "k_norm") if name in given} or None


def _without_norms(*names: str) -> Apply:
    """Make an `apply` that leaves norms out, of those that there are."""

    def change(given: Given) -> Given | None:
        there = [name for name in names if name in given]
        if len(there) < len(names):
            return None
        rest = {name: value for name, value in given.items() if name not in there}
        if _norms(rest) is None:
            rest.pop("norm_eps", None)
        return rest

    return made_again(change)


def _weighted(weight: Callable[[Array], Array]) -> Apply:
    """Make an `apply` that normalises query and key with other weights."""

    def change(given: Given) -> Given | None:
        norms = _norms(given)
        return None if norms is None else {**given, **{n: weight(w) for n, w in norms.items()}}

    return made_again(change)


def _of_all_heads(given: Given) -> Given | None:
    norms = _norms(given)
    if norms is None:
        return None
    counts = {name: given[f"w{name[0]}"].shape[1] // len(norms[name]) for name in norms}
    if max(counts.values()) == 1:
        return None
    return {**given, **{name: np.tile(norms[name], count) for name, count in counts.items()}}


def _before_the_layer(gain: str, end: str = "", *, more: float = 0.0) -> Iterator[Convention]:
    """Yield the norms in front of a layer through which its embeddings did not go.

    Parameters
    ----------
    gain : str
        What the weight of the norm is called.
    end : str
        Of their names.
    more : float
        What is added to the weight that is stored.
    """
    for name, words, norm, before in _kinds(gain):
        yield of_embeddings(
            f"norm_before_{name}{end}",
            topics.EMBEDDING_NORM,
            f"the embeddings go through the norm in front of the layer, a {words}, before they are "
            "projected: those that are given are from before it",
            "give the embeddings as they come out of the norm that the checkpoint holds",
            _of_the_layer(norm, centred=name.startswith("layer_norm"), more=more),
            variant_of=tuple(f"norm_before_{larger}{end}" for larger in before),
        )


EMBEDDING_NORMS = (
    *_before_the_layer("gain as stored"),
    *_before_the_layer("gain 1 + what is stored", "_plus_1", more=1.0),
    *(
        of_embeddings(
            f"embeddings_{name}",
            topics.EMBEDDING_NORM,
            f"the embeddings go through a {words} before they are projected",
            "give the embeddings as they come out of the norm, or leave the norm out",
            _of_embeddings(norm),
            variant_of=tuple(f"embeddings_{larger}" for larger in before),
        )
        for name, words, norm, before in _kinds("no gain")
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
    for name, words, norm, before in _kinds("no gain")
    for of, what, residual in (
        ("output", "output", False),
        ("output_and_embeddings", "sum of output and embeddings", True),
    )
)

QUERY_KEY_NORMS = (
    *(
        of_embeddings(
            name,
            topics.QUERY_KEY_NORM,
            f"{words} not normalised behind the projection",
            "divide each head's vectors by the root of their mean square, times the norm's weight",
            _without_norms(*norms),
        )
        for name, words, norms in (
            ("norms_missing", "queries and keys are", ("q_norm", "k_norm")),
            ("query_norm_missing", "queries are", ("q_norm",)),
            ("key_norm_missing", "keys are", ("k_norm",)),
        )
    ),
    *(
        of_embeddings(
            name,
            topics.QUERY_KEY_NORM,
            f"the norms of query and key multiply with {words}",
            "take the weight as the model means it: Gemma adds 1 to what it stores, others do not",
            _weighted(weight),
        )
        for name, words, weight in (
            ("norm_weights_missing", "no weight", np.ones_like),
            ("norm_weights_plus_1", "their weight plus 1", lambda weight: weight + 1),
            ("norm_weights_minus_1", "their weight less 1", lambda weight: weight - 1),
        )
    ),
    of_embeddings(
        "norms_of_all_heads",
        topics.QUERY_KEY_NORM,
        "query and key are normalised over all heads together",
        "normalise each head by itself",
        made_again(_of_all_heads),
        shows="heads whose vectors are of different lengths",
        needs=frozenset({"heads"}),
    ),
)
