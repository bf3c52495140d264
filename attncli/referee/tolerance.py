"""The tolerance of an output: how large the errors of a correct computation may be.

The textbook formula (Q·Kᵀ, softmax, ·V) is a correct computation. It is run on the problem at hand,
with every intermediate result stored in the format of the file, and its errors against float64 are
measured. A file passes if

- each element is within `FACTOR` times the largest error of the formula, plus two units in the last
  place of a typical element and four of its own, and
- the root mean square of all errors is within `_RMS_FACTOR` times that of the formula.

The first rule comes from FlashAttention's tests, with a factor of 2. The largest of many errors is
a matter of luck, so the factor here is larger. The second rule is stricter: in 16 bits the first
one would let a lost key pass.

A huge element (a score with a bias of −1e9) is rounded by a huge amount. So the rounding of the
element itself does not count as an error of the formula.

The formula may be exact by luck, for example on whole numbers. So outputs in float32 and float64
are also computed with random errors in every score and rotary angle, as large as one rounding.

In a large problem, only a few parts are measured, and the parts around rows that look wrong.

References
----------
Dao 2023, "FlashAttention-2", and its ``tests/test_flash_attn.py``: the error must not exceed twice
that of a PyTorch implementation in the same precision.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors.names import SCORE_STAGES
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import turned
from attncli.referee.formats import FLOAT64, PRECISIONS, Array, Digits, Precision
from attncli.referee.pipeline import Pipeline, pipeline_of
from attncli.referee.report import Tolerance
from attncli.referee.run import WHOLE, Outputs, Part, Run, evaluate, joined_heads, together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.report import Place
    from attncli.referee.run import Stage

FACTOR = 6.0
_RMS_FACTOR = 3.0
# In a large problem: how many products a measured part has, and how many parts are measured.
_PART_PRODUCTS, _PARTS = 2**18, 12
# How many random errors of each kind are tried; the first has the same sign everywhere.
_TRIES = 3
# The largest error of a rotary frequency, base ** (−2p/D), in units in the last place.
_FREQUENCY = 6.0
# The relative error (root mean square) of the exponential in PyTorch's CPU kernel for 16-bit
# inputs, measured over 130 keys. Equal scores err equally, so a long row sum does not average it.
_SHORT_EXPONENTIAL = 2.4e-5
# For float64, random errors of this size are tried and scaled down: real ones are too small.
_TRIED_EPS = 2.0**-36


class Plain(NamedTuple):
    """The errors of the textbook formula in one output."""

    largest: float = 0.0  # the largest absolute error
    excess: float = 0.0  # the largest error beyond one unit in the last place of the element
    rms: float = 0.0  # the root mean square of the errors
    size: float = 0.0  # a typical element
    rms_answer: float = 0.0  # the root mean square of the answer
    rows: int = 0  # the number of rows that were measured

    def __or__(self, other: Plain) -> Plain:
        largest = [max(one, two) for one, two in zip(self[:5], other[:5], strict=True)]
        return Plain._make((*largest, self.rows + other.rows))


def earned(plain: Plain, precision: Precision, digits: Digits) -> Tolerance:
    """Return the tolerance of a file, from its format, printed digits and the formula's errors."""
    # The root mean square of few rows is uncertain, so it gets a larger factor.
    rms = _RMS_FACTOR * (1 + 2 / math.sqrt(max(plain.rows, 1))) * plain.rms
    stored = 0.5 * precision.eps * plain.rms_answer
    summed = 4 * min(precision.eps, PRECISIONS["float32"].eps) * plain.size
    printed = digits.absolute + digits.relative * plain.rms_answer
    return Tolerance(
        absolute=FACTOR * plain.excess + 2 * precision.eps * plain.size + digits.absolute,
        relative=4 * precision.eps + digits.relative,
        earned=True,
        plain_error=plain.largest,
        rms=rms + stored + summed + printed,
    )


def plain_errors_of(
    problem: Problem,
    precisions: Mapping[str, Precision],
    places: Sequence[Place] = (),
    inputs: Precision | None = None,  # the format of 16-bit inputs
) -> dict[str, Plain]:
    """Return the errors of the textbook formula; ``places`` are measured in a large problem."""
    pipe = pipeline_of(problem)
    total = dict.fromkeys(precisions, Plain())
    for part in dict.fromkeys(_parts(problem, places)):
        for name, plain in plain_errors(pipe, part, precisions, inputs=inputs).items():
            total[name] |= plain
    return total


