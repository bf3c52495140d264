"""Numbers that no row knows, fitted to the files: a scale, a softcap, a base, a factor, by head.

Whatever the number is, the files say how far they lie from what it makes, and that falls to the
right number on a straight line from either side. It is looked for among multiples of the right
one, then by golden sections, then where the errors cross 0.

References
----------
Kiefer 1953, "Sequential minimax search for a maximum"; Dowell and Jarratt 1971, "A modified regula
falsi method for computing the root of an equation".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import HIDING_RULES
from attncli.numerics.dtypes import widen
from attncli.referee.fits.table import Fitting, at_first
from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.heads import of_context
from attncli.referee.mistakes.kernels import with_zeros
from attncli.referee.mistakes.masks import unmasked
from attncli.referee.mistakes.softmax import with_epsilon
from attncli.referee.mistakes.table import Mistake, Stage
from attncli.referee.options import scaled, shortest
from attncli.referee.pipeline import Outputs, Pipeline, Run, alibi, band
from attncli.referee.tolerance import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.parts import Case

__all__ = ["FITTINGS", "SCALE", "distance_of", "fewest_digits", "fitted", "told"]

# Multiples of what is right that are tried first, a root of 2 apart, and as many sections until
# float64 goes no further. After the first few, a thousandth of a step is left; where the error has
# fallen neither below this share of what it was nor of what the multiple left, no number explains
# the files.
_STEP = 2.0**0.5
_DENSE = tuple(_STEP**power for power in range(-20, 21))
_GOLDEN = (math.sqrt(5) - 1) / 2
_NARROWED, _SOON, _LEFT, _FALLEN = 75, 14, 0.75, 0.9
# Numbers of fewer digits come about as near; errors may be level at their lowest.
_AS_NEAR, _AS_LOW = 1.1, 1.001
# Roundings of a few steps.
_OF_SINGLE, _OF_DOUBLE = 2.0**-22, 2.0**-50
# 1/√n of a dimension, as near as float32 shows.
_LEAST_ROOT, _AS_A_ROOT = 0.01, 1e-6
# Digits that are left out change what is shown by so much of the difference.
_SHOWN_OF_GAP = 0.1
# Of a factor with few digits.
_NEAR = 5e-3
_NAMED = 4


def told(pairs: Any, verb: str) -> str:
    """Say what stands, or reads, where; some of it where there is much."""
    words = [f"{one} {verb} {other}" for one, other in pairs]
    more = len(words) - _NAMED
    return "; ".join(words[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def distance_of(case: Case, pipe: Pipeline) -> float:
    """Return how far the files lie from what a pipeline makes, relative to their own size."""
    outputs = case.outputs(pipe)
    total = 0.0
    for name, file in case.files.items():
        found, made = finite_in_both(file, case.shaped(pipe, outputs, name))
        size = root_mean_square(found) or 1.0
        total += root_mean_square(found - made) / size if found.size else math.inf
    return total


def _errors_of(case: Case, pipe: Pipeline) -> Array:
    """Return the errors that a pipeline leaves, each file's relative to its size."""
    outputs = case.outputs(pipe)
    each = []
    for name, file in case.files.items():
        size = root_mean_square(file[np.isfinite(file)]) or 1.0
        with np.errstate(invalid="ignore"):
            error = (file - case.shaped(pipe, outputs, name)) / (size * math.sqrt(file.size))
        each.append(np.where(np.isfinite(error), error, 0).ravel())
    return np.concatenate(each)


def fewest_digits(best: float, distance: Callable[[float], float], roundings: float = 0.0) -> float:
    """Return a number with as few digits as come about as near to the files as the best.

    ``roundings`` is how far the files may lie from the right one: the best comes nearer to few
    numbers.
    """
    most = max(_AS_NEAR * distance(best), roundings)
    rounded = (float(f"{best:.{digits}g}") for digits in range(2, 17))
    return next((number for number in rounded if distance(number) <= most), best)


@dataclass(frozen=True, eq=False, kw_only=True)
class Quantity:
    """A number that bears on the answer, and that an implementation may have got wrong.

    Attributes
    ----------
    name, stage, fix, shows, variant_of
        Of the mistake.
    right : callable
        The number of a problem; None or 0 where it has none.
    put : callable
        The pipeline that takes another number.
    meaning : callable
        From the other number and the right one, as texts, to what the mistake means.
    option : callable
        From the other number to the option with which attncli takes it.
    negative, whole : bool
        It may have the other sign; it is a whole number.
    turns : bool
        It turns queries and keys, so that errors rise and fall again: more multiples are tried.
    """

    name: str
    stage: Stage
    right: Callable[[Problem], float | None]
    put: Callable[[Pipeline, float], Pipeline]
    meaning: Callable[[str, str], str]
    fix: str
    shows: str = "almost any input"
    option: Callable[[float, Problem], str] = lambda *_: ""
    negative: bool = False
    whole: bool = False
    turns: bool = False
    variant_of: tuple[str, ...] = ()


