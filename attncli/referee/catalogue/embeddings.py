"""Mistakes in how query, key and value are made from embeddings."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SOURCES, Given, made_again, of_embeddings
from attncli.referee.catalogue.output_projection import transposed_output, without_output_bias
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.convention import Apply, Convention

__all__ = ["EMBEDDINGS"]

Array = npt.NDArray[Any]
_WEIGHTS = ("wq", "wk", "wv")
_BIASES = ("bq", "bk", "bv")
_TOPICS = {
    "q": topics.QUERY_PROJECTION,
    "k": topics.KEY_PROJECTION,
    "v": topics.VALUE_PROJECTION,
}
_WORDS = {"q": "queries", "k": "keys", "v": "values"}


def _transposed(*names: str) -> Apply:
    def change(given: Given) -> Given | None:
        there = {name: given[name] for name in names if name in given}
        square = all(weight.shape[0] == weight.shape[-1] for weight in there.values())
        # A single matrix belongs to another convention.
        if not square or len(there) < min(len(names), 2):
            return None
        return {**given, **{name: weight.T for name, weight in there.items()}}

    return made_again(change)


def _without(*names: str) -> Apply:
    def change(given: Given) -> Given | None:
        there = [name for name in names if name in given]
        if len(there) < min(len(names), 2):
            return None
        return {name: value for name, value in given.items() if name not in there}

    return made_again(change)


def _of_x_alone(given: Given) -> Given | None:
    sources = {"key_source", "value_source"} & set(given)
    return {n: v for n, v in given.items() if n not in sources} if sources else None


def _made_from(**sources: str) -> Callable[[Given], Given | None]:
    """Make a change of what queries, keys and values are made from: by the names of arguments.

    None where there is one source, or where that is what the problem states.
    """

    def change(given: Given) -> Given | None:
        if "key_source" not in given:
            return None
        own = {"value_source": given["key_source"], **given}
        rest = {name: value for name, value in given.items() if name not in SOURCES}
        made = {"x": own["x"], "key_source": own["key_source"], "value_source": own["value_source"]}
        made |= {target: own[source] for target, source in sources.items()}
        if all(made[name] is own[name] for name in made):
            return None
        return {**rest, **made}

    return change


def _unprojected(*names: str) -> Apply:
    """Make an `apply` that takes embeddings as they are, without weight and bias."""

    def change(given: Given) -> Given | None:
        there = [name for name in names if name in given]
        width = given["x"].shape[-1]
        if not there:
            return None
        # Of the narrowest format, so that nothing is computed in a wider one.
        identities = dict.fromkeys(there, np.eye(width, dtype=np.float16))
        biases = {f"b{name[1]}" for name in there}
        return {n: v for n, v in given.items() if n not in biases} | identities

    return made_again(change)


def _by_another(target: str, source: str) -> Apply:
    """Make an `apply` that makes one of q, k and v with the weight and bias of another."""

    def change(given: Given) -> Given | None:
        if f"w{target}" not in given or f"w{source}" not in given:
            return None
        rest = {n: v for n, v in given.items() if n != f"b{target}"}
        bias = {f"b{target}": given[f"b{source}"]} if f"b{source}" in given else {}
        return {**rest, f"w{target}": given[f"w{source}"], **bias}

    return made_again(change)


def _in_the_order(letters: str) -> Apply:
    """Make an `apply` that makes q, k and v with the weights and biases of these."""

    def change(given: Given) -> Given | None:
        if any(name not in given for name in _WEIGHTS):
            return None
        rest = {n: v for n, v in given.items() if n not in _BIASES}
        moved = {
            f"{kind}{target}": given[f"{kind}{source}"]
            for kind in "wb"
            for target, source in zip("qkv", letters, strict=True)
            if f"{kind}{source}" in given
        }
        return {**rest, **moved}

    return made_again(change)


def _scaled_by_the_embedding(recipe: Recipe) -> Recipe | None:
    if recipe.projected is None:
        return None
    return vary(recipe, scale=recipe.projected["x"].shape[-1] ** -0.5)


def _values_without_positions(recipe: Recipe) -> Recipe | None:
    plain = _without("positions")(recipe)
    return None if plain is None else vary(recipe, value=plain.problem.value)


def _and_the_output(change: Apply, output: Apply) -> Apply:
    """Make an `apply` that makes a mistake in the output projection as well."""

    def apply(recipe: Recipe) -> Recipe | None:
        changed = change(recipe)
        return None if changed is None else output(changed)

    return apply


def _transposition(names: tuple[str, ...], what: str) -> Convention:
    return of_embeddings(
        "projections_transposed" if len(names) > 1 else f"{names[0]}_transposed",
        topics.PROJECTION if len(names) > 1 else _TOPICS[names[0][1]],
        f"{what} transposed: rows are taken for columns",
        "check the orientation: nn.Linear stores (out, in) and computes X · Wᵀ; X · W wants (in, "
        "out)",
        _transposed(*names),
        option=f"give {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} transposed",
    )


def _lost_bias(names: tuple[str, ...], what: str) -> Convention:
    return of_embeddings(
        "projection_biases_missing" if len(names) > 1 else f"{names[0]}_missing",
        topics.PROJECTED_BIAS,
        f"{what} missing",
        "add the bias after the product with the weights",
        _without(*names),
    )


def _unused(letter: str) -> Convention:
    return of_embeddings(
        f"w{letter}_unused",
        _TOPICS[letter],
        f"the {_WORDS[letter]} are the embeddings themselves, not projected",
        f"multiply the embeddings with w{letter}",
        _unprojected(f"w{letter}"),
    )


def _confused(target: str, source: str) -> Convention:
    return of_embeddings(
        f"{_WORDS[target]}_made_with_w{source}",
        _TOPICS[target],
        f"the {_WORDS[target]} are made with w{source}, the projection of the {_WORDS[source]}",
        f"multiply with w{target} for the {_WORDS[target]}",
        _by_another(target, source),
    )


def _confused_all(name: str, letters: str) -> Convention:
    order = ", ".join(f"w{letter}" for letter in letters)
    return of_embeddings(
        name,
        topics.PROJECTION,
        f"query, key and value are made with {order}, in this order",
        "multiply with wq for the queries, with wk for the keys and with wv for the values",
        _in_the_order(letters),
    )


EMBEDDINGS = (
    _transposition(_WEIGHTS, "wq, wk and wv are"),
    *(_transposition((name,), f"{name} is") for name in _WEIGHTS),
    _confused_all("projections_in_the_order_kvq", "kvq"),
    _confused_all("projections_in_the_order_vqk", "vqk"),
    _confused_all("projections_all_wq", "qqq"),
    *(_confused(target, source) for target, source in permutations("qkv", 2)),
    of_embeddings(
        "projections_missing",
        topics.PROJECTION,
        "query, key and value are the embeddings themselves, not projected",
        "multiply the embeddings with wq, wk and wv",
        _unprojected(*_WEIGHTS),
    ),
    *map(_unused, "qkv"),
    _lost_bias(_BIASES, "the biases of wq, wk and wv are"),
    of_embeddings(
        "all_biases_missing",
        topics.PROJECTED_BIAS,
        "the biases of all four projections are missing",
        "add each bias after the product with its weights",
        _and_the_output(_without(*_BIASES), without_output_bias),
    ),
    of_embeddings(
        "all_projections_transposed",
        topics.PROJECTION,
        "the weights of all four projections are transposed: rows are taken for columns",
        "check the orientation: nn.Linear stores (out, in) and computes X · Wᵀ; X · W wants (in, "
        "out)",
        _and_the_output(_transposed(*_WEIGHTS), transposed_output),
    ),
    *(_lost_bias((name,), f"the bias {name} of the {_WORDS[name[1]]} is") for name in _BIASES),
    of_embeddings(
        "positions_missing",
        topics.POSITIONS,
        "no positions are added to the embeddings",
        "add the positional encoding before the projections",
        _without("positions"),
    ),
    of_embeddings(
        "positions_not_in_values",
        topics.POSITIONS,
        "positions are added to the inputs of queries and keys, but not to those of the values",
        "add the positional encoding once, to all embeddings",
        _values_without_positions,
    ),
    of_embeddings(
        "key_source_unused",
        topics.KEY_SOURCE,
        "keys and values are made from the embeddings of the queries: self-attention "
        "instead of cross-attention",
        "make keys and values from the other sequence",
        made_again(_of_x_alone),
    ),
    *(
        of_embeddings(
            name,
            topics.KEY_SOURCE,
            f"{words} in cross-attention",
            "make queries from the sequence that asks, keys and values from the other",
            made_again(_made_from(**sources)),
            shows="two sequences that differ",
        )
        for name, words, sources in (
            (
                "sources_exchanged",
                "queries are made from the key source, and keys and values from x,",
                {"x": "key_source", "key_source": "x", "value_source": "x"},
            ),
            (
                "queries_from_key_source",
                "queries, too, are made from the key source",
                {"x": "key_source"},
            ),
            (
                "keys_from_x",
                "keys are made from x, not from the key source,",
                {"key_source": "x"},
            ),
            (
                "values_from_x",
                "values are made from x, not from the key source,",
                {"value_source": "x"},
            ),
            (
                "values_from_key_source",
                "values are made from the key source, not from their own,",
                {"value_source": "key_source"},
            ),
            (
                "keys_from_value_source",
                "keys are made from the value source, not from their own,",
                {"key_source": "value_source"},
            ),
            (
                "key_and_value_source_exchanged",
                "the sources of keys and values are exchanged",
                {"key_source": "value_source", "value_source": "key_source"},
            ),
        )
    ),
    of_embeddings(
        "input_width_scale",
        topics.SCALE,
        "the scale is 1/√W, of the width of the embeddings instead of one head",
        "divide by √D, D being the width of one head",
        _scaled_by_the_embedding,
        shows="embeddings that are not as wide as all heads together",
    ),
)