def _parts(problem: Problem, places: Sequence[Place]) -> Iterator[Part]:
    """Yield the parts to measure: all of a small problem, or a few parts of a large one."""
    batch, heads, queries, keys = problem.shape
    if math.prod(problem.shape) <= _PART_PRODUCTS:
        yield WHOLE
        return
    joined = problem.output is not None  # the output projection needs all heads
    products = keys * problem.query.shape[3] * (heads if joined else 1)
    rows = max(1, min(queries, _PART_PRODUCTS // products))
    count = (batch, 1 if joined else heads, -(-queries // rows))
    numbers = np.linspace(0, math.prod(count) - 1, _PARTS).round().astype(int)
    spread = [tuple(int(n) for n in np.unravel_index(number, count)) for number in numbers]
    near = [(place.batch or 0, place.head or 0, place.query // rows) for place in places]
    for entry, head, block in (*spread, *near):
        span = block * rows, min((block + 1) * rows, queries)
        yield Part(entry, None if joined else head, span)


def plain_errors(
    pipe: Pipeline,
    part: Part,
    precisions: Mapping[str, Precision],
    exact: Outputs | None = None,  # the outputs in float64, if known
    inputs: Precision | None = None,
) -> dict[str, Plain]:
    """Return the errors of a pipeline on a part when every step is rounded."""
    exact = evaluate(pipe, part) if exact is None else exact
    run = Run(pipe, part, FLOAT64, None)
    made = {each: _rounded(run, each, exact) for each in set(precisions.values())}
    errors = {}
    for name, precision in precisions.items():
        outputs = [plain[name] for plain in made[precision] if name in plain]
        if name == "lse" and inputs is not None and not precision.short:
            outputs += [plain["lse"] for plain in _of_short_queries(run, inputs)]
            outputs.append(exact["lse"] + _SHORT_EXPONENTIAL)
        right, size = exact[name], _typical_size(run, exact, name)
        answer = root_mean_square(_finite(right))
        plain = Plain(size=size, rms_answer=answer, rows=right[..., 0].size)
        errors[name] = reduce(or_, (_errors(each, right, precision) for each in outputs), plain)
    return errors


def _rounded(run: Run, precision: Precision, exact: Outputs) -> list[Outputs]:
    """Return outputs in a format, for several orders of the steps and random errors."""
    pipe, part = run.pipe, run.part
    if math.isfinite(pipe.fill):  # no number is lower than the lowest of the format
        pipe = pipe.but(fill=max(pipe.fill, -precision.largest))
    single = PRECISIONS["float32"]
    tried = precision if precision.short else single
    made = [evaluate(pipe, part, tried, fold=fold) for fold in (False, True)]
    if precision.short:
        return made
    made.append(evaluate(pipe.but(in_turn=True), part, tried))  # sums as a loop makes them
    # The errors of float64 are those of float32, scaled down.
    made = [_nearer(outputs, exact, precision.eps / tried.eps) for outputs in made]
    amount = max(precision.eps, _TRIED_EPS)
    for seed in range(_TRIES):
        outputs = evaluate(disturbed(pipe, amount, seed), part)
        made.append(_nearer(outputs, exact, precision.eps / amount))
    return made


def _nearer(made: Outputs, exact: Outputs, share: float) -> Outputs:
    if share == 1:
        return made
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            name: exact[name] + share * (array - exact[name])
            for name, array in made.items()
            if name in exact and array.shape == exact[name].shape
        }


def disturbed(pipe: Pipeline, eps: float, seed: int) -> Pipeline:
    """Return a pipeline with random relative errors up to eps in scores and rotary angles."""
    random = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Array:
        return random.uniform(-1, 1, shape) if seed else np.ones(shape)

    def score(run: Run, scores: Array) -> Array:
        sizes = np.abs(scores)
        if run.pipe.score == "dot" and (products := _product_sizes(run)).shape == scores.shape:
            sizes = np.maximum(sizes, products)
        errors = eps * (sizes + _alibi_sizes(run)) * draw(scores.shape)
        return np.where(np.isfinite(errors), scores + errors, scores)

    made = pipe.with_step("errors", score, before=None)
    if pipe.rope is None:
        return made
    rope = pipe.rope
    frequencies = rope.of_width(pipe.width)
    signs = np.where(draw(frequencies.shape) > 0, 1, -1)

    def turn_further(side: str) -> tuple[str, Stage]:
        def change(run: Run, rows: Array) -> Array:
            angles = run.positions(side)[..., None] * frequencies
            errors = eps * (_FREQUENCY * signs + draw(angles.shape))
            return turned(rows, angles * errors, rope.pairing)

        return side, change

    return made.then("operands", turn_further("query")).then("operands", turn_further("key"))


def _of_short_queries(run: Run, inputs: Precision) -> Iterator[Outputs]:
    """Yield outputs for scaled queries that are rounded to 16 bits again, as in some kernels."""
    for seed in range(_TRIES):
        random = np.random.default_rng(seed)

        def change(_: Run, query: Array, random: np.random.Generator = random) -> Array:
            return query * (1 + inputs.eps / 2 * random.uniform(-1, 1, query.shape))

        yield evaluate(run.pipe.then("operands", ("query", change)), run.part)


def _errors(made: Array, exact: Array, precision: Precision) -> Plain:
    if made.shape != exact.shape:
        return Plain()
    found, right = finite_in_both(made, exact)
    error = np.abs(found - right)
    excess = (error - precision.eps * np.abs(right)).max(initial=0)
    return Plain(float(error.max(initial=0)), float(excess), root_mean_square(error))


def _finite(array: Array) -> Array:
    return np.asarray(array[np.isfinite(array)])


def finite_in_both(found: Array, made: Array) -> tuple[Array, Array]:
    """Return the numbers that are finite in both of two arrays of one shape, (N,) each."""
    both = np.isfinite(found) & np.isfinite(made)
    return (found.ravel(), made.ravel()) if both.all() else (found[both], made[both])


def root_mean_square(numbers: Array) -> float:
    """Return the root mean square of finite numbers; 0 if there are none."""
    peak = float(np.maximum.reduce(np.abs(numbers), axis=None, initial=0))
    if peak == 0:
        return 0.0
    # Divide by the largest number first, so that no square overflows.
    total = float(np.add.reduce(np.square(numbers / peak), axis=None))
    return peak * math.sqrt(total / numbers.size)


# The rounding error of a sum depends on the size of its terms, which may cancel.


def _typical_size(run: Run, exact: Outputs, name: str) -> float:
    sizes = np.abs(exact[name])
    if name == "context" and run.pipe.value is not None:
        sizes = _context_sizes(run, exact["weights"])
    elif name in SCORE_STAGES and run.pipe.score == "dot":
        sizes = np.maximum(sizes, _product_sizes(run))
    sizes = _finite(sizes)
    if not sizes.size:
        return 0.0
    if name == "lse":  # near 1, the logarithm of a sum has the same error as the sum
        return max(1.0, float(sizes.max()))
    # The median: a bias makes single scores huge.
    return float(np.median(sizes) if name in SCORE_STAGES else sizes.max())


def _product_sizes(run: Run) -> Array:
    """Return the scaled sum of the absolute terms of each product Q·Kᵀ, (B, H, L, S)."""
    query, key = (np.abs(run.input(name)) for name in ("query", "key"))
    return np.asarray(np.abs(run.scale) * together(query, key.swapaxes(-1, -2)))


def _alibi_sizes(run: Run) -> Array | float:
    """Return the largest absolute ALiBi term of a causal problem, in any common form."""
    # slope · j (BLOOM) and slope · (j − S + 1) (MPT) differ from −slope · (i − j) by one number for
    # all keys of a query, so the weights are the same.
    slopes = run.pipe.problem.alibi_slopes
    if slopes is None or not run.pipe.problem.visible.causal or len(slopes) < run.h.size:
        return 0.0
    far = np.maximum(run.j, run.j[..., ::-1])
    return np.asarray(np.abs(run.by_head(slopes)) * far)


def _context_sizes(run: Run, weights: Array) -> Array:
    """Return the sum of the absolute terms of each context, after the output projection."""
    with np.errstate(invalid="ignore"):  # mistakes may make weights infinite
        sizes = together(np.abs(weights), np.abs(run.input("value")))
    output = run.pipe.output
    if output is None or (rows := joined_heads(sizes)).shape[-1] != len(output.weight):
        return sizes
    return np.asarray(rows @ np.abs(widen(output.weight, np.float64)))
