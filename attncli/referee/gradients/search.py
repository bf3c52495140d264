"""Find the mistake of the backward pass that explains all gradients that were given.

Each mistake of the table is followed, and one is named if it makes the numbers of every file
within what it earns itself, with enough evidence (`attncli.referee.evidence`). Mistakes of the
forward pass that change only a rule are tried in both passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import GRADIENTS
from attncli.referee.evidence import BITS_FOR_ONE
from attncli.referee.gradients.table import table
from attncli.referee.mistakes import TABLE
from attncli.referee.options import together
from attncli.referee.parts import Work
from attncli.referee.report import Cause, Diagnosis
from attncli.referee.tolerance import root_mean_square
from attncli.referee.verdict import canonical, distance

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from attncli.referee.formats import Array
    from attncli.referee.gradients.model import Model
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.report import Tolerance
    from attncli.referee.verdict import Judged

__all__ = ["diagnose"]

# Scores of a problem on which mistakes are tried.
_MOST_CELLS = 2**22
# What a mistake may leave of the error, as root mean square; and how much worse than the best one
# another may be that is told beside it, and what is nothing, in units of the tolerance.
_MOST_LEFT, _EQUALLY_GOOD, _ROUNDING = 0.4, 1.5, 0.05
# What a mistake may leave of the error that only rounds.
_ROUGHLY_LEFT = 0.2
# Errors beyond so many times the tolerance are far off, whatever a mistake earns.
_FAR = 1000.0
# One number is never enough evidence; NaN where it should be is worth two.
_MOST_BITS, _BITS_OF_NAN = 16.0, 32.0
# A backward pass costs about so many times what the evaluation of its scores does.
_COST = 5
# What a rule of the forward pass may change of a pipeline for the backward pass to follow.
_RULES = {"scale", "softcap", "rules", "terms", "sinks"}


def diagnose(model: Model, found: Mapping[str, Judged], time_limit: float) -> Diagnosis:
    """Return why gradients are wrong.

    Parameters
    ----------
    model : Model
        The right one.
    found : mapping of str to Judged
    time_limit : float
        Seconds, counted in work.
    """
    findings = tuple(_narrowed(found))
    cells = math.prod(model.problem.shape)
    if cells > _MOST_CELLS:
        words = (
            f"no mistake is looked for: the problem has {cells:,} scores, and mistakes of a "
            f"backward pass are tried on {_MOST_CELLS:,} at most; give fewer heads or queries"
        )
        return Diagnosis(findings=(*findings, words), tried=1)
    search = _Search(model, found)
    work, tried, fits = Work(time_limit), 0, []
    for mistake, changed in search.candidates():
        if work.over:
            break
        work.spend(_COST * cells)
        tried += 1
        fit = search.fit(mistake, changed)
        if fit is not None:
            fits.append((fit, mistake))
    return Diagnosis(
        explanations=tuple(search.causes(fits)),
        findings=findings,
        tried=tried,
        complete=not work.over,
    )


def _narrowed(found: Mapping[str, Judged]) -> Iterator[str]:
    """Yield what right gradients beside wrong ones say."""
    wrong = {name for name, one in found.items() if one.errors is None or not one.errors.passed}
    right = found.keys() - wrong
    if "dvalue" in right and wrong & {"dquery", "dkey"}:
        yield (
            "dvalue is right, so the weights that the backward pass makes again are right: the "
            "mistake is in delta, in the gradient of the scores, or behind it"
        )
    if len(right & {"dquery", "dkey"}) == 1 and wrong & {"dquery", "dkey"}:
        (good,), (bad,) = right & {"dquery", "dkey"}, wrong & {"dquery", "dkey"}
        yield f"{good} is right, so the gradient of the scores is right: the mistake is in {bad}"


@dataclass(frozen=True)
class _Fit:
    """How well a mistake explains the files: what is left, in absolute terms and of the limit."""

    error: float
    share: float
    bits: float


class _Search:
    """The files, and whether a deviating model makes them."""

    def __init__(self, model: Model, found: Mapping[str, Judged]) -> None:
        self.model, self.found = model, found
        # First what no mistake touches that is not found wrong: it rules out most of them soon.
        order = sorted(found, key=[*GRADIENTS].index, reverse=True)
        self.values = {name: self._canonical(name) for name in order}

    def _canonical(self, name: str) -> Array:
        """Return a file as (B, H, ·, ·); as it is where its shape is another one."""
        values = self.found[name].file.values
        if self.found[name].errors is not None:
            return canonical(self.model.problem, name, values)
        return values

    def candidates(self) -> Iterator[tuple[Mistake, Model]]:
        """Yield the mistakes that make sense, each with the model that has it."""
        for mistake in table():
            change: Any = mistake.change
            yield mistake, change(self.model)
        pipe = self.model["backward"]
        for mistake in TABLE:
            if mistake.needs or mistake.writes or mistake.projects or mistake.reshapes:
                continue
            other = mistake.change(pipe)
            if other is not None and other is not pipe and _changes(pipe, other) <= _RULES:
                both = dict.fromkeys(("forward", "backward"), lambda _, other=other: other)
                yield mistake, self.model.but(**both)

    def fit(self, mistake: Mistake, changed: Model) -> _Fit | None:
        """Return how well a model explains all files; None where it does not."""
        made = {}
        for name in self.values:
            shaped = self._shaped(name, changed)
            if shaped is None or not self._near(name, shaped):
                return None
            made[name] = shaped
        rough = mistake.roughly
        fits = [self._of_one(name, array, roughly=rough) for name, array in made.items()]
        if any(fit is None for fit in fits):
            return None
        known = [fit for fit in fits if fit is not None]
        bits = sum(fit.bits for fit in known)
        if bits < BITS_FOR_ONE:
            return None
        return _Fit(max(f.error for f in known), max(f.share for f in known), bits)

    def _shaped(self, name: str, changed: Model) -> Array | None:
        """Return what a model makes in the axes of the file; None where the shape is another."""
        made: Array = changed[name]
        file = self.values[name]
        if self.found[name].errors is not None:
            return made if made.shape == file.shape else None
        long = [size for size in made.shape if size > 1]
        alike = long == [size for size in file.shape if size > 1]
        return made.reshape(file.shape) if alike and made.size != self._right(name).size else None

    def _right(self, name: str) -> Array:
        right: Array = self.model[name]
        return right

    def _near(self, name: str, made: Array) -> bool:
        tolerance = self.found[name].tolerance
        file = self.values[name]
        if not np.array_equal(np.isnan(file), np.isnan(made)):
            return False
        peak = float(np.abs(made[np.isfinite(made)]).max(initial=0))
        error = distance(file, made)
        return bool(error.max() <= _FAR * (tolerance.absolute + tolerance.relative * peak))

    def _tolerance(self, name: str, made: Array) -> Tolerance:
        """Return what is tolerated beside what a model makes: larger numbers round by more."""
        own, right = self.found[name].tolerance, self._right(name)
        sizes = [root_mean_square(each[np.isfinite(each)]) for each in (made, right)]
        times = max(1.0, sizes[0] / sizes[1]) if sizes[1] else 1.0
        return replace(
            own,
            absolute=times * own.absolute,
            rms=None if own.rms is None else times * own.rms,
        )

    def _of_one(self, name: str, made: Array, *, roughly: bool) -> _Fit | None:
        """Return how well one file is explained."""
        one, tolerance = self.found[name], self._tolerance(name, made)
        file, right = self.values[name], self._right(name)
        left = distance(file, made)
        same = right.shape == file.shape
        before = distance(file, right) if same else np.full(file.shape, np.abs(file).mean())
        odd = ~np.isfinite(before)
        was_right = one.errors is not None and one.errors.passed
        rms, size = root_mean_square(left), root_mean_square(before[~odd])
        share = rms / (tolerance.rms or float(tolerance.allowed(made).max()))
        if roughly and not was_right:
            most = max(_ROUGHLY_LEFT * size, tolerance.rms or 0.0)
            # What is rounded the other way moves by twice as much as the rounding, at most.
            largest = 2 * float(before[~odd].max(initial=tolerance.absolute))
            tolerance = replace(tolerance, absolute=largest, rms=most)
        allowed, limit = tolerance.allowed(made), tolerance.rms or np.inf
        if (left > allowed).any() or rms > limit:
            return None
        if not was_right and not odd.any() and rms > _MOST_LEFT * size:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            bits = np.clip(np.log2(before / np.minimum(allowed, limit)), 0, _MOST_BITS)
        total = 0.0 if was_right else float(bits[~odd].sum()) + _BITS_OF_NAN * bool(odd.any())
        return _Fit(float(left.max()), share, total)

    def causes(self, fits: list[tuple[_Fit, Mistake]]) -> Iterator[Cause]:
        """Yield those about as good as the best one."""
        least = min((fit.share for fit, _ in fits), default=0.0)
        for fit, mistake in sorted(fits, key=lambda item: item[0].share):
            if fit.share <= _EQUALLY_GOOD * least + _ROUNDING:
                yield Cause(
                    conventions=(mistake,),
                    options=together((mistake.option(self.model.problem),), self.model.problem),
                    outputs=tuple(self.found),
                    error=fit.error,
                )


def _changes(one: Pipeline, other: Pipeline) -> set[str]:
    """Return the stages in which two pipelines differ."""
    return {name for name, stage in vars(one).items() if vars(other)[name] is not stage}
