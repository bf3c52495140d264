"""An earned tolerance: how large the errors of a correct computation may be.

The textbook formula (Q·Kᵀ, softmax, ·V, every intermediate result stored in the format of the file)
is one right way to compute attention. Its largest error against float64 is measured on the very
problem, and a file passes if its own error is within `FACTOR` times that, plus two units in the
last place of a typical element and four of its own. This is the rule of FlashAttention's tests,
which take a factor of 2; but the largest of many errors is a matter of luck. Of a large problem it
is measured on a sample of its rows, and on those that look wrong by it.

In a 16-bit format that is large compared with a context whose values nearly cancel: a lost key
would pass. Rounding errors have either sign and are rarely at their largest, so their root mean
square is held to that of the textbook formula, too, and more strictly. Elements that are huge
beside the others (scores with a bias of −1e9) round by huge amounts: what an element's own
rounding explains is not counted as error of the formula.

Where the textbook formula is exact by luck, what one rounding of each score and of each rotary
angle may do is tolerated. Where s are the scores and δ the size of their errors, to first order

    |error of lse_i| ≤ Σ_j w_ij δ_ij
    |error of w_ij| ≤ w_ij ((1 − w_ij) δ_ij + Σ_{k≠j} w_ik δ_ik)
    |error of c_i| ≤ Σ_j w_ij δ_ij |v_j − c_i|

which follows from ∂w_j/∂s_k = w_j (1[j = k] − w_k), with sinks, too. Scores of millions err by more
than 1; then a weight lies between those of its own score at its lowest beside all others at their
highest, and the reverse; and the context stays among the values.

An output in float32 or wider may come from a kernel that multiplies 16-bit inputs as such:
PyTorch's flash kernel on CPU returns the lse of bfloat16 inputs in float32, made of scores whose
scaled query or product is that exact. So the tolerance of an lse follows from the precision of the
inputs, too.

References
----------
Dao 2023, "FlashAttention-2", and its ``tests/test_flash_attn.py``: the error must not exceed twice
that of a PyTorch implementation in the same precision.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors.names import SCORE_STAGES
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import turned
from attncli.referee.formats import PRECISIONS, Array, Digits, Precision
from attncli.referee.pipeline import (
    WHOLE,
    Outputs,
    Part,
    Pipeline,
    Run,
    evaluate,
    pipeline_of,
    together,
)
from attncli.referee.report import Tolerance

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem, Rope
    from attncli.referee.report import Place

__all__ = [
    "Plain",
    "earned",
    "finite_in_both",
    "plain_errors",
    "plain_errors_in",
    "plain_errors_of",
    "root_mean_square",
]

FACTOR = 6.0
_RMS_FACTOR = 3.0
# Of a large problem: scores of a chunk that is measured, and how many chunks.
_CHUNK_CELLS, _CHUNKS = 2**18, 12
# Errors of scores, in nats: below, a weight moves by so much of itself. And e^300 is no overflow.
_SMALL, _LARGEST = 1e-3, 300.0
# Units in the last place that frequencies err by: of exp(−ln(base) 2p/D) half as many as nats.
_FREQUENCY = 6.0
_TRIES, _TRIED_EPS = 2, 2.0**-23
_NOTHING = np.zeros(0)


class Plain(NamedTuple):
    """What the textbook formula does to one output.

    Attributes
    ----------
    largest, excess : float
        Its largest absolute error, and that beyond one unit in the last place of the element.
    rms : float
        The root mean square of its errors.
    size, rms_answer : float
        A typical element, and the root mean square of the answer itself.
    rounded, rms_rounded : float
        How far the roundings of scores and angles may move an element, and its root mean square.
    rows : int
        How many rows were measured together.
    apart : float
        The mean square of all rows, as far as those make it that were measured by themselves.
    """

    largest: float = 0.0
    excess: float = 0.0
    rms: float = 0.0
    size: float = 0.0
    rms_answer: float = 0.0
    rounded: float = 0.0
    rms_rounded: float = 0.0
    rows: int = 0
    apart: float = 0.0

    def __or__(self, other: Plain) -> Plain:
        largest = (max(one, two) for one, two in zip(self[:7], other[:7], strict=True))
        return Plain._make((*largest, self.rows + other.rows, self.apart + other.apart))


def earned(plain: Plain, precision: Precision, digits: Digits) -> Tolerance:
    """Return the tolerance that the textbook formula's error earns.

    Parameters
    ----------
    plain : Plain
    precision : Precision
        The format of the file.
    digits : Digits
        What printing took away.
    """
    # The root mean square of few rows is unreliable.
    factor = _RMS_FACTOR * (1 + 2 / math.sqrt(max(plain.rows, 1)))
    rms = max(factor * plain.rms, plain.rms_rounded)
    rms = math.hypot(rms, _RMS_FACTOR * math.sqrt(plain.apart))
    stored = 0.5 * precision.eps * plain.rms_answer
    summed = 4 * min(precision.eps, PRECISIONS["float32"].eps) * plain.size
    printed = digits.absolute + digits.relative * plain.rms_answer
    return Tolerance(
        absolute=max(FACTOR * plain.excess, plain.rounded)
        + 2 * precision.eps * plain.size
        + digits.absolute,
        relative=4 * precision.eps + digits.relative,
        earned=True,
        plain_error=plain.largest,
        rms=rms + stored + summed + printed,
    )


def plain_errors_of(
    problem: Problem,
    precisions: Mapping[str, Precision],
    places: Sequence[Place] = (),
    inputs: Precision | None = None,
) -> dict[str, Plain]:
    """Return the textbook formula's errors in each output, on all of a problem or a fair sample.

    Parameters
    ----------
    problem : Problem
        In float64.
    precisions : mapping of str to Precision
        The format of each output.
    places : sequence of Place
        Where to measure as well.
    inputs : Precision, optional
        The format of the inputs, where it has 16 bits.
    """
    pipe = pipeline_of(problem)
    total = dict.fromkeys(precisions, Plain())
    for part in _chunks(problem):
        for name, plain in plain_errors(pipe, part, precisions, inputs=inputs).items():
            total[name] |= plain
    return plain_errors_in(places, problem, precisions, total, inputs)


def plain_errors_in(
    places: Sequence[Place],
    problem: Problem,
    precisions: Mapping[str, Precision],
    known: Mapping[str, Plain],
    inputs: Precision | None = None,
) -> dict[str, Plain]:
    """Return the known errors of the textbook formula, and those in a few more places.

    How large an error may be is measured in each row itself, and what that adds to the mean of
    all; what is usual in its head is measured in rows far from it.
    """
    total = dict(known)
    if _is_small(problem):  # all of it is known
        return total
    pipe = pipeline_of(problem)
    batches, heads, queries, _ = problem.shape
    rows = _rows_a_chunk(problem)

    def at(place: Place, start: int, count: int) -> dict[str, Plain]:
        span = start, min(start + count, queries)
        head = None if problem.output is not None else place.head or 0
        return plain_errors(pipe, Part(place.batch or 0, head, span), precisions, inputs=inputs)

    for place in {(place.batch, place.head, place.query): place for place in places}.values():
        all_rows = batches * queries * (1 if place.head is None else heads)
        for name, plain in at(place, place.query, 1).items():
            total[name] = total[name]._replace(
                largest=max(total[name].largest, plain.largest),
                excess=max(total[name].excess, plain.excess),
                rounded=max(total[name].rounded, plain.rounded),
                apart=total[name].apart + plain.rms**2 / all_rows,
            )
    for place in {(place.batch, place.head): place for place in places}.values():
        far = (place.query + queries // 2) % max(1, queries - rows)
        for name, plain in at(place, far, rows).items():
            total[name] |= plain
    return total


def plain_errors(
    pipe: Pipeline,
    part: Part,
    precisions: Mapping[str, Precision],
    exact: Outputs | None = None,
    inputs: Precision | None = None,
) -> dict[str, Plain]:
    """Return the errors that a pipeline makes on a part when every step is rounded.

    Parameters
    ----------
    pipe : Pipeline
    part : Part
    precisions : mapping of str to Precision
    exact : dict, optional
        What `evaluate` gives for it.
    inputs : Precision, optional
        The format of the inputs, where it has 16 bits.
    """
    exact = evaluate(pipe, part) if exact is None else exact
    run = Run(pipe, part, PRECISIONS["float64"], None)
    sizes = _typical_sizes(run, exact, precisions)
    # Of these formats, scores are rounded no more coarsely than the outputs.
    wide = [name for name, precision in precisions.items() if not precision.short]
    moved = {
        eps: _effects_of_rounding(run, exact, wide, eps)
        for eps in {precisions[name].eps for name in wide}
    }
    made: dict[Precision, list[Outputs]] = {}
    errors = {}
    for name, precision in precisions.items():
        # float64 cannot be measured against itself; its errors are those of float32, smaller.
        tried = PRECISIONS["float32"] if precision.name == "float64" else precision
        if tried not in made:
            made[tried] = _plainly(pipe, part, tried)
        ratio = precision.eps / tried.eps
        plains = [plain[name] for plain in made[tried]]
        largest, excess, rms = (ratio * size for size in _errors(plains, exact[name], tried))
        answer = _finite(exact[name])
        effects = _finite(moved.get(precision.eps, {}).get(name, _NOTHING))
        plain = Plain(
            largest=largest,
            excess=excess,
            rms=rms,
            size=sizes[name],
            rms_answer=root_mean_square(answer),
            rounded=float(effects.max(initial=0)),
            rms_rounded=root_mean_square(effects),
            rows=exact[name][..., 0].size,
        )
        if name == "lse" and inputs is not None and not precision.short:
            plain = _of_short_inputs(plain, pipe, part, exact, inputs)
        errors[name] = plain
    return errors


def _of_short_inputs(
    plain: Plain, pipe: Pipeline, part: Part, exact: Outputs, inputs: Precision
) -> Plain:
    """Return the errors of an lse of scaled queries stored in the format of the inputs."""

    def scaled(run: Run, query: Array) -> Array:
        factor = np.float64(run.pipe.scale)
        return np.asarray(inputs.stored(query * factor) / (factor or 1.0))

    found = evaluate(pipe.then("operands", ("query", scaled)), part)["lse"]
    error = _finite(found - exact["lse"])
    largest, rms = float(np.abs(error).max(initial=0)), root_mean_square(error)
    # A power of two moves no digit, but other scales, log2(e) for one, may be a factor of it.
    shares = evaluate(pipe, part)["weights"] * np.abs(_finite_scores(exact["scores"]))
    usual = inputs.eps / 8 * float(shares.sum(axis=-1).max(initial=0))
    return plain._replace(
        rounded=max(plain.rounded, 2 * largest, usual),
        rms_rounded=max(plain.rms_rounded, 2 * rms, usual / 2),
    )


def _finite_scores(scores: Array) -> Array:
    return np.where(np.isfinite(scores), scores, 0)


def _plainly(pipe: Pipeline, part: Part, precision: Precision) -> list[Outputs]:
    """Return what comes of a pipeline when its steps are rounded, in several orders.

    The scale before the product and after it; and each sum made a term at a time, as a loop makes
    it, whose error grows with the number of terms. In a 16-bit format that is nothing beside the
    rounding of the result.
    """
    if math.isfinite(pipe.fill):  # a format that does not hold it has a number of its own for that
        pipe = pipe.but(fill=max(pipe.fill, -precision.largest))
    made = [evaluate(pipe, part, precision, fold=fold) for fold in (False, True)]
    if precision.name == "float32":
        made.append(evaluate(pipe.but(in_turn=True), part, precision))
    return made


def _errors(plains: list[Array], exact: Array, precision: Precision) -> tuple[float, float, float]:
    """Return largest error, excess and rms over several orders of the same steps."""
    largest = excess = rms = 0.0
    for plain in plains:
        made, right = finite_in_both(plain, exact)
        error = np.abs(made - right)
        if error.size:
            largest = max(largest, float(error.max()))
            excess = max(excess, float(np.max(error - precision.eps * np.abs(right))))
            rms = max(rms, root_mean_square(error))
    return largest, excess, rms


def _finite(array: Array) -> Array:
    return np.asarray(array[np.isfinite(array)])


def finite_in_both(found: Array, made: Array) -> tuple[Array, Array]:
    """Return those numbers of two arrays of one shape that are finite in both, (N,) each."""
    both = np.isfinite(found) & np.isfinite(made)
    return (found.ravel(), made.ravel()) if both.all() else (found[both], made[both])


def root_mean_square(numbers: Array) -> float:
    """Return the root of the mean square of finite numbers; 0 of none."""
    peak = float(np.maximum.reduce(np.abs(numbers), axis=None, initial=0))
    if peak == 0:
        return 0.0
    # Divided by the largest first, so that no square overflows.
    total = float(np.add.reduce(np.square(numbers / peak), axis=None))
    return peak * math.sqrt(total / numbers.size)


def _is_small(problem: Problem) -> bool:
    return math.prod(problem.shape) <= _CHUNK_CELLS


def _rows_a_chunk(problem: Problem) -> int:
    _, heads, queries, keys = problem.shape
    heads = 1 if problem.output is None else heads
    width = int(problem.query.shape[3])
    return max(1, min(queries, _CHUNK_CELLS // (keys * width * heads)))


def _chunks(problem: Problem) -> Iterator[Part]:
    """Yield parts of a problem: all of it, or some spread evenly over it where it is large."""
    if _is_small(problem):
        yield WHOLE
        return
    batch, heads, queries, _ = problem.shape
    # The output projection needs all heads.
    each: Iterable[int | None] = range(heads) if problem.output is None else (None,)
    rows = _rows_a_chunk(problem)
    parts = [(b, h, start) for b in range(batch) for h in each for start in range(0, queries, rows)]
    chosen = sorted({round(i) for i in np.linspace(0, len(parts) - 1, _CHUNKS)})
    for b, h, start in (parts[i] for i in chosen):
        yield Part(b, h, (start, min(start + rows, queries)))


# How large the numbers of each output are, and the terms that are added up to make them: terms of
# either sign may cancel, and what is rounded are their sizes.


def _typical_sizes(run: Run, exact: Outputs, names: Iterable[str]) -> dict[str, float]:
    """Return the size of a typical element of each output."""
    sizes = {}
    for name in names:
        array = np.abs(exact[name])
        if name == "context" and run.pipe.value is not None:
            array = _context_sizes(run, exact["weights"])
        elif name in SCORE_STAGES and run.pipe.score == "dot":
            array = np.maximum(array, _product_sizes(run))
        array = _finite(array)
        typical = np.median if name in SCORE_STAGES else np.max  # which a bias makes huge
        sizes[name] = float(typical(array)) if array.size else 0.0
        if name == "lse":  # the logarithm of a sum near 1 carries the error of the sum
            sizes[name] = max(1.0, sizes[name])
    return sizes


def _product_sizes(run: Run) -> Array:
    """Return the sums of the sizes of what is added up in each product, scaled (B, H, L, S)."""
    query, key = (np.abs(run.input(name)) for name in ("query", "key"))
    scale = run.pipe.scale
    factor = run.by_head(np.abs(scale)) if isinstance(scale, np.ndarray) else abs(scale)
    return np.asarray(factor * together(query, key.swapaxes(-1, -2)))


def _context_sizes(run: Run, weights: Array) -> Array:
    with np.errstate(invalid="ignore"):  # mistakes may make weights infinite
        return _through_the_output(run.pipe, together(np.abs(weights), np.abs(run.input("value"))))


def _through_the_output(pipe: Pipeline, sizes: Array) -> Array:
    """Return the sizes of contexts behind the output projection, where there is one."""
    output = pipe.output
    batch, heads, rows, width = sizes.shape
    if output is None or heads * width != len(output.weight):
        return sizes
    joined = sizes.transpose(0, 2, 1, 3).reshape(batch, rows, heads * width)
    return np.asarray(joined @ np.abs(widen(output.weight, np.float64)))


# What one rounding of every score, and of every rotary angle, may do to the outputs.


def _effects_of_rounding(run: Run, exact: Outputs, names: Collection[str], eps: float) -> Outputs:
    """Return how far the roundings of scores and angles may move each output.

    Rounded scores are bounded. Rounded angles are tried: beside thousands of keys most of what they
    do cancels, and a bound would be as large as the answer.
    """
    pipe, scores, weights = run.pipe, exact["scores"], exact["weights"]
    if not names or (pipe.rope is None and set(names) <= set(SCORE_STAGES)):
        return {}
    if {scores.shape[2:], weights.shape[2:]} != {run.shape[2:]}:  # axes were exchanged
        return {}
    sizes = np.where(run.seen & np.isfinite(scores), np.abs(scores), 0)
    if pipe.score == "dot":
        sizes = np.maximum(sizes, _product_sizes(run))
    sizes = sizes + _alibi_sizes(run)
    with np.errstate(all="ignore"):  # mistakes may make weights infinite
        effects = _carried(run, weights, eps * sizes)
        if pipe.rope is not None:
            for name, moved in _turned_effects(run, exact, pipe.rope, eps).items():
                effects[name] = effects.get(name, 0) + moved
    return effects


def _alibi_sizes(run: Run) -> Array | float:
    """Return how large a penalty by position is that ALiBi may be made of, where it is causal.

    Of causal keys slope · j (BLOOM) and slope · (j − S + 1) (MPT) differ from −slope · (i − j) by
    the same for all keys of a query, which changes no weight.
    """
    slopes = run.pipe.problem.alibi_slopes
    if slopes is None or not run.pipe.problem.visible.causal or len(slopes) < run.h.size:
        return 0.0
    far = np.maximum(run.j, run.j[..., ::-1])
    return np.asarray(np.abs(run.by_head(slopes)) * far)


def _carried(run: Run, weights: Array, errors: Array) -> Outputs:
    """Carry errors of the scores through the softmax and the weighted sum."""
    weights = np.abs(weights)
    total = weights.sum(axis=-1, keepdims=True)
    # A sink has the rest of the weight, and a value of 0.
    rest = np.maximum(0, 1 - total) if run.pipe.sinks is not None else np.zeros_like(total)
    shares = weights * errors
    lse = shares.sum(axis=-1, keepdims=True)
    moved = shares * (1 - weights) + weights * (lse - shares)
    moved_rest = rest * lse
    large = errors.max(axis=-1, keepdims=True) > _SMALL
    if large.any():
        most = _at_most(weights, rest, errors)
        lse, moved, moved_rest = (
            np.where(large, one, first)
            for one, first in zip(most, (lse, moved, moved_rest), strict=True)
        )
    carried = {"lse": lse, "weights": moved}
    if run.pipe.value is not None:
        value = run.input("value")
        value = np.repeat(value, weights.shape[1] // value.shape[1], axis=1)
        value = np.where(np.isfinite(value), value, 0)
        context = weights @ value
        first = np.where(large, np.inf, _to_first_order(context, shares, value))
        moved_context = np.minimum(first, _by_weights(weights, moved, moved_rest, value))
        moved_context = np.minimum(moved_context, _among_values(context, weights, rest, value))
        carried["context"] = _through_the_output(run.pipe, moved_context)
    return carried


def _at_most(weights: Array, rest: Array, errors: Array) -> tuple[Array, ...]:
    """Return how far lse, weights and the rest of the weight may move, whatever the errors."""
    larger = np.exp(np.minimum(errors, _LARGEST))
    up, down = weights * larger, weights / larger
    total = weights.sum(axis=-1, keepdims=True) + rest
    ups, downs = (one.sum(axis=-1, keepdims=True) + rest for one in (up, down))
    lse = np.maximum(np.log(ups / total), np.log(total / downs))
    highest = total * up / (up + _others(down) + rest)
    lowest = total * down / (down + _others(up) + rest)
    moved = np.maximum(highest - weights, weights - lowest)
    moved_rest = np.maximum(total * rest / downs - rest, rest - total * rest / ups)
    return tuple(np.nan_to_num(one, posinf=0.0) for one in (lse, moved, moved_rest))


def _others(terms: Array) -> Array:
    """Return the sum of all other terms along the last axis, which no term's own size blurs."""
    before, behind = np.zeros_like(terms), np.zeros_like(terms)
    np.cumsum(terms[..., :-1], axis=-1, out=before[..., 1:])
    np.cumsum(terms[..., :0:-1], axis=-1, out=behind[..., -2::-1])
    return np.asarray(before + behind)


