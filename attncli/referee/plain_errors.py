"""The error of the textbook formula in a format: on a small problem, or a sample of a large one.

The textbook formula is Q·Kᵀ, softmax, ·V, every intermediate result stored in the format.
Its error is measured against float64 on the problem itself; `attncli.referee.tolerance`
derives the tolerance of a file from it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import Outputs, Recipe, recipe_of
from attncli.referee.replacing import replace
from attncli.referee.rounding import PRECISIONS, Precision
from attncli.referee.score_rounding import effects_of_rounding
from attncli.referee.sizes import typical_sizes
from attncli.referee.verdict import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.report import Place

__all__ = ["Plain", "plain_errors", "plain_errors_in", "plain_errors_of"]

Array = npt.NDArray[Any]

_CHUNK_CELLS = 2**18
_CHUNKS = 12
_NOTHING = np.zeros(0)


class Plain(NamedTuple):
    """What the textbook formula does to one output.

    Attributes
    ----------
    largest : float
        Its largest absolute error.
    excess : float
        The same beyond one unit in the last place of the element.
    rms : float
        The root mean square of its errors.
    size : float
        A typical element.
    rms_answer : float
        The root mean square of the answer itself.
    pooled, pooled_answer : float
        Both of all rows together; ``rms`` and ``rms_answer`` are those of the worst part.
    rounded : float
        How far the roundings of scores and angles may move an element.
    rms_rounded : float
        The root mean square of that.
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
    pooled: float = 0.0
    pooled_answer: float = 0.0
    rounded: float = 0.0
    rms_rounded: float = 0.0
    rows: int = 0
    apart: float = 0.0

    def __or__(self, other: Plain) -> Plain:
        return Plain(
            largest=max(self.largest, other.largest),
            excess=max(self.excess, other.excess),
            rms=max(self.rms, other.rms),
            size=max(self.size, other.size),
            rms_answer=max(self.rms_answer, other.rms_answer),
            pooled=_pooled((self.pooled, self.rows), (other.pooled, other.rows)),
            pooled_answer=_pooled(
                (self.pooled_answer, self.rows), (other.pooled_answer, other.rows)
            ),
            rounded=max(self.rounded, other.rounded),
            rms_rounded=max(self.rms_rounded, other.rms_rounded),
            rows=self.rows + other.rows,
            apart=self.apart + other.apart,
        )


def _pooled(*parts: tuple[float, int]) -> float:
    """Return the root mean square of rows of which parts have one each."""
    rows = sum(count for _, count in parts)
    return math.hypot(*(rms * math.sqrt(count / rows) for rms, count in parts)) if rows else 0.0


