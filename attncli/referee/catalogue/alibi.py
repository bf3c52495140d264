"""Mistakes with ALiBi."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.positions import alibi_slopes
from attncli.referee import topics
from attncli.referee.convention import Apply, Convention, moved, with_term
from attncli.referee.options import stated, without_alibi
from attncli.referee.recipe import Recipe, distance
from attncli.referee.replacing import replace
from attncli.referee.rounding import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ALIBI"]

Array = npt.NDArray[Any]


def _bias_by(term: Callable[[Array, Array], Array], *, from_zero: bool = False) -> Apply:
    """Make an `apply` with another term in the place of ALiBi's; slopes are (H, 1, 1)."""

    def apply(recipe: Recipe) -> Recipe | None:
        slopes = recipe.problem.alibi_slopes
        if slopes is None or "alibi" not in recipe.terms:
            return None
        offsets = (recipe.start,) if from_zero else None
        new = term(slopes[:, None, None], distance(recipe.problem, offsets))
        return with_term(recipe, "alibi", new)

    return apply


def _unasked(recipe: Recipe) -> Recipe | None:
    problem = recipe.problem
    if problem.alibi_slopes is not None:
        return None
    slopes = np.array(alibi_slopes(problem.shape[1]))[:, None, None]
    term = -slopes * np.abs(distance(problem))
    return with_term(recipe, "alibi", term)


def _keys_only(recipe: Recipe, rounding: Callable[[Array], Array] | None = None) -> Recipe | None:
    slopes = recipe.problem.alibi_slopes
    if slopes is None:
        return None
    term = slopes[:, None, None] * np.arange(recipe.problem.shape[3])
    if rounding is None:
        return with_term(recipe, "alibi", term)
    rounded = rounding(term)
    return None if np.array_equal(rounded, term) else with_term(recipe, "alibi", rounded)


def _in_stored_scores(
    rounding: Callable[[Array], Array], recipe: Recipe, *, twice: bool
) -> Recipe | None:
    """Round the term, and the scores with it; before it is added, too, where they are stored twice.

    BLOOM's baddbmm stores them once, a product and a sum store them twice.
    """
    made = _keys_only(recipe)
    if made is None:
        return None
    inner, term = recipe.softmax, rounding(made.terms["alibi"])

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        if twice:
            scores = rounding(scores - term) + term
        return inner(recipe, rounding(scores).astype(scores.dtype))

    return replace(with_term(made, "alibi", term), softmax=softmax)


def _slopes(of: Callable[[Array, int], Array]) -> Apply:
    """Make an `apply` with other slopes: of each head's number, from 0, and that of all heads."""

    def apply(recipe: Recipe) -> Recipe | None:
        heads = recipe.problem.shape[1]
        slopes = of(np.arange(heads), heads)[:, None, None]
        return _bias_by(lambda _, far: -slopes * np.abs(far))(recipe)

    return apply


_alibi = partial(
    Convention,
    topic=topics.ALIBI,
    fix="subtract slope · |i + offset − j| from the scaled scores",
    shows="more than one key",
)


ALIBI = (
    _alibi(
        "alibi_ignored",
        "ALiBi is ignored",
        _bias_by(lambda _, far: np.zeros_like(far)),
        option=without_alibi,
    ),
    _alibi(
        "alibi_unasked",
        "ALiBi is applied, with the slopes of the paper, but the problem states none",
        _unasked,
        fix="leave ALiBi out, or state it",
        option=stated("--alibi"),
        needs=frozenset({"heads"}),
    ),
    _alibi(
        "alibi_signed",
        "ALiBi is signed: −slope · (i − j), so that later keys gain instead of losing",
        _bias_by(lambda slopes, far: -slopes * far),
        shows="queries that see later keys",
    ),
    _alibi(
        "alibi_signed_backwards",
        "ALiBi is signed the other way: + slope · (i − j), so that earlier keys gain",
        _bias_by(lambda slopes, far: slopes * far),
        shows="queries that see later keys",
        variant_of=("alibi_added",),
    ),
    _alibi(
        "alibi_positional",
        "ALiBi is positional: + slope · j, of only the key",
        _keys_only,
        shows="queries that see later keys; under a causal mask only scores and lse",
    ),
    *(
        _alibi(
            f"alibi_positional_in_scores_of_{fmt}{name}",
            f"ALiBi is + slope · j, of only the key, and scores are stored in {fmt} {when} it is "
            "added, where the terms of far keys leave them few digits",
            partial(_in_stored_scores, PRECISIONS[fmt].rounded, twice=bool(name)),
            fix="subtract slope · |i + offset − j|, or keep the scores in float32",
            shows="many keys",
            topic=topics.ALIBI_STORED,
            variant_of=(f"alibi_positional_in_scores_of_{fmt}",) if name else (),
        )
        for fmt in ("bfloat16", "float16")
        for name, when in (("", "when"), ("_stored_twice", "before and when"))
    ),
    *(
        _alibi(
            f"alibi_positional_in_{fmt}",
            f"ALiBi is + slope · j, of only the key, and rounded to {fmt}, as far keys need more "
            "digits than it has",
            partial(_keys_only, rounding=PRECISIONS[fmt].rounded),
            fix="subtract slope · |i + offset − j|, or add slope · j in float32",
            shows="more keys than the format has whole numbers",
        )
        for fmt in ("bfloat16", "float16")
    ),
    _alibi(
        "alibi_added",
        "ALiBi has the wrong sign: distant keys gain",
        _bias_by(lambda slopes, far: slopes * np.abs(far)),
    ),
    _alibi(
        "alibi_scaled",
        "ALiBi is added before the scale, and scaled with the scores",
        lambda recipe: moved(recipe, "alibi", before="scale") if "alibi" in recipe.terms else None,
        shows="a scale other than 1",
    ),
    _alibi(
        "alibi_without_offset",
        "ALiBi counts queries from 0, although they stand at an offset",
        _bias_by(lambda slopes, far: -slopes * np.abs(far), from_zero=True),
        shows="an offset other than 0",
    ),
    _alibi(
        "alibi_slopes_reversed",
        "the slopes are taken in the reverse order of the heads",
        _bias_by(lambda slopes, far: -slopes[::-1] * np.abs(far)),
        fix="give the first head the first slope: the paper's are from steep to flat",
        shows="more than one head",
        needs=frozenset({"heads"}),
    ),
    _alibi(
        "alibi_slopes_plain",
        "the slopes are 2^(−8h/H), although H is not a power of two",
        _slopes(lambda head, heads: 2.0 ** (-8.0 * (head + 1) / heads)),
        fix="take the paper's slopes: those of the next lower power of two, then every other one "
        "of the next higher",
        shows="a number of heads that is not a power of two",
        needs=frozenset({"heads"}),
    ),
    _alibi(
        "alibi_slopes_from_zero",
        "the slopes are 2^(−8h/H) with h counted from 0, so that the first is 1",
        _slopes(lambda head, heads: 2.0 ** (-8.0 * head / heads)),
        fix="count heads from 1: the first slope is 2^(−8/H)",
        shows="any distance",
        needs=frozenset({"heads"}),
    ),
    _alibi(
        "alibi_slopes_halved",
        "the slopes are 1/2, 1/4, 1/8, … however many heads there are",
        _slopes(lambda head, _: 2.0 ** -(head + 1.0)),
        fix="take 2^(−8h/H), h from 1: halves are those of 8 heads",
        shows="a number of heads other than 8",
        needs=frozenset({"heads"}),
    ),
)