def _to_first_order(context: Array, shares: Array, value: Array) -> Array:
    """Return Σ_j w_j δ_j |v_j − c|, at most."""
    # |v − c| ≤ |v − m| + |c − m| for any m: what all values have in common does no harm.
    middle = context.mean(axis=-2, keepdims=True)
    off = np.abs(context - middle)
    return np.asarray(shares @ np.abs(value - middle) + shares.sum(axis=-1, keepdims=True) * off)


def _by_weights(weights: Array, moved: Array, moved_rest: Array, value: Array) -> Array:
    """Return how far the context moves with its weights, at most."""
    largest = weights.argmax(axis=-1)[..., None]
    value = np.broadcast_to(value, (len(weights), *value.shape[1:]))
    at_largest = np.take_along_axis(value, largest, axis=-2)
    others = moved.copy()
    np.put_along_axis(others, largest, 0, axis=-1)
    middle = at_largest.mean(axis=-2, keepdims=True)
    away = others @ np.abs(value - middle)
    back = others.sum(axis=-1, keepdims=True) * np.abs(at_largest - middle)
    return np.asarray(away + back + moved_rest * np.abs(at_largest))


def _among_values(context: Array, weights: Array, rest: Array, value: Array) -> Array:
    """Return how far each context lies from the least and the largest value that is seen."""
    seen = np.any(weights > 0, axis=-2, keepdims=True).swapaxes(-1, -2)
    lowest = np.where(seen, value, np.inf).min(axis=-2, keepdims=True)
    highest = np.where(seen, value, -np.inf).max(axis=-2, keepdims=True)
    to_sink = np.where(rest > 0, np.abs(context), 0)
    return np.asarray(np.maximum(np.maximum(highest - context, context - lowest), to_sink))