def plain_errors_of(
    problem: Problem, precisions: Mapping[str, Precision], places: Sequence[Place] = ()
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
    """
    total = dict.fromkeys(precisions, Plain())
    for part in _chunks(problem):
        recipe = recipe_of(part, problem)
        for name, plain in plain_errors(recipe, precisions).items():
            total[name] |= plain
    return plain_errors_in(places, problem, precisions, total)


def plain_errors_in(
    places: Sequence[Place],
    problem: Problem,
    precisions: Mapping[str, Precision],
    known: Mapping[str, Plain],
) -> dict[str, Plain]:
    """Return the known errors of the textbook formula, and those in a few more places.

    How large an error may be is measured in each row itself, and what that adds to the mean of
    all; what is usual in its head is measured in rows far from it.

    Parameters
    ----------
    places : sequence of Place
        Whose rows; a head of None stands for all heads.
    problem : Problem
    precisions : mapping of str to Precision
    known : mapping of str to Plain
    """
    total = dict(known)
    if _is_small(problem):  # all of it is known
        return total
    batches, heads, queries, _ = problem.shape
    rows = _rows_a_chunk(problem)
    for place in {(place.batch, place.head, place.query): place for place in places}.values():
        all_rows = batches * queries * (1 if place.head is None else heads)
        for name, plain in _plain_errors_at(place, place.query, 1, problem, precisions).items():
            total[name] = total[name]._replace(
                largest=max(total[name].largest, plain.largest),
                excess=max(total[name].excess, plain.excess),
                rounded=max(total[name].rounded, plain.rounded),
                apart=total[name].apart + plain.rms**2 / all_rows,
            )
    for place in {(place.batch, place.head): place for place in places}.values():
        far = (place.query + queries // 2) % max(1, queries - rows)
        for name, plain in _plain_errors_at(place, far, rows, problem, precisions).items():
            total[name] |= plain
    return total


def _plain_errors_at(
    place: Place, start: int, rows: int, problem: Problem, precisions: Mapping[str, Precision]
) -> dict[str, Plain]:
    """Return the textbook formula's errors in some rows of the head of a place."""
    span = start, min(start + rows, problem.shape[2])
    part = problem.select(batch=place.batch, head=place.head, rows=span)
    return plain_errors(recipe_of(part, problem), precisions)


def plain_errors(
    recipe: Recipe, precisions: Mapping[str, Precision], exact: Outputs | None = None
) -> dict[str, Plain]:
    """Return the errors that a recipe makes when every step is rounded.

    Parameters
    ----------
    recipe : Recipe
    precisions : mapping of str to Precision
    exact : dict, optional
        What `evaluate` gives for it.
    """
    exact = evaluate(recipe) if exact is None else exact
    sizes = typical_sizes(recipe, exact, precisions)
    # Of these formats, scores are rounded no more coarsely than the outputs.
    wide = [name for name, precision in precisions.items() if not precision.short]
    moved = {
        eps: effects_of_rounding(recipe, exact, wide, eps)
        for eps in {precisions[name].eps for name in wide}
    }
    made: dict[Precision, list[Outputs]] = {}
    errors = {}
    for name, precision in precisions.items():
        # float64 cannot be measured against itself; its errors are those of float32, smaller.
        tried = PRECISIONS["float32"] if precision.name == "float64" else precision
        if tried not in made:
            made[tried] = _plainly(recipe, tried)
        ratio = precision.eps / tried.eps
        plains = [plain[name] for plain in made[tried]]
        largest, excess, rms = (ratio * size for size in _errors(plains, exact[name], tried))
        answer = _finite(exact[name])
        effects = _finite(moved.get(precision.eps, {}).get(name, _NOTHING))
        errors[name] = Plain(
            largest=largest,
            excess=excess,
            rms=rms,
            size=sizes[name],
            rms_answer=root_mean_square(answer),
            pooled=rms,
            pooled_answer=root_mean_square(answer),
            rounded=float(effects.max(initial=0)),
            rms_rounded=root_mean_square(effects),
            rows=exact[name][..., 0].size,
        )
    return errors


def _plainly(recipe: Recipe, precision: Precision) -> list[Outputs]:
    """Return what comes of a recipe when its steps are rounded, in several orders.

    The scale before the product and after it; and each sum made a term at a time, as a
    loop makes it, whose error grows with the number of terms. In a 16-bit format that
    is nothing beside the rounding of the result.
    """
    # A format that does not hold what hides a key has a number of its own for that.
    recipe = replace(recipe, fill=_within(recipe.fill, precision))
    made = [evaluate(recipe, precision, fold=fold) for fold in (False, True)]
    if precision.name == "float32":
        made.append(evaluate(replace(recipe, one_by_one=True), precision))
    return made


def _within(fill: float, precision: Precision) -> float:
    return max(fill, -precision.largest) if math.isfinite(fill) else fill


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


def _is_small(problem: Problem) -> bool:
    return math.prod(problem.shape) <= _CHUNK_CELLS


def _rows_a_chunk(problem: Problem) -> int:
    _, heads, queries, keys = problem.shape
    together = 1 if problem.output is None else heads
    width = int(problem.query.shape[3])
    return max(1, min(queries, _CHUNK_CELLS // (keys * width * together)))


def _chunks(problem: Problem) -> Iterator[Problem]:
    """Yield parts of a problem: all of it, or some spread evenly over it where it is large."""
    if _is_small(problem):
        yield problem
        return
    batch, heads, queries, _ = problem.shape
    # The output projection needs all heads.
    each: Iterable[int | None] = range(heads) if problem.output is None else (None,)
    rows = _rows_a_chunk(problem)
    parts = [(b, h, start) for b in range(batch) for h in each for start in range(0, queries, rows)]
    chosen = sorted({round(i) for i in np.linspace(0, len(parts) - 1, _CHUNKS)})
    for b, h, start in (parts[i] for i in chosen):
        yield problem.select(batch=b, head=h, rows=(start, min(start + rows, queries)))