def fitted(quantity: Quantity, case: Case, base: Pipeline | None = None) -> Mistake | None:
    """Return the mistake of the number with which a case comes nearest to its files.

    With a base, beside what that one does.
    """
    right = quantity.right(case.problem)
    if not right or not case.comparable:
        return None
    base = base or case.pipe
    multiples = _DENSE if quantity.turns else _DENSE[::2]
    multiples += tuple(-one for one in multiples if quantity.negative)
    if case.question.work.left < (len(multiples) + _NARROWED) * case.cells:
        return None

    @cache
    def distance_at(number: float) -> float:
        return distance_of(case, quantity.put(base, number))

    def distance(number: float) -> float:
        return distance_at(float(round(number)) if quantity.whole else number)

    multiple = min(multiples, key=lambda tried: distance(tried * right))
    beside = (multiple / _STEP, multiple, multiple * _STEP)
    multiple = min(beside, key=lambda tried: distance(tried * right))
    found = _narrowed(
        lambda tried: distance(tried * right),
        lambda tried: _errors_of(case, quantity.put(base, tried * right)),
        multiple,
        distance_of(case, base),
    )
    if found is None:
        return None
    best = right * found
    if quantity.whole:
        near = {max(0.0, float(round(best) + step)) for step in (-1, 0, 1)}
        number = min(sorted(near), key=distance)
    else:
        number = fewest_digits(best, distance, _roundings(case))
    return Mistake(
        quantity.name,
        quantity.meaning(*_apart(number, right)),
        lambda pipe: quantity.put(pipe, number),
        quantity.stage,
        quantity.fix,
        quantity.shows,
        option=lambda problem: quantity.option(number, problem),
        variant_of=quantity.variant_of,
        choice=_choice(number),
    )


def _apart(number: float, right: float) -> tuple[str, str]:
    """Return two numbers in few digits, or in so many that they look as far apart as they are."""
    most = _SHOWN_OF_GAP * abs(number - right)

    def few(exact: float, least: int) -> str:
        shown = (float(f"{exact:.{digits}g}") for digits in range(least, 17))
        return shortest(next((each for each in shown if abs(each - exact) <= most), exact))

    return few(number, 6), few(right, 4)


def _roundings(case: Case) -> float:
    """Return how far files lie from what they were rounded from, relative to their own size."""
    single = all(map(PRECISIONS["float32"].holds, case.files.values()))
    return len(case.files) * (_OF_SINGLE if single else _OF_DOUBLE)


def _choice(number: float) -> float:
    """Return how many bits it takes to say a number: its digits, or which 1/√n it is."""
    digits = len(Decimal(repr(number)).normalize().as_tuple().digits)
    if _LEAST_ROOT < abs(number) < 1:
        root = round(number**-2)
        if math.isclose(abs(number), root**-0.5, rel_tol=_AS_A_ROOT):
            digits = min(digits, len(str(root)))
    return digits * math.log2(10)


def _narrowed(
    distance: Callable[[float], float],
    errors: Callable[[float], Array],
    multiple: float,
    before: float,
) -> float | None:
    """Return the best multiple between the neighbours of one, by golden sections and by its errors.

    None where it is soon seen that no error falls much below what it was before.
    """
    low, high = multiple / _STEP, multiple * _STEP
    one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_one, at_other = distance(one), distance(other)
    enough = max(_LEFT * before, _FALLEN * distance(multiple))
    for section in range(_NARROWED):
        # The right number itself may have lost a digit or two, which nothing has shown yet.
        if section == _SOON:
            least = min(at_one, at_other)
            if multiple != 1 and least > enough:
                return None
            found = _crossing(errors, low, high)
            if found is not None and distance(found) <= _AS_LOW * least:
                return found
        if at_one < at_other:
            high, other, at_other = other, one, at_one
            one = high - _GOLDEN * (high - low)
            at_one = distance(one)
        else:
            low, one, at_one = one, other, at_other
            other = low + _GOLDEN * (high - low)
            at_other = distance(other)
    return (low + high) / 2


def _crossing(errors: Callable[[float], Array], low: float, high: float) -> float | None:
    """Return where errors that grow from one number to another cross 0; None where they do not.

    Of the errors, what lies in the direction in which they grow: between numbers so near to each
    other they change on a straight line, so that few steps come as near as float64 goes.
    """
    at_low, at_high = errors(low), errors(high)
    growth = at_high - at_low
    below, above = float(at_low @ growth), float(at_high @ growth)
    before = low
    while below < 0 < above:
        between = low + (high - low) * below / (below - above)
        if between in (low, high):
            return between
        there = float(errors(between) @ growth)
        if there < 0:
            above = above / 2 if before == low else above
            low, below, before = between, there, between
        else:
            below = below / 2 if before == high else below
            high, above, before = between, there, between
    return None


# The quantities.


def _in_base_2(factor: float) -> str:
    """Return what a factor of about ln 2 comes from; nothing of another one."""
    if not math.isclose(factor, math.log(2), rel_tol=_NEAR):
        return ""
    return ", which is ln 2: for 2^x the scale is multiplied with log₂ e, and this is not"


def _cap_words(found: str, right: str) -> str:
    factor = float(found) / float(right)
    words = _in_base_2(factor)
    return f"the softcap is about {found}, where {right} is right" + (
        f": about {factor:.3g} times it{words}" if words else ""
    )


def _with_base(pipe: Pipeline, base: float) -> Pipeline:
    return pipe if pipe.rope is None else pipe.but(rope=pipe.rope._replace(base=base))


def _positions_times(pipe: Pipeline, factor: float) -> Pipeline:
    if pipe.rope is None:
        return pipe
    frequencies = factor * pipe.rope.of_width(pipe.width)
    return pipe.but(rope=pipe.rope._replace(frequencies=tuple(frequencies.tolist())))


