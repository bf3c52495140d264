"""Mistakes with positions in the scores: ALiBi and rotary embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.operands import prepare
from attncli.problem import Rope
from attncli.referee.convention import Convention, moved
from attncli.referee.options import without_alibi, without_rope
from attncli.referee.recipe import Recipe, distance, vary

if TYPE_CHECKING:
    from attncli.positions import Pairing

__all__ = ["ALIBI", "ROPE"]

Array = npt.NDArray[Any]
Apply = Callable[[Recipe], Recipe | None]
_PAIRINGS: tuple[Pairing, ...] = ("half", "interleaved")


def _bias_by(term: Callable[[Array, Array], Array], *, from_zero: bool = False) -> Apply:
    """Make an `apply` with another term in the place of ALiBi's; slopes are (H, 1, 1)."""

    def apply(recipe: Recipe) -> Recipe | None:
        slopes = recipe.problem.slopes
        if slopes is None or "alibi" not in recipe.terms:
            return None
        offsets = (recipe.start,) if from_zero else None
        new = term(slopes[:, None, None], distance(recipe.problem, offsets))
        return replace(recipe, terms={**recipe.terms, "alibi": new})

    return apply


def _keys_only(recipe: Recipe) -> Recipe | None:
    slopes = recipe.problem.slopes
    if slopes is None:
        return None
    term = slopes[:, None, None] * np.arange(recipe.problem.shape[3])
    return replace(recipe, terms={**recipe.terms, "alibi": term})


def _plain_slopes(recipe: Recipe) -> Recipe | None:
    if recipe.problem.slopes is None:
        return None
    heads = recipe.problem.shape[1]
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return _bias_by(lambda _, far: -slopes[:, None, None] * np.abs(far))(recipe)


def _alibi(name: str, meaning: str, apply: Apply, **more: Any) -> Convention:
    fix = more.pop("fix", "subtract slope · |i + offset − j| from the scaled scores")
    shows = more.pop("shows", "more than one key")
    return Convention(
        name=name, topic="alibi", meaning=meaning, fix=fix, shows=shows, apply=apply, **more
    )


ALIBI = (
    _alibi(
        "alibi_ignored",
        "ALiBi is ignored",
        _bias_by(lambda _, far: np.zeros_like(far)),
        option=without_alibi,
    ),
    _alibi(
        "alibi_signed",
        "ALiBi is signed: −slope · (i − j), so that later keys gain instead of losing",
        _bias_by(lambda slopes, far: -slopes * far),
        shows="queries that see later keys",
    ),
    _alibi(
        "alibi_positional",
        "ALiBi is positional: + slope · j of the key alone",
        _keys_only,
        shows="queries that see later keys; under a causal mask scores and lse alone",
    ),
    _alibi(
        "alibi_added",
        "ALiBi has the wrong sign: far keys gain",
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
        "ALiBi counts queries from 0 where they stand at an offset",
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
        "the slopes are 2^(−8h/H) where H is no power of two",
        _plain_slopes,
        fix="take the paper's slopes: those of the next lower power of two, then every other one "
        "of the next higher",
        shows="a number of heads that is no power of two",
        needs=frozenset({"heads"}),
    ),
)


def _rope_as(change: Callable[[Rope], Rope | None]) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        rope = recipe.problem.rope
        if rope is None:
            return None
        new = change(rope)
        return None if new == rope else vary(recipe, rope=new)

    return apply


def _rope_added(pairing: Pairing) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        width = problem.query.shape[3]
        # Of two components both pairings make the same pair.
        same = pairing == "interleaved" and width == 2
        if problem.rope is not None or width % 2 or same:
            return None
        return vary(recipe, rope=Rope(pairing))

    return apply


def _other_pairing(rope: Rope) -> Rope:
    return rope._replace(pairing="half" if rope.pairing == "interleaved" else "interleaved")


def _rope_from_zero(recipe: Recipe) -> Recipe | None:
    visible = recipe.problem.visible
    there = (recipe.start,)
    if recipe.problem.rope is None or visible.offsets == there:
        return None
    return vary(recipe, visible=visible._replace(offsets=there))


def _one_side(side: str) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.problem.rope is None:
            return None
        turned = getattr(prepare(replace(recipe.problem, score="dot", score_weight=None)), side)
        return vary(recipe, rope=None, **{side: turned})

    return apply


def _backwards(recipe: Recipe) -> Recipe | None:
    """Turn by negative angles: exchange the two components of each pair before and after."""
    rope = recipe.problem.rope
    if rope is None:
        return None
    width = recipe.problem.query.shape[3]
    halves = np.arange(width).reshape(2, -1)[::-1].reshape(-1)
    pairs = np.arange(width).reshape(-1, 2)[:, ::-1].reshape(-1)
    order = halves if rope.pairing == "half" else pairs
    problem = recipe.problem
    return vary(
        recipe,
        query=widen(problem.query, np.float64)[..., order],
        key=widen(problem.key, np.float64)[..., order],
    )


def _rope(name: str, meaning: str, apply: Apply, **more: Any) -> Convention:
    fix = more.pop("fix", "rotate query and key, each by its own position, before the product")
    shows = more.pop("shows", "more than one position")
    return Convention(
        name=name, topic="rope", meaning=meaning, fix=fix, shows=shows, apply=apply, **more
    )


ROPE = (
    _rope(
        "rope_pairing",
        "the rotary embedding pairs components the other way (half against interleaved)",
        _rope_as(_other_pairing),
        fix="pair component p with p + D/2 (half) or 2p with 2p + 1 (interleaved), as the "
        "weights were trained",
        shows="a width above 2",
        option=lambda p: "" if p.rope is None else f"--rope {_other_pairing(p.rope).pairing}",
    ),
    _rope(
        "rope_missing",
        "the rotary embedding is missing",
        _rope_as(lambda _: None),
        option=without_rope,
    ),
    *(
        _rope(
            f"rope_unasked_{pairing}",
            f"a rotary embedding is applied that the problem does not state ({pairing} pairing, "
            "base 10000)",
            _rope_added(pairing),
            fix="leave the rotation out, or state it",
            option=lambda _, pairing=pairing: f"--rope {pairing}",
        )
        for pairing in _PAIRINGS
    ),
    _rope(
        "rope_without_offset",
        "the rotary embedding counts queries from 0 where they stand at an offset",
        _rope_from_zero,
        fix="rotate query i by the angle of position i + offset",
        shows="an offset other than 0",
    ),
    _rope("rope_query_only", "only the query is rotated", _one_side("query")),
    _rope("rope_key_only", "only the key is rotated", _one_side("key")),
    _rope("rope_backwards", "the rotation turns the other way", _backwards),
    _rope(
        "rope_base",
        "the rotary embedding has the base 10000, not the one given",
        _rope_as(lambda rope: rope._replace(base=10000.0)),
        fix="take the base that the problem states",
        shows="a base other than 10000",
        option=lambda _: "--rope-base 10000",
    ),
)
