"""Numbers that no convention knows, found from the files themselves: a scale, a cap, a base."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.convention import Convention, with_rule
from attncli.referee.evaluation import evaluate
from attncli.referee.options import scaled, shortest
from attncli.referee.recipe import band, vary
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["QUANTITIES", "another", "comparable", "fewest_digits"]

Array = npt.NDArray[Any]
# As multiples of what is right: tried first, a factor apart, and then narrowed.
_STEP = 2.0**0.5
_MULTIPLES = tuple(_STEP**power for power in range(-20, 21))
# The error falls to the right number on a straight line from either side: so far as float64 goes.
_NARROWED = 75
# After so many sections, a thousandth of a step is left; where the error has fallen neither below
# this share of what it was nor of what the multiple left, other numbers do not explain the files.
_SOON, _LEFT, _FALLEN = 14, 0.75, 0.9
_AS_NEAR = 1.1
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Quantity:
    """A number that bears on the answer, and that an implementation may have got wrong.

    Attributes
    ----------
    name, topic, fix, shows
        Of the convention.
    right : callable
        The number of a problem; None or 0 where it has none.
    put : callable
        The recipe that takes another number.
    meaning : callable
        From the other number and the right one, as texts, to what the convention means.
    option : callable
        From the other number to how attncli is told to take it; empty where it cannot be.
    negative : bool
        It may have the other sign.
    whole : bool
        It is a whole number.
    variant_of : tuple of str
        Of the convention.
    """

    name: str
    topic: str
    right: Callable[[Problem], float | None]
    put: Callable[[Recipe, float], Recipe]
    meaning: Callable[[str, str], str]
    fix: str
    shows: str
    option: Callable[[float, Problem], str] = lambda *_: ""
    negative: bool = False
    whole: bool = False
    variant_of: tuple[str, ...] = ()

    @property
    def multiples(self) -> tuple[float, ...]:
        """What is tried first, as multiples of what is right."""
        return _MULTIPLES + tuple(-one for one in _MULTIPLES if self.negative)


def another(quantity: Quantity, case: Case, deadline: float = math.inf) -> Convention | None:
    """Return the convention of the number with which a case comes nearest to its files.

    Parameters
    ----------
    quantity : Quantity
    case : Case
        Small enough to be evaluated.
    deadline : float
        On the clock of `time.monotonic`.

    Returns
    -------
    Convention or None
        None where there is no number to be found: the problem has no such thing, the files have
        other shapes, or no number is much nearer than the right one; or no time to find it.
    """
    right = quantity.right(case.recipe.problem)
    if not right or not comparable(case):
        return None

    def distance(number: float) -> float:
        return _distance(case, quantity.put(case.recipe, number))

    started = time.monotonic()
    before = _distance(case, case.recipe)
    now = time.monotonic()
    # So often about is a case evaluated.
    times = len(quantity.multiples) + _NARROWED + 10
    if now + times * (now - started) > deadline:
        return None
    multiple = min(quantity.multiples, key=lambda tried: distance(tried * right))
    found = _narrowed(lambda tried: distance(tried * right), multiple, before)
    if found is None:
        return None
    best = right * found
    near = (float(round(best) + step) for step in (-1, 0, 1))
    number = min(near, key=distance) if quantity.whole else fewest_digits(best, distance)
    return Convention(
        name=quantity.name,
        topic=quantity.topic,
        meaning=quantity.meaning(f"{number:.6g}", shortest(float(f"{right:.4g}"))),
        fix=quantity.fix,
        shows=quantity.shows,
        apply=lambda recipe: quantity.put(recipe, number),
        option=lambda problem: quantity.option(number, problem),
        variant_of=quantity.variant_of,
    )


def fewest_digits(best: float, distance: Callable[[float], float]) -> float:
    """Return a number with as few digits as come about as near to the files as the best.

    Parameters
    ----------
    best : float
    distance : callable
        How far the files lie from what a number gives.
    """
    most = _AS_NEAR * distance(best)
    rounded = (float(f"{best:.{digits}g}") for digits in range(2, 17))
    return next((number for number in rounded if distance(number) <= most), best)


def comparable(case: Case) -> bool:
    """Return whether a case can be evaluated, and its files have the shapes of the outputs."""
    return case.evaluable and all(
        case.shaped(case.recipe, case.right, name).shape == file.shape and np.isfinite(file).any()
        for name, file in case.files.items()
    )


def _narrowed(distance: Callable[[float], float], multiple: float, before: float) -> float | None:
    """Return the best multiple between the neighbours of one, by golden sections.

    None where it is soon seen that no error falls much below what it was before.

    References
    ----------
    Kiefer 1953, "Sequential minimax search for a maximum".
    """
    low, high = multiple / _STEP, multiple * _STEP
    one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_one, at_other = distance(one), distance(other)
    enough = max(_LEFT * before, _FALLEN * distance(multiple))
    for section in range(_NARROWED):
        # The right number itself may have lost a digit or two, which nothing has shown yet.
        if section == _SOON and multiple != 1 and min(at_one, at_other) > enough:
            return None
        if at_one < at_other:
            high, other, at_other = other, one, at_one
            one = high - _GOLDEN * (high - low)
            at_one = distance(one)
        else:
            low, one, at_one = one, other, at_other
            other = low + _GOLDEN * (high - low)
            at_other = distance(other)
    return (low + high) / 2


def _distance(case: Case, recipe: Recipe) -> float:
    """Return how far the files lie from what a recipe makes, relative to their own size."""
    outputs = evaluate(recipe, products=case.products)
    total = 0.0
    for name, file in case.files.items():
        made = case.shaped(recipe, outputs, name)
        both = np.isfinite(file) & np.isfinite(made)
        size = root_mean_square(file[both]) or 1.0
        total += root_mean_square(file[both] - made[both]) / size if both.any() else math.inf
    return total


def _with_base(recipe: Recipe, base: float) -> Recipe:
    rope = recipe.problem.rope
    return recipe if rope is None else vary(recipe, rope=rope._replace(base=base))


def _uncapped(problem: Problem) -> float | None:
    return 1.0 if problem.softcap is None else None


def _windowless(problem: Problem) -> float | None:
    return 1.0 if problem.visible.window is None else None


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


def _times(term: str) -> Callable[[Recipe, float], Recipe]:
    def put(recipe: Recipe, factor: float) -> Recipe:
        return replace(recipe, terms={**recipe.terms, term: recipe.terms[term] * factor})

    return put


QUANTITIES = (
    Quantity(
        name="another_scale",
        topic="scale",
        right=lambda problem: problem.scale,
        put=lambda recipe, scale: vary(recipe, scale=scale),
        meaning=lambda found, right: f"the scale is about {found}, where {right} is right",
        fix="multiply Q·Kᵀ by the scale that the problem states; unless it states one, 1/√D for "
        "the dot product and 1 for others",
        shows="nearly any inputs",
        option=scaled,
        negative=True,
        variant_of=("strongest_keys",),
    ),
    Quantity(
        name="cosine_at_another_scale",
        topic="scale function",
        right=lambda problem: 1.0 if problem.score == "dot" else None,
        put=lambda recipe, scale: vary(recipe, score="cosine", scale=scale),
        meaning=lambda found, _: (
            f"query and key are divided by their lengths, and the cosines are multiplied by {found}"
        ),
        fix="multiply query and key as they are, or state the score cosine",
        shows="nearly any inputs",
        option=lambda scale, _: f"--score cosine --scale {shortest(scale)}",
    ),
    Quantity(
        name="another_softcap",
        topic="softcap",
        right=lambda problem: problem.softcap,
        put=lambda recipe, cap: vary(recipe, softcap=cap),
        meaning=lambda found, right: f"the softcap is about {found}, where {right} is right",
        fix="take the softcap that the problem states",
        shows="scores that are not small beside the softcap",
        option=lambda cap, _: f"--softcap {shortest(cap)}",
    ),
    Quantity(
        name="softcap_unasked",
        topic="softcap",
        right=_uncapped,
        put=lambda recipe, cap: vary(recipe, softcap=cap),
        meaning=lambda found, _: f"a softcap of about {found} is applied though none is asked for",
        fix="leave the softcap out, or state it",
        shows="scores that are not small beside the softcap",
        option=lambda cap, _: f"--softcap {shortest(cap)}",
    ),
    Quantity(
        name="another_rope_base",
        topic="rope",
        right=lambda problem: problem.rope and problem.rope.base,
        put=_with_base,
        meaning=lambda found, right: (
            f"the base of the rotary embedding is about {found}, where {right} is right"
        ),
        fix="take the base that the problem states (rope_theta in the file of a model)",
        shows="more than one query or key",
        option=lambda base, _: f"--rope-base {shortest(base)}",
    ),
    Quantity(
        name="another_window",
        topic="window",
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
        topic="window",
        right=_windowless,
        put=_with_window,
        meaning=lambda found, _: f"a window of {found} keys is applied though none is asked for",
        fix="leave the window out, or state it",
        shows="more keys than the window holds",
        option=lambda reach, _: f"--window {shortest(reach)}",
        whole=True,
    ),
    Quantity(
        name="another_alibi_factor",
        topic="alibi",
        right=lambda problem: None if problem.slopes is None else 1.0,
        put=_times("alibi"),
        meaning=lambda found, _: f"the ALiBi slopes are about {found} times those that are right",
        fix="take the slopes that the problem states: do not scale them with the product, and "
        "mind that 2^x and exp(x) need other ones",
        shows="more than one query or key",
    ),
    Quantity(
        name="another_bias_factor",
        topic="bias",
        right=lambda problem: None if problem.bias is None else 1.0,
        put=_times("bias"),
        meaning=lambda found, _: f"the bias is about {found} times the one that is right",
        fix="add the bias as it is: do not scale it with the product, and mind that 2^x and "
        "exp(x) need another one",
        shows="a bias that is not 0",
    ),
)