def _windowless(problem: Problem) -> float | None:
    """Return a number to begin with; none where a window would be padding by another name.

    Of a single query at the first key, either hides the last keys.
    """
    visible = problem.visible
    at_first_key = problem.shape[2] == 1 and not any(visible.offsets)
    return None if at_first_key or visible.window is not None else 1.0


def _with_window(pipe: Pipeline, reach: float) -> Pipeline:
    """Return the pipeline with a window to the left, and to the right where later keys are seen."""
    new = min(max(round(reach), 0), pipe.shape[3])
    right = 0 if pipe.problem.visible.causal else new
    return pipe.with_rule("window", band(new, right, pipe.offsets))


def _with_left(pipe: Pipeline, left: float) -> Pipeline:
    """Return the pipeline with a window that reaches so far back; a symmetric one stays so."""
    sides = pipe.problem.visible.window or (None, None)
    new = min(max(round(left), 0), pipe.shape[3])
    right = new if sides[0] == sides[1] else sides[1]
    return pipe.with_rule("window", band(new, right, pipe.offsets))


def _lowered(pipe: Pipeline, score: float) -> Pipeline:
    """Return the pipeline in which each rule adds a number to the scores that it hides."""
    rules = {name: rule for name, rule in pipe.rules.items() if name != "query_lengths"}
    kept = {name: rule for name, rule in pipe.rules.items() if name not in rules}

    def step(run: Run, scores: Array) -> Array:
        hidden = sum(np.where(run.called(rule), 0.0, score) for rule in rules.values())
        return np.asarray(scores + hidden).astype(scores.dtype)

    return pipe.but(rules=kept).with_step("lower", step, before=None)


def _hides(problem: Problem) -> float | None:
    """Return a number to begin with, where a rule may hide keys."""
    given = (getattr(problem.visible, rule) for rule in HIDING_RULES if rule != "query_lengths")
    return -10.0 if any(rule is not None and rule is not False for rule in given) else None


def _times(name: str) -> Callable[[Pipeline, float], Pipeline]:
    def put(pipe: Pipeline, factor: float) -> Pipeline:
        own = pipe.terms.get(name)
        return pipe if own is None else pipe.with_term(name, lambda run: factor * run.called(own))

    return put


def _output_bias(problem: Problem) -> float | None:
    return None if problem.output is None or problem.output.bias is None else 1.0


def _output_bias_times(pipe: Pipeline, factor: float) -> Pipeline:
    output = pipe.output
    if output is None or output.bias is None:
        return pipe
    return pipe.but(output=replace(output, bias=widen(output.bias, np.float64) * factor))


SCALE = Quantity(
    name="another_scale",
    stage=stages.SCALE,
    right=lambda problem: problem.scale,
    put=lambda pipe, scale: pipe.but(scale=float(scale)),
    meaning=lambda found, right: f"the scale is about {found}, where {right} is right",
    fix="multiply Q·Kᵀ by the scale that the problem states; unless it states one, 1/√D for "
    "the dot product and 1 for others",
    option=scaled,
    negative=True,
    variant_of=("strongest_keys",),
)
QUANTITIES = (
    SCALE,
    Quantity(
        name="cosine_at_another_scale",
        stage=stages.SCORE_FUNCTION,
        right=lambda problem: 1.0 if problem.score == "dot" else None,
        put=lambda pipe, scale: pipe.but(score="cosine", scale=float(scale)),
        meaning=lambda found, _: (
            f"query and key are divided by their lengths, and the cosines are multiplied by {found}"
        ),
        fix="multiply query and key as they are, or state the score cosine",
        option=lambda scale, _: f"--score cosine --scale {shortest(scale)}",
        variant_of=("strongest_keys",),
    ),
    Quantity(
        name="output_bias_repeated",
        stage=stages.OUTPUT_BIAS,
        right=_output_bias,
        put=_output_bias_times,
        meaning=lambda found, _: f"the bias of the output projection is added {found} times",
        fix="add it once: not on every device, and not for every head",
        shows="an output projection with a bias",
        whole=True,
    ),
    Quantity(
        name="another_softcap",
        stage=stages.SOFTCAP,
        right=lambda problem: problem.softcap,
        put=lambda pipe, cap: pipe.but(softcap=cap),
        meaning=_cap_words,
        fix="take the softcap that the problem states",
        shows="scores that are not small compared with the softcap",
        option=lambda cap, _: f"--softcap {shortest(cap)}",
    ),
    Quantity(
        name="softcap_unasked",
        stage=stages.SOFTCAP,
        right=lambda problem: 1.0 if problem.softcap is None else None,
        put=lambda pipe, cap: pipe.but(softcap=cap),
        meaning=lambda found, _: (
            f"a softcap of about {found} is applied, but the problem states none"
        ),
        fix="leave the softcap out, or state it",
        shows="scores that are not small compared with the softcap",
        option=lambda cap, _: f"--softcap {shortest(cap)}",
    ),
    Quantity(
        name="another_rope_base",
        stage=stages.ROPE,
        right=lambda p: None if p.rope is None or p.rope.frequencies else p.rope.base,
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
        stage=stages.ROPE,
        right=lambda problem: None if problem.rope is None else 1.0,
        put=_positions_times,
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
        stage=stages.WINDOW,
        right=lambda problem: None if problem.visible.window is None else problem.visible.window[0],
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
        stage=stages.WINDOW,
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
        stage=stages.HIDING,
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
        stage=stages.HIDING,
        right=_hides,
        put=lambda pipe, score: pipe.but(fill=score),
        meaning=lambda found, _: f"hidden scores are set to about {found}, not to −inf",
        fix="set hidden scores to −inf, before the softmax",
        shows="any hidden key",
    ),
    Quantity(
        name="another_alibi_factor",
        stage=stages.ALIBI,
        right=lambda problem: None if problem.alibi_slopes is None else 1.0,
        put=_times("alibi"),
        meaning=lambda found, _: (
            f"the ALiBi slopes are about {found} times the right ones{_in_base_2(float(found))}"
        ),
        fix="take the slopes that the problem states: do not scale them with the product, and mind "
        "that 2^x and exp(x) need other ones",
        shows="more than one query or key",
    ),
    Quantity(
        name="another_bias_factor",
        stage=stages.BIAS,
        right=lambda problem: None if problem.bias is None else 1.0,
        put=_times("bias"),
        meaning=lambda found, _: (
            f"the bias is about {found} times the right one{_in_base_2(float(found))}"
        ),
        fix="add the bias as it is: do not scale it with the product, and mind that 2^x and exp(x) "
        "need another one",
        shows="a bias that is not 0",
    ),
)


