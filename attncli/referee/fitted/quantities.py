"""The numbers that are fitted to the files: scale, softcap, base, window, factors of terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.names import HIDING_RULES
from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import with_rule, with_term
from attncli.referee.options import scaled, shortest
from attncli.referee.recipe import band, vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Recipe
    from attncli.referee.topics import Topic

__all__ = ["QUANTITIES", "STEP", "Quantity"]

# As multiples of what is right: these are tried first, then a root of 2 more and less than the
# best of them, and between the neighbours of the best of those the number is narrowed.
STEP = 2.0**0.5
_DENSE = tuple(STEP**power for power in range(-20, 21))
_MULTIPLES = _DENSE[::2]
# Of a factor with few digits.
_NEAR = 5e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class Quantity:
    """A number that bears on the answer, and that an implementation may have got wrong.

    Attributes
    ----------
    name, topic, fix, shows
        Of the convention.
    right : callable
        The number of a whole problem; None or 0 where it has none.
    put : callable
        The recipe that takes another number.
    meaning : callable
        From the other number and the right one, as texts, to what the convention means.
    option : callable
        From the other number to the option with which attncli takes it; empty where there is none.
    negative : bool
        It may have the other sign.
    whole : bool
        It is a whole number.
    turns : bool
        It turns queries and keys, so that errors rise and fall again: more multiples are tried.
    variant_of : tuple of str
        Of the convention.
    """

    name: str
    topic: Topic
    right: Callable[[Problem], float | None]
    put: Callable[[Recipe, float], Recipe]
    meaning: Callable[[str, str], str]
    fix: str
    shows: str
    option: Callable[[float, Problem], str] = lambda *_: ""
    negative: bool = False
    whole: bool = False
    turns: bool = False
    variant_of: tuple[str, ...] = ()

    @property
    def multiples(self) -> tuple[float, ...]:
        """What is tried first, as multiples of what is right."""
        multiples = _DENSE if self.turns else _MULTIPLES
        return multiples + tuple(-one for one in multiples if self.negative)


def _with_base(recipe: Recipe, base: float) -> Recipe:
    rope = recipe.problem.rope
    return recipe if rope is None else vary(recipe, rope=rope._replace(base=base))


def _rope_base(problem: Problem) -> float | None:
    return None if problem.rope is None or problem.rope.frequencies else problem.rope.base


def _with_positions_times(recipe: Recipe, factor: float) -> Recipe:
    rope = recipe.problem.rope
    if rope is None:
        return recipe
    frequencies = factor * rope.of_width(recipe.problem.query.shape[3])
    return vary(recipe, rope=rope._replace(frequencies=tuple(frequencies.tolist())))


def _uncapped(problem: Problem) -> float | None:
    return 1.0 if problem.softcap is None else None


def _windowless(problem: Problem) -> float | None:
    """Return a number to begin with; none where a window would be padding by another name.

    Of a single query at the first key, either hides the last keys.
    """
    visible = problem.visible
    at_first_key = problem.shape[2] == 1 and not any(visible.offsets)
    return None if at_first_key or visible.window is not None else 1.0


def _with_window(recipe: Recipe, reach: float) -> Recipe:
    """Return the recipe with a window to the left, and to the right where later keys are seen."""
    problem = recipe.problem
    new = min(max(round(reach), 0), problem.shape[3])
    both = (new, 0 if problem.visible.causal else new)
    return with_rule(recipe, "window", band(problem, window=both))


def _left(problem: Problem) -> int | None:
    window = problem.visible.window
    return None if window is None else window[0]


def _with_left(recipe: Recipe, left: float) -> Recipe:
    """Return the recipe with a window that reaches so far to the left; a symmetric one stays so."""
    problem = recipe.problem
    sides = problem.visible.window or (None, None)
    new = min(max(round(left), 0), problem.shape[3])
    both = (new, new if sides[0] == sides[1] else sides[1])
    return with_rule(recipe, "window", band(problem, window=both))


def _lowered(recipe: Recipe, score: float) -> Recipe:
    """Return the recipe in which each rule adds a number to the scores that it hides."""
    rules = {name: rule for name, rule in recipe.rules.items() if name != "query_lengths"}
    lower = sum((np.where(rule, 0.0, score) for rule in rules.values()), np.zeros((1, 1, 1, 1)))
    kept = {name: rule for name, rule in recipe.rules.items() if name not in rules}
    terms = {**recipe.terms, "lower": lower}
    return replace(recipe, rules=kept, terms=terms, order=(*recipe.order, "lower"))


def _hides(problem: Problem) -> float | None:
    """Return a number to begin with, where a rule may hide keys."""
    given = (getattr(problem.visible, rule) for rule in HIDING_RULES if rule != "query_lengths")
    return -10.0 if any(rule is not None and rule is not False for rule in given) else None


def _times(term: str) -> Callable[[Recipe, float], Recipe]:
    def put(recipe: Recipe, factor: float) -> Recipe:
        return with_term(recipe, term, recipe.terms[term] * factor)

    return put


def _has_output_bias(problem: Problem) -> float | None:
    return None if problem.output is None or problem.output.bias is None else 1.0


def _with_output_bias_times(recipe: Recipe, factor: float) -> Recipe:
    output = recipe.problem.output
    if output is None or output.bias is None:
        return recipe
    return vary(recipe, output=replace(output, bias=widen(output.bias, np.float64) * factor))


def _of_powers_of_two(factor: float) -> str:
    """Return what a factor of about ln 2 comes from; nothing of another one."""
    if not math.isclose(factor, math.log(2), rel_tol=_NEAR):
        return ""
    return ", which is ln 2: for 2^x the scale is multiplied with log₂ e, and this is not"


def _softcap_of_powers_of_two(found: str, right: str) -> str:
    factor = float(found) / float(right)
    words = _of_powers_of_two(factor)
    return f": about {factor:.3g} times it{words}" if words else ""


QUANTITIES = (
    Quantity(
        name="another_scale",
        topic=topics.SCALE,
        right=lambda problem: problem.scale,
        put=lambda recipe, scale: vary(recipe, scale=scale),
        meaning=lambda found, right: f"the scale is about {found}, where {right} is right",
        fix="multiply Q·Kᵀ by the scale that the problem states; unless it states one, 1/√D for "
        "the dot product and 1 for others",
        shows="almost any input",
        option=scaled,
        negative=True,
        variant_of=("strongest_keys",),
    ),
    Quantity(
        name="cosine_at_another_scale",
        topic=topics.SCORE_FUNCTION,
        right=lambda problem: 1.0 if problem.score == "dot" else None,
        put=lambda recipe, scale: vary(recipe, score="cosine", scale=scale),
        meaning=lambda found, _: (
            f"query and key are divided by their lengths, and the cosines are multiplied by {found}"
        ),
        fix="multiply query and key as they are, or state the score cosine",
        shows="almost any input",
        option=lambda scale, _: f"--score cosine --scale {shortest(scale)}",
        variant_of=("strongest_keys",),
    ),
    Quantity(
        name="output_bias_repeated",
        topic=topics.OUTPUT_BIAS,
        right=_has_output_bias,
        put=_with_output_bias_times,
        meaning=lambda found, _: f"the bias of the output projection is added {found} times",
        fix="add it once: not on every device, and not for every head",
        shows="an output projection with a bias",
        whole=True,
    ),
    Quantity(
        name="another_softcap",
        topic=topics.SOFTCAP,
        right=lambda problem: problem.softcap,
        put=lambda recipe, cap: vary(recipe, softcap=cap),
        meaning=lambda found, right: (
            f"the softcap is about {found}, where {right} is right"
            f"{_softcap_of_powers_of_two(found, right)}"
        ),
        fix="take the softcap that the problem states",
        shows="scores that are not small compared with the softcap",
        option=lambda cap, _: f"--softcap {shortest(cap)}",
    ),
    Quantity(
        name="softcap_unasked",
        topic=topics.SOFTCAP,
        right=_uncapped,
        put=lambda recipe, cap: vary(recipe, softcap=cap),
        meaning=lambda found, _: (
            f"a softcap of about {found} is applied, but the problem states none"
        ),
        fix="leave the softcap out, or state it",
        shows="scores that are not small compared with the softcap",
        option=lambda cap, _: f"--softcap {shortest(cap)}",
    ),
    Quantity(
        name="another_rope_base",
        topic=topics.ROPE,
        right=_rope_base,
        put=_with_base,
        meaning=lambda found, right: (
            f"the base of the rotary embedding is about {found}, where {right} is right"
        ),
        fix="take the base that the problem states (rope_theta in the file of a model)",
        shows="more than one query or key",
        turns=True,
        option=lambda base, _: f"--rope-base {shortest(base)}",
    ),
    Quantity(
        name="rope_positions_scaled",
        topic=topics.ROPE,
        right=lambda problem: None if problem.rope is None else 1.0,
        put=_with_positions_times,
        meaning=lambda found, _: (
            f"the positions of the rotary embedding are multiplied by {found}, as in position "
            "interpolation"
        ),
        fix="take the positions as they are, or state the frequencies (rope_frequencies)",
        shows="more than one query or key",
        turns=True,
    ),
    Quantity(
        name="another_window",
        topic=topics.WINDOW,
        right=_left,
        put=_with_left,
        meaning=lambda found, right: (
            f"the window reaches {found} keys back, where {right} is right"
        ),
        fix="take the window that the problem states",
        shows="more keys than the window holds",
        whole=True,
    ),
    Quantity(
        name="window_unasked",
        topic=topics.WINDOW,
        right=_windowless,
        put=_with_window,
        meaning=lambda found, _: (
            f"a window that reaches {found} keys far is applied, but the problem states none"
        ),
        fix="leave the window out, or state it",
        shows="more keys than the window holds",
        option=lambda reach, _: f"--window {shortest(reach)}",
        whole=True,
        variant_of=("other_lengths", "padding_unasked"),
    ),
    Quantity(
        name="hidden_scores_lowered",
        topic=topics.HIDING,
        right=_hides,
        put=_lowered,
        meaning=lambda found, _: (
            f"each mask adds about {found} to the scores that it hides, which is not enough"
        ),
        fix="set hidden scores to −inf, before the softmax",
        shows="any hidden key",
        variant_of=("blind_rows_rounded",),
    ),
    Quantity(
        name="hidden_scores_set",
        topic=topics.HIDING,
        right=_hides,
        put=lambda recipe, score: replace(recipe, fill=score),
        meaning=lambda found, _: f"hidden scores are set to about {found}, not to −inf",
        fix="set hidden scores to −inf, before the softmax",
        shows="any hidden key",
    ),
    Quantity(
        name="another_alibi_factor",
        topic=topics.ALIBI,
        right=lambda problem: None if problem.alibi_slopes is None else 1.0,
        put=_times("alibi"),
        meaning=lambda found, _: (
            f"the ALiBi slopes are about {found} times the right ones"
            f"{_of_powers_of_two(float(found))}"
        ),
        fix="take the slopes that the problem states: do not scale them with the product, and "
        "mind that 2^x and exp(x) need other ones",
        shows="more than one query or key",
    ),
    Quantity(
        name="another_bias_factor",
        topic=topics.BIAS,
        right=lambda problem: None if problem.bias is None else 1.0,
        put=_times("bias"),
        meaning=lambda found, _: (
            f"the bias is about {found} times the right one{_of_powers_of_two(float(found))}"
        ),
        fix="add the bias as it is: do not scale it with the product, and mind that 2^x and "
        "exp(x) need another one",
        shows="a bias that is not 0",
    ),
)
