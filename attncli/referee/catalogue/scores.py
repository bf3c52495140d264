"""Mistakes between the product and the softmax: softcap and bias."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.catalogue.helpers import off_by_one, transposed
from attncli.referee.convention import Apply, Convention, moved, with_term
from attncli.referee.recipe import Recipe, vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BIAS", "SOFTCAP"]

Array = npt.NDArray[Any]


def _cap_as(step: str) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.problem.softcap is None:
            return None
        return replace(recipe, order=tuple(step if s == "cap" else s for s in recipe.order))

    return apply


def _cap_before(step: str | None) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.problem.softcap is None or not {"cap", step or "cap"} <= set(recipe.order):
            return None
        if step is None and recipe.seen.all():
            return None  # there is nothing to hide
        return moved(recipe, "cap", before=step)

    return apply


_softcap = partial(
    Convention,
    topic=topics.SOFTCAP,
    fix="cap the scaled scores: softcap · tanh(scores / softcap)",
    shows="scores that are not small compared with the softcap",
)


SOFTCAP = (
    _softcap(
        "softcap_missing",
        "the softcap is missing",
        lambda recipe: None if recipe.problem.softcap is None else vary(recipe, softcap=None),
        option=lambda _: "leave --softcap out",
    ),
    _softcap(
        "softcap_before_scale",
        "the softcap comes before the scale: scale · softcap · tanh(q·k / softcap)",
        _cap_before("scale"),
        shows="a scale other than 1",
    ),
    _softcap(
        "softcap_after_mask",
        "the softcap comes after the mask: hidden scores become −softcap, and hidden keys get "
        "weight",
        _cap_before(None),
        fix="cap first, add the bias, and hide last",
        shows="any hidden key",
    ),
    _softcap(
        "softcap_after_bias",
        "the softcap comes after the bias, and caps it too",
        _cap_before("hide"),
        fix="cap first, and add the bias to the capped scores",
        shows="a bias or ALiBi",
    ),
    _softcap(
        "softcap_undivided",
        "the scores are not divided by the softcap before tanh",
        _cap_as("cap_undivided"),
    ),
    _softcap(
        "softcap_unmultiplied",
        "tanh is not multiplied by the softcap",
        _cap_as("cap_unmultiplied"),
    ),
    _softcap(
        "softcap_clipped", "the scores are clipped at ±softcap, without tanh", _cap_as("clip")
    ),
)


def _bias_as(change: Callable[[Array], Array | None]) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        if "bias" not in recipe.terms:
            return None
        new = change(recipe.terms["bias"])
        return None if new is None else with_term(recipe, "bias", new)

    return apply


def _scaled(recipe: Recipe) -> Recipe | None:
    return moved(recipe, "bias", before="scale") if "bias" in recipe.terms else None


def _multiplied(recipe: Recipe) -> Recipe | None:
    """Multiply the scores with the bias."""
    if "bias" not in recipe.terms:
        return None
    order = tuple("times_mask" if step == "bias" else step for step in recipe.order)
    return replace(recipe, order=order, terms={**recipe.terms, "times_mask": recipe.terms["bias"]})


def _after_softmax(recipe: Recipe) -> Recipe | None:
    """Add the bias to the weights."""
    if "bias" not in recipe.terms:
        return None
    bias = recipe.terms["bias"]
    order = tuple(step for step in recipe.order if step != "bias")
    after = (*recipe.after, lambda _, weights: weights + bias)
    return replace(recipe, order=order, after=after)


def _before_cap(recipe: Recipe) -> Recipe | None:
    if "bias" not in recipe.terms or "cap" not in recipe.order or recipe.problem.softcap is None:
        return None
    return moved(recipe, "bias", before="cap")


def _heads_last(*, stored: bool) -> Apply:
    """Make an `apply` that reads a bias without permuting its axes.

    Parameters
    ----------
    stored : bool
        It lies in memory as (L, S, H) and is read as (H, L, S); else the other way round.
    """

    def apply(recipe: Recipe) -> Recipe | None:
        bias, (_, heads, queries, keys) = recipe.whole.bias, recipe.whole.shape
        first, last = (heads, queries, keys), (queries, keys, heads)
        if bias is None or bias.shape[1:] != first or heads == 1:
            return None
        entry, head, rows = recipe.part
        h, i, j = np.ix_(
            np.arange(heads)[slice(None) if head is None else [head]],
            np.arange(queries)[slice(None) if rows is None else slice(*rows)],
            np.arange(keys),
        )
        if stored:
            i, j, h = np.unravel_index(np.ravel_multi_index((h, i, j), first), last)
        else:
            h, i, j = np.unravel_index(np.ravel_multi_index((i, j, h), last), first)
        own = bias if entry is None or len(bias) == 1 else bias[entry : entry + 1]
        return with_term(recipe, "bias", widen(own[:, h, i, j], np.float64))

    return apply


_bias = partial(
    Convention,
    topic=topics.BIAS,
    fix="add the bias to the scaled scores, once",
    shows="a bias that differs from key to key",
)


BIAS = (
    _bias(
        "bias_ignored",
        "the bias is ignored",
        _bias_as(np.zeros_like),
        option=lambda _: "leave --bias out",
    ),
    _bias(
        "bias_scaled",
        "the bias is added before the scale, and scaled with the scores",
        _scaled,
        shows="a scale other than 1",
    ),
    _bias("bias_subtracted", "the bias is subtracted", _bias_as(np.negative)),
    _bias("bias_twice", "the bias is added twice", _bias_as(lambda bias: 2 * bias)),
    _bias("bias_multiplied", "the scores are multiplied with the bias", _multiplied),
    _bias("bias_after_softmax", "the bias is added to the weights, after softmax", _after_softmax),
    _bias(
        "bias_transposed",
        "the bias is transposed: its rows are taken for keys",
        _bias_as(transposed),
        fix="index the bias as (query, key)",
        shows="a bias that is not symmetric",
        needs=frozenset({"rows"}),
    ),
    *(
        _bias(
            f"bias_{name}",
            f"each score gets the bias {words}",
            _bias_as(change),
            fix="index the bias as (query, key), both from 0",
            shows="a bias that is not the same everywhere",
            topic=topics.BIAS_PLACES,
            needs=frozenset({"rows"}),
        )
        for name, words, change in off_by_one()
    ),
    *(
        _bias(
            name,
            meaning,
            _heads_last(stored=stored),
            fix="order the axes by permute(2, 0, 1) where the heads stand last; a view or reshape "
            "leaves the numbers where they are",
            shows="a bias that differs from head to head",
            topic=topics.BIAS_PLACES,
        )
        for name, meaning, stored in (
            (
                "bias_viewed_heads_first",
                "the bias lies in memory as (L, S, H), and is read as (H, L, S)",
                True,
            ),
            (
                "bias_viewed_heads_last",
                "the bias lies in memory as (H, L, S), and is read as (L, S, H)",
                False,
            ),
        )
    ),
    _bias(
        "bias_before_softcap",
        "the bias is added before the softcap, and capped too",
        _before_cap,
        fix="add the bias to the capped scores",
        shows="a bias and a softcap",
    ),
)