# A factor that all numbers of an output share, and a vector that is added to every context.


def another_factor(case: Case) -> Mistake | None:
    """Return the mistake of the factor with which right outputs come nearest to the files."""
    if set(case.files) - {"context", "weights"} or not case.comparable:
        return None
    pairs = [
        finite_in_both(file, case.shaped(case.pipe, case.right, name))
        for name, file in case.files.items()
    ]
    found, right = (np.concatenate(each) for each in zip(*pairs, strict=True))
    if not (found.any() and right.any()):
        return None
    factor = fewest_digits(
        float(np.dot(found, right) / np.dot(right, right)),
        lambda tried: root_mean_square(found - tried * right),
    )

    def times(_: Run, outputs: Outputs) -> Outputs:
        return outputs | {n: outputs[n] * factor for n in ("context", "weights") if n in outputs}

    return Mistake(
        "another_factor",
        f"the numbers are about {shortest(factor)} times the right ones",
        # Of what was projected, its bias included.
        lambda pipe: pipe.then("behind", times),
        stages.FACTOR,
        "look for a factor that is missing or applied twice: the scale of quantized values, 1/(1 "
        "− p) of dropout, a block of queries that is added more than once",
    )


# Right contexts have to differ by so many times as much as what a vector leaves; batch entries
# have a vector each where one for all leaves twice as much; numbers that are all the same differ
# by so many times as much as their errors say, at most, or by such a share of themselves.
_LEAST_ROWS, _LEAST_SPREAD, _LESS, _OF_NOISE, _ALIKE, _SHOWN = 2, 30.0, 0.5, 1.5, 0.01, 3