def _turned_effects(run: Run, exact: Outputs, rope: Rope, eps: float) -> Outputs:
    """Return how far outputs move if every frequency and every angle is rounded, in a few tries.

    They are tried in float32 at least, since float64 would show its own roundings, too.
    """
    tried = max(eps, _TRIED_EPS)
    random = np.random.default_rng(0)
    frequencies = rope.of_width(run.pipe.width)
    signs = [np.ones(len(frequencies)), *random.choice([-1.0, 1.0], (_TRIES, len(frequencies)))]
    moved: Outputs = {}
    for of_frequencies in signs:

        def further(side: str, own: Array = of_frequencies) -> tuple[str, object]:
            def change(run: Run, rows: Array) -> Array:
                angles = run.positions(side)[..., None] * frequencies
                rounded = random.uniform(-1, 1, angles.shape)
                return turned(rows, angles * tried * (_FREQUENCY * own + rounded), rope.pairing)

            return side, change

        pipe = run.pipe.then("operands", further("query")).then("operands", further("key"))
        for name, array in evaluate(pipe, run.part).items():
            if array.shape == exact[name].shape:
                error = np.abs(np.where(array == exact[name], 0, array - exact[name]))
                moved[name] = np.maximum(moved.get(name, 0.0), error * (eps / tried))
    return moved
