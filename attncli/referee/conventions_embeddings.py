"""Mistakes in how query, key and value are made from embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.errors import AttnError
from attncli.projection import as_heads, project
from attncli.referee.conventions_projection import of_projections
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    from attncli.problem import Problem
    from attncli.referee.convention import Convention
    from attncli.referee.recipe import Part

__all__ = ["EMBEDDINGS", "SOURCES", "Given", "made_again", "of_embeddings"]

Array = npt.NDArray[Any]
Apply = Callable[[Recipe], Recipe | None]
# The arguments of `attncli.project`, those that are given.
Given = Mapping[str, Any]

SOURCES = {"x", "key_source", "value_source"}
_WEIGHTS = ("wq", "wk", "wv")
_BIASES = ("bq", "bk", "bv")
_WORDS = {"q": "queries", "k": "keys", "v": "values"}


of_embeddings = partial(of_projections, projects=True)


def made_again(change: Callable[[Given], Given | None]) -> Apply:
    """Make an `apply` that projects the embeddings anew, by other arguments."""

    def apply(recipe: Recipe) -> Recipe | None:
        changed = None if recipe.projected is None else change(recipe.projected)
        if changed is None:
            return None
        try:
            made = project(**_of_part(changed, recipe.whole, recipe.part))
        except AttnError:  # it does not fit: nobody can have done so
            return None
        problem = recipe.problem
        rows = slice(None) if recipe.part[2] is None else slice(*recipe.part[2])
        arrays = {
            "query": _finite(as_heads(made.query[..., rows, :], problem.query)),
            "key": _finite(as_heads(made.key, problem.key)),
            "value": _finite(as_heads(made.value, problem.value)),
        }
        fit = all((arrays[n] is None) is (getattr(problem, n) is None) for n in arrays)
        # Another convention begins with what this one leaves.
        return replace(vary(recipe, **arrays), projected=changed) if fit else None

    return apply


def _of_part(given: Given, whole: Problem, part: Part) -> Given:
    """Return the arguments that make one batch entry, or one head: all else is not computed."""
    batch, head, _ = part
    found = dict(given)
    for name in SOURCES & set(given):
        source = given[name]
        if batch is not None and source.ndim == 3 and len(source) > 1:
            found[name] = source[batch : batch + 1]
    if head is None:
        return found
    group = head // (whole.query.shape[1] // whole.key.shape[1])
    for letter, array, at in (
        ("q", whole.query, head),
        ("k", whole.key, group),
        ("v", whole.value, group),
    ):
        if array is None:
            continue
        columns = slice(at * array.shape[3], (at + 1) * array.shape[3])
        if f"w{letter}" in given:
            found[f"w{letter}"] = given[f"w{letter}"][:, columns]
        if f"b{letter}" in given:
            found[f"b{letter}"] = np.ravel(given[f"b{letter}"])[columns]
    return found


def _finite(array: Array | None) -> Array | None:
    """Return numbers in float64; what pads a batch may be anything, and must not be felt."""
    if array is None:
        return None
    finite: Array = np.nan_to_num(widen(array, np.float64), posinf=0.0, neginf=0.0)
    return finite


def _transposed(*names: str) -> Apply:
    def change(given: Given) -> Given | None:
        there = {name: given[name] for name in names if name in given}
        square = all(weight.shape[0] == weight.shape[-1] for weight in there.values())
        # One matrix alone is another convention's.
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


def _transposition(names: tuple[str, ...], what: str) -> Convention:
    return of_embeddings(
        "projections_transposed" if len(names) > 1 else f"{names[0]}_transposed",
        "projection" if len(names) > 1 else f"projection {names[0]}",
        f"{what} transposed: rows are taken for columns",
        "mind the orientation: nn.Linear stores (out, in) and computes X · Wᵀ; X · W wants (in, "
        "out)",
        _transposed(*names),
        option=f"give {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} transposed",
    )


def _lost_bias(names: tuple[str, ...], what: str) -> Convention:
    return of_embeddings(
        "projection_biases_missing" if len(names) > 1 else f"{names[0]}_missing",
        "projected bias",
        f"{what} missing",
        "add the bias after the product with the weights",
        _without(*names),
    )


def _unused(letter: str) -> Convention:
    return of_embeddings(
        f"w{letter}_unused",
        f"projection w{letter}",
        f"the {_WORDS[letter]} are the embeddings themselves, not projected",
        f"multiply the embeddings with w{letter}",
        _unprojected(f"w{letter}"),
    )


def _confused(target: str, source: str) -> Convention:
    return of_embeddings(
        f"{_WORDS[target]}_made_with_w{source}",
        f"projection w{target}",
        f"the {_WORDS[target]} are made with w{source}, the projection of the {_WORDS[source]}",
        f"multiply with w{target} for the {_WORDS[target]}",
        _by_another(target, source),
    )


def _confused_all(name: str, letters: str) -> Convention:
    order = ", ".join(f"w{letter}" for letter in letters)
    return of_embeddings(
        name,
        "projection",
        f"query, key and value are made with {order}, in this order",
        "multiply with wq for the queries, with wk for the keys and with wv for the values",
        _in_the_order(letters),
    )


EMBEDDINGS = (
    _transposition(_WEIGHTS, "the weights of all projections are"),
    *(_transposition((name,), f"{name} is") for name in _WEIGHTS),
    _confused_all("projections_in_the_order_kvq", "kvq"),
    _confused_all("projections_in_the_order_vqk", "vqk"),
    _confused_all("projections_all_wq", "qqq"),
    *(_confused(target, source) for target, source in permutations("qkv", 2)),
    of_embeddings(
        "projections_missing",
        "projection",
        "query, key and value are the embeddings themselves, not projected",
        "multiply the embeddings with wq, wk and wv",
        _unprojected(*_WEIGHTS),
    ),
    *map(_unused, "qkv"),
    _lost_bias(_BIASES, "the biases of all projections are"),
    *(_lost_bias((name,), f"the bias {name} of the {_WORDS[name[1]]} is") for name in _BIASES),
    of_embeddings(
        "positions_missing",
        "positions",
        "no positions are added to the embeddings",
        "add the positional encoding before the projections",
        _without("positions"),
    ),
    of_embeddings(
        "positions_not_in_values",
        "positions",
        "positions are added to what queries and keys are made from, and not to the values'",
        "add the positional encoding once, to all embeddings",
        _values_without_positions,
    ),
    of_embeddings(
        "key_source_unused",
        "key source",
        "keys and values are made from the embeddings of the queries: self-attention, where "
        "cross-attention is asked for",
        "make keys and values from the other sequence",
        made_again(_of_x_alone),
    ),
    of_embeddings(
        "input_width_scale",
        "scale",
        "the scale is 1/√W, of the width of the embeddings instead of one head",
        "divide by √D, D being the width of one head",
        _scaled_by_the_embedding,
    ),
)