def added_vector(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that a vector is added to every context of a head.

    As weights sum to 1, b added to every value is b added to every context.
    """
    if not all("context" in case.files and case.comparable for case in cases):
        return None
    apart = np.concatenate([_away(case) for case in cases], axis=2)
    rows = np.isfinite(apart[:, :1, :, :1]).sum(axis=2, keepdims=True)
    if rows.sum() < _LEAST_ROWS:
        return None
    vector = np.nansum(apart, axis=(0, 2), keepdims=True) / rows.sum()
    left = _size(apart - vector)
    # Entries that were projected alike have no biases of their own.
    if cases[0].pipe.projected is None and rows.min() >= _LEAST_ROWS:
        own = np.nansum(apart, axis=2, keepdims=True) / rows
        if _size(apart - own) < _LESS * left:
            vector, left = own, _size(apart - own)
    right = np.concatenate([case.right["context"] for case in cases], axis=2)
    axes = (0, 2) if len(vector) == 1 else (2,)
    if root_mean_square(right - right.mean(axis=axes, keepdims=True)) < _LEAST_SPREAD * left:
        return None
    noise = left / math.sqrt(rows.sum() / len(vector))

    def add(run: Run, context: Array) -> Array:
        own = run.part.of(vector)
        return np.where(context.any(axis=-1, keepdims=True), context + own, context)

    return Mistake(
        "added_vector",
        _of_values(cases[0], vector, noise) or _vector_told(vector, noise),
        lambda pipe: pipe.then("behind", of_context(add)),
        stages.ADDED,
        "look at the bias of the value's projection, or of the output's (left out, or added "
        "twice?), and at the zero point of quantized values",
        needs=frozenset({"batch", "heads"}),
        variant_of=("another_factor", "bv_missing", "output_bias_missing", "output_bias_repeated"),
    )


def _away(case: Case) -> Array:
    """Return how far a context is off, (B, H, L, E); NaN where a query sees no key."""
    found, right = case.canonical("context"), case.right["context"]
    seeing = right.any(axis=(1, 3), keepdims=True)
    known = np.isfinite(found).all(axis=(1, 3), keepdims=True)
    return np.where(np.logical_and(seeing, known), found - right, np.nan)


def _size(apart: Array) -> float:
    return root_mean_square(apart[np.isfinite(apart)])


def _alike(apart: float, noise: float, size: float) -> bool:
    """Return whether numbers differ no more than by their errors, or hardly beside their size."""
    return apart <= max(_OF_NOISE * noise, _ALIKE * size)


def _of_values(case: Case, vector: Array, noise: float) -> str | None:
    """Say which value it is that is added, or the mean of all; None if it is none of them."""
    value = case.pipe.value
    if value is None or case.pipe.output is not None:
        return None
    value = np.repeat(value, case.pipe.shape[1] // value.shape[1], axis=1)
    for name, one in (
        ("the first value", value[:, :, :1]),
        ("the last value", value[:, :, -1:]),
        ("the mean of the values", value.mean(axis=2, keepdims=True)),
    ):
        for done, added in (("added to", one), ("subtracted from", -one)):
            if _alike(_size(vector - added), noise, _size(added)):
                return f"{name} is {done} every context"
    return None


def _vector_told(vector: Array, noise: float) -> str:
    """Say what is added: one number where all are alike, or a vector."""
    if _alike(float(vector.std()), noise, abs(float(vector.mean()))):
        return f"about {vector.mean():.3g} is added to every number of the context"
    batch, heads, _, width = vector.shape
    several = [name for name, count in (("head", heads), ("batch entry", batch)) if count > 1]
    whose = " of ".join(f"each {name}" for name in several)
    where = " of ".join(f"{name} 0" for name in several)
    what = f"{whose} adds a vector of its own" if several else "a vector is added"
    first = ", ".join(f"{number:.3g}" for number in vector[0, 0, 0, :_SHOWN])
    numbers = f"({first}{', …' if width > _SHOWN else ''})"
    place = f", {where}" if several else ""
    return f"{what} to every context{place} {numbers}, as if to each value: weights sum to 1"


# What was added to the denominators: zeros, an epsilon, sinks.

_AS_LIKELY, _LEAST = 16.0, 1e-16
_FEW_ROWS, _MOST_PARTS = 4, 256
_NEAR_A_SINK, _NO_SINK, _AS_NO_SINK, _NOTHING = 1e-4, -50.0, -25.0, 8.0


def _added_to_denominators(case: Case) -> Array | None:
    """Return what was added to the denominator of each row, (B, H, L).

    What weighs in a row and has the value 0, such as a sink, makes each number Z / (Z + r) of what
    is right, Z = exp(lse) being the right denominator.
    """
    name = next((name for name in ("context", "weights") if name in case.files), None)
    mixed = name == "context" and case.pipe.output is not None
    if name is None or mixed or not case.comparable:
        return None
    found, right = case.canonical(name), case.right[name]
    if found.shape != right.shape:  # averaged weights
        return None
    with np.errstate(all="ignore"):
        shares = (found * right).sum(-1) / np.square(right).sum(-1)
        return np.asarray((1 / shares - 1) * np.exp(case.right["lse"][..., 0]))


def _finite(numbers: Array) -> Array:
    return np.asarray(numbers[np.isfinite(numbers)])


def _typical(numbers: Array) -> float:
    """Return the median of numbers, with as few digits as their scatter tells, or 0."""
    middle = float(np.median(numbers))
    scatter = float(np.median(np.abs(numbers - middle))) / math.sqrt(len(numbers))
    tried = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    near = _AS_LIKELY * max(scatter, _LEAST)
    return next((one for one in (0.0, *tried) if abs(one - middle) <= near), middle)


def zeros_counted(case: Case) -> Mistake | None:
    """Return the mistake that keys of zeros beyond the last one got weight: n add n to each sum."""
    counts = _added_to_denominators(case)
    counts = None if counts is None else _finite(counts)
    if counts is None or not counts.size or (count := round(float(np.median(counts)))) < 1:
        return None
    return Mistake(
        "zeros_counted",
        f"the keys are followed by zeros, as in a cache that is longer, and {count} of them get "
        "weight",
        lambda pipe: with_zeros(pipe, count),
        stages.BLOCKS,
        "give the keys beyond the last the score −inf",
        variant_of=("mask_as_zeros",),
    )


def epsilon_added(case: Case) -> Mistake | None:
    """Return the mistake that a number is added to the sum of the exponentials."""
    added = _added_to_denominators(case) if case.pipe.sinks is None else None
    if added is None:
        return None
    with np.errstate(all="ignore"):
        shifted = added * np.exp(-case.right["scores"].max(axis=-1))
    # What is the same in all rows is what was added.
    found = {True: _finite(shifted), False: _finite(added)}
    subtracted = _scatter(found[True]) <= _scatter(found[False])
    numbers = found[subtracted]
    if len(numbers) < _FEW_ROWS or (epsilon := _typical(numbers)) <= 0:
        return None
    heads, sink = case.problem.shape[1], float(f"{math.log(epsilon):.9g}")
    exponential = "exp(score − maximum)" if subtracted else "exp(score)"
    like = "" if subtracted else f", like a sink of {sink:.4g} in every head"
    return Mistake(
        "epsilon_added",
        f"{epsilon:.6g} is added to the sum of {exponential} before it divides{like}",
        with_epsilon(epsilon)
        if subtracted
        else lambda pipe: pipe.but(sinks=np.full(pipe.shape[1], sink)),
        stages.EPSILON,
        "divide by the sum itself, which is at least 1 once the maximum is subtracted",
        option=lambda _: "" if subtracted else f"--sinks={','.join([shortest(sink)] * heads)}",
        needs=frozenset({"heads"}),
        variant_of=("zeros_counted", "another_factor"),
    )


def _scatter(numbers: Array) -> float:
    """Return how much numbers differ, beside their size."""
    if not numbers.size:
        return math.inf
    middle = float(np.median(numbers))
    return float(np.median(np.abs(numbers - middle))) / max(abs(middle), 1e-300)


def sinks_counted(case: Case) -> Mistake | None:
    """Return the mistake that the sink of every head counts the same number of times.

    Where it counts n times, (n − 1) exp(sink) is added to every denominator. Rows count by the
    share of their sink, which tells how sure their number is.
    """
    sinks = case.pipe.sinks
    added = None if sinks is None else _added_to_denominators(case)
    if sinks is None or added is None:
        return None
    with np.errstate(all="ignore"):
        total = np.exp(case.right["lse"][..., 0])
        more, share = added / total, np.exp(case.run.by_head(sinks)[..., 0]) / total
    known = np.isfinite(more) & np.isfinite(share)
    if np.count_nonzero(known) < _LEAST_ROWS or not share[known].any():
        return None
    count = 1 + round(float((more[known] @ share[known]) / np.square(share[known]).sum()))
    if not 2 <= count <= _MOST_PARTS:
        return None
    return Mistake(
        "sinks_counted",
        f"the sink of each head counts {count} times, as if each of {count} parts of the keys "
        f"added exp(sink) to its denominator",
        lambda pipe: pipe.but(sinks=sinks + math.log(count)),
        stages.SINKS,
        "count the sink once: in one part of the keys, or where the parts are put together",
        "sinks that are not far below the scores",
        needs=frozenset({"heads"}),
        variant_of=("sinks_twice",),
        choice=math.log2(_MOST_PARTS),
    )


def another_sink(case: Case) -> Mistake | None:
    """Return the mistake that heads have other sinks: s' for s adds exp(s') − exp(s)."""
    stated, heads = case.pipe.sinks, case.pipe.shape[1]
    right = np.full(heads, -np.inf) if stated is None else stated
    found = _found_sinks(case, right)
    if found is None or not (other := np.abs(found - right) > _NEAR_A_SINK).any():
        return None
    sinks = np.where(other, found, right)
    if stated is None:
        listed = ",".join(map(shortest, sinks))
        pairs = [
            (f"head {h}", f"{s:.4g}" if s > _AS_NO_SINK else "none") for h, s in enumerate(sinks)
        ]
        meaning = f"heads have sinks that the problem does not state: {told(pairs, 'has')}"
        fix, option = "leave the sinks out, or state them: sinks (--sinks)", f"--sinks={listed}"
    else:
        pairs = [(f"head {h}", f"{sinks[h]:.4g} for {right[h]:.4g}") for h in np.flatnonzero(other)]
        meaning = f"heads take other sinks: {told(pairs, 'takes')}"
        fix = "let each head take its own sink, as the problem states it, and not scaled"
        option = ""
    return Mistake(
        "another_sink",
        meaning,
        lambda pipe: pipe.but(sinks=sinks),
        stages.SINKS,
        fix,
        "sinks that are not far below the scores",
        option=lambda _: option,
        needs=frozenset({"heads"}),
        variant_of=(
            *("inputs_misplaced", "counted_keys", "zeros_counted", "another_factor"),
            *("epsilon_added", "sinks_counted"),
        ),
    )


def _found_sinks(case: Case, right: Array) -> Array | None:
    """Return the sink of each head that the file shows; None where it shows none."""
    added = _added_to_denominators(case)
    if added is None:
        return None
    with np.errstate(all="ignore"):
        sinks = np.log(added + np.exp(right)[None, :, None])
    found = []
    for head, own in enumerate(right):
        # Of a row without keys, or with other mistakes, nothing follows.
        known, amounts = _finite(sinks[:, head]), _finite(added[:, head])
        if len(amounts) < _LEAST_ROWS:  # a sink of its own explains any one row
            return None
        middle = np.median(amounts)
        scatter = np.median(np.abs(amounts - middle)) / math.sqrt(len(amounts))
        if np.abs(middle) <= _NOTHING * scatter:
            found.append(max(own, _NO_SINK))
        elif len(known) < _LEAST_ROWS:
            return None
        else:
            found.append(_typical(known))
    return np.array(found)


# Numbers that differ from head to head, or from query to query. These do not know of each other:
# the number of each is narrowed at the same time as those of the others, by the same evaluations.

_TRIED = (0.0, *(_STEP**power for power in range(-14, 15)))
_SECTIONS, _EQUAL = 70, 2e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class _Each:
    """What each head, or each query, may have another number of.

    ``put`` makes the pipeline with a number for each; ``unstated`` says that the problem states
    none, which is the number 0: otherwise numbers are factors of its own.
    """

    name: str
    stage: Stage
    fix: str
    meaning: Callable[[Array], str]
    put: Callable[[Pipeline, Array], Pipeline]
    axis: int = 1
    unstated: bool = False
    option: Callable[[Array, Problem], str] = lambda *_: ""
    variant_of: tuple[str, ...] = ()


def _by_each(each: _Each, case: Case) -> Mistake | None:
    """Return the mistake of the numbers with which a case comes nearest to its files."""
    names = ("weights", "context", "lse") if case.pipe.output is None else ("weights", "lse")
    name = next((name for name in names if name in case.files), None)
    count = case.right["weights"].shape[each.axis] if case.evaluable else 0
    if name is None or not case.comparable or (count == 1 and not each.unstated):
        return None
    if case.canonical(name).shape != case.right[name].shape or (each.axis == 2 and not case.whole):
        return None
    if case.question.work.left < (len(_TRIED) + 2 * _SECTIONS) * case.cells:
        return None
    axes = tuple({0, 1, 2, 3} - {each.axis})

    def far(factors: Array) -> Array:
        made = case.outputs(each.put(case.pipe, factors))[name]
        with np.errstate(all="ignore"):
            error = np.sqrt(np.square(case.canonical(name) - made).mean(axis=axes))
        return np.asarray(np.where(np.isfinite(error), error, np.inf))

    before = far(np.full(count, 0.0 if each.unstated else 1.0))
    found = _each_narrowed(far, before)
    if found is None:
        return None
    numbers = _short(found, far)
    # One number for all has another name, unless there should be none. One number for all wrong
    # queries is another mistake, in a part of them. 0 stands for queries that fit any number.
    wrong = numbers[(numbers != 0) & (numbers != 1)] if each.axis == 2 else numbers
    alike = not wrong.size or np.ptp(wrong) <= _EQUAL * np.abs(wrong).max()
    if alike and not each.unstated:
        return None
    return Mistake(
        each.name,
        each.meaning(numbers),
        lambda pipe: each.put(pipe, numbers),
        each.stage,
        each.fix,
        "more than one head" if each.axis == 1 else "more than one query",
        option=partial(each.option, numbers),
        needs=frozenset({"heads"} if each.axis == 1 else {"batch", "heads", "rows"}),
        variant_of=each.variant_of,
    )


def _each_narrowed(far: Callable[[Array], Array], before: Array) -> Array | None:
    """Return the best factor of each, by golden sections; None where errors do not fall."""
    tried = np.stack([far(np.full(len(before), multiple)) for multiple in _TRIED])
    best = tried.argmin(axis=0)
    grid = np.array([*_TRIED, _TRIED[-1] * _STEP])
    low, high = grid[np.maximum(best - 1, 0)], grid[best + 1]
    for section in range(_SECTIONS):
        one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        lower = far(one) < far(other)
        low, high = np.where(lower, low, one), np.where(lower, other, high)
        if section == 12 and (far((low + high) / 2) > 0.1 * before.max()).any():
            return None
    return np.asarray((low + high) / 2)


def _short(found: Array, far: Callable[[Array], Array]) -> Array:
    """Return numbers with as few digits as come about as near; 0 and 1 where these do."""
    most, numbers = _AS_NEAR * far(found), found.copy()
    open_ = np.ones(len(found), np.bool_)
    rounded = ([float(f"{number:.{digits}g}") for number in found] for digits in range(1, 17))
    for candidate in (np.zeros(len(found)), np.ones(len(found)), *map(np.array, rounded)):
        near = open_ & (far(candidate) <= most)
        numbers, open_ = np.where(near, candidate, numbers), open_ & ~near
    return numbers


def _differs(what: str, whose: str) -> Callable[[Array], str]:
    def meaning(numbers: Array) -> str:
        pairs = ((f"{whose} {n}", f"{one:.6g}") for n, one in enumerate(numbers) if one != 1)
        return f"{what} differs from {whose} to {whose}: {told(pairs, 'times')}"

    return meaning


def _factors(axis: int) -> Callable[[Pipeline, Array], Pipeline]:
    """Return what multiplies the scaled scores with a number for each head or query."""

    def put(pipe: Pipeline, factors: Array) -> Pipeline:
        shape = (1, -1, 1, 1) if axis == 1 else (1, 1, -1, 1)
        own = factors.reshape(shape)
        first = pipe.order[pipe.order.index("scale") + 1] if "scale" in pipe.order[:-1] else None
        return pipe.with_step(
            "factors", lambda run, s: s * run.part.of(own).astype(s.dtype), before=first
        )

    return put


def _slopes_times(pipe: Pipeline, factors: Array) -> Pipeline:
    return pipe.with_term("alibi", alibi(pipe.problem.alibi_slopes * factors, pipe.offsets))


def _unstated_slopes(slopes: Array) -> str:
    pairs = ((f"head {h}", f"{slope:.6g}") for h, slope in enumerate(slopes))
    return f"ALiBi is applied, but the problem states none: {told(pairs, 'has the slope')}"


_SLOPES = _Each(
    name="slopes_by_head",
    stage=stages.ALIBI,
    fix="let every head take its own ALiBi slope, as the problem states it",
    meaning=_differs("the ALiBi slope", "head"),
    put=_slopes_times,
    variant_of=("another_alibi_factor", "inputs_misplaced"),
)
_SLOPES_UNASKED = _Each(
    name="alibi_unasked_with_other_slopes",
    stage=stages.ALIBI,
    fix="leave ALiBi out, or state its slopes: alibi_slopes (--alibi-slopes)",
    meaning=_unstated_slopes,
    put=lambda pipe, slopes: pipe.with_term("alibi", alibi(slopes, pipe.offsets)),
    unstated=True,
    option=lambda slopes, _: f"--alibi-slopes {','.join(map(shortest, slopes))}",
    variant_of=("window_unasked", "another_window"),  # what steep slopes come to
)
_SCALES = _Each(
    name="scale_by_head",
    stage=stages.SCALE,
    fix="let every head take its own scale, as the problem states it",
    meaning=_differs("the scale", "head"),
    put=_factors(1),
    variant_of=("another_scale",),
)
_SCALES_BY_QUERY = _Each(
    name="scale_by_query",
    stage=stages.SCALE,
    fix="multiply all scores by one scale: it depends on no position (a temperature for long texts "
    "has to be stated, as queries that are multiplied by it)",
    meaning=_differs("the scale", "query"),
    put=_factors(2),
    axis=2,
    variant_of=("another_scale",),
)


def slopes_by_head(case: Case) -> Mistake | None:
    """Return the mistake that ALiBi slopes are others, or stated nowhere, in each head."""
    stated = case.problem.alibi_slopes is not None
    return _by_each(_SLOPES if stated else _SLOPES_UNASKED, case)


# Scores of only some components of query and key.


def some_components(case: Case) -> Mistake | None:
    """Return the mistake that scores are made of the first or the last components alone."""
    width = case.pipe.width
    if not case.comparable or case.pipe.score not in ("dot", "cosine"):
        return None
    step = max(1, width // 32)
    # A loop that ends too soon, or begins too late, leaves out one.
    # What a block, or a head of another model, has: 64 of 96, 512 of 576.
    block = 16 if width <= 256 else 64
    counts = sorted({*range(step, width, step), *range(block, width, block), width - 1} - {0})
    parts = [slice(0, count) for count in counts]
    parts += [slice(width - count, width) for count in counts]
    usual = case.pipe.score == "dot" and math.isclose(case.problem.scale, width**-0.5)
    tried = list(product(parts, (False, True) if usual else (False,)))
    if case.question.work.left < len(tried) * case.cells:
        return None
    distances = [
        distance_of(case, _of_components(case.pipe, part, with_scale=scaled))
        for part, scaled in tried
    ]
    nearest = min(distances, default=math.inf)
    if not nearest < distance_of(case, case.pipe):
        return None
    part, with_scale = tried[distances.index(nearest)]
    count = part.stop - part.start
    which = f"{'first' if part.start == 0 else 'last'} {count}"
    return Mistake(
        "some_components",
        f"the scores are made of the {which} of the {width} components of query and key alone"
        f"{f', and scaled by 1/√{count}' if with_scale else ''}",
        lambda pipe: _of_components(pipe, part, with_scale=with_scale),
        stages.SCORE_FUNCTION,
        "add up the products of all D components, of every block and every thread",
        "components that are not 0",
    )


def _of_components(pipe: Pipeline, part: slice, *, with_scale: bool) -> Pipeline:
    """Return the pipeline with some components of query and key, which keep their rotation."""

    def cut(_: Run, rows: Array) -> Array:
        return rows[..., part]

    made = pipe.then("operands", ("query", cut)).then("operands", ("key", cut))
    return made.but(scale=float((part.stop - part.start) ** -0.5)) if with_scale else made


# Queries that see no key, where a large negative number was added to all of their scores: it
# cancels in the softmax, but for the digits that scores lose beside it.

_NUMBERS = (1e4, 1e5, 1e6, 1e9)
_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float64), np.dtype(np.float32))


def blind_rows_rounded(case: Case) -> Mistake | None:
    """Return the mistake of what was added to the scores of queries that see no key."""
    names = [name for name in case.pipe.rules if name != "query_lengths"]
    if not names or not case.comparable or case.run.seen_by(*names).any(axis=-1).all():
        return None
    ways = list(product(_NUMBERS, _DTYPES, (False, True) if len(names) > 1 else (False,)))
    distances = [distance_of(case, _computed(case.pipe, *way)) for way in ways]
    best = ways[int(np.argmin(distances))]
    # Where the numbers lose no digits, it does not matter which was added.
    if not min(distances) < 0.5 * distances[ways.index((_NUMBERS[0], _DTYPES[0], best[2]))]:
        return None
    adds = "each rule adds" if best[2] else "the mask adds"
    exponent = f"{best[0]:.0e}".replace("e+0", "e")
    return Mistake(
        "blind_rows_rounded",
        f"a query that sees no key is computed as if nothing were hidden: {adds} −{exponent} to "
        f"its scores, which cancels but for the digits that they lose beside it in {best[1]}",
        lambda pipe: _computed(pipe, *best),
        stages.BLIND_ROWS_ROUNDED,
        "write −inf into scores, and zeros where a query sees no key",
        "a query that sees no key",
        variant_of=("blind_rows_unmasked", "hidden_finite"),
        choice=math.log2(len(ways)),
    )


def _computed(pipe: Pipeline, number: float, dtype: np.dtype[Any], by_each: bool) -> Pipeline:  # noqa: FBT001
    """Return the pipeline in which a number is added to the scores of queries that see no key.

    By each rule that hides the key, or by the mask that joins them; in a format.
    """
    rules = [rule for name, rule in pipe.rules.items() if name != "query_lengths"]
    shown = unmasked(pipe) or pipe
    inner = shown.softmax

    def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
        hidden = sum((~run.called(rule)).astype(dtype) for rule in rules)
        seen = np.asarray(hidden) == 0
        times = hidden if by_each else np.ones(1, dtype)
        lower = scores.astype(dtype) - dtype.type(number) * times
        blind = ~seen.any(axis=-1, keepdims=True)
        return inner(run, np.where(blind, lower.astype(scores.dtype), scores))

    return shown.but(softmax=softmax)


FITTINGS = (
    *(at_first(partial(fitted, quantity)) for quantity in QUANTITIES),
    at_first(another_factor),
    Fitting(added_vector, frozenset({"batch", "heads"})),
    at_first(zeros_counted),
    at_first(blind_rows_rounded),
    at_first(epsilon_added, "heads"),
    at_first(sinks_counted, "heads"),
    at_first(another_sink, "heads"),
    at_first(some_components),
    at_first(slopes_by_head, "heads"),
    at_first(partial(_by_each, _SCALES), "heads"),
    at_first(partial(_by_each, _SCALES_BY_QUERY), "batch heads rows"),
)
