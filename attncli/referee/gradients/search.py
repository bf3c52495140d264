"""Find the mistake of the backward pass that explains all given gradients.

Each mistake of the table is tried. It is named if it makes the numbers of every file, within its
own tolerance and with enough evidence (`attncli.referee.evidence`). Mistakes of the forward pass
that change only a rule are tried in both passes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import GRADIENTS
from attncli.referee.evidence import BITS_FOR_ONE, bits_of
from attncli.referee.gradients.table import ROWS
from attncli.referee.mistakes import TABLE
from attncli.referee.options import together
from attncli.referee.parts import Work
from attncli.referee.report import Cause, Diagnosis
from attncli.referee.tolerance import root_mean_square
from attncli.referee.verdict import Errors, canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from attncli.referee.formats import Array
    from attncli.referee.gradients.model import Model
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.report import Tolerance
    from attncli.referee.verdict import Judged

# The most scores of a problem on which mistakes are tried.
_MOST_CELLS = 2**22
# A mistake may leave this share of the error. It is as good as the best one if it leaves at most
# 1.5 times as much, plus this share of the tolerance.
_MOST_LEFT, _EQUALLY_GOOD, _ROUNDING = 0.4, 1.5, 0.05
# A mistake that changes only roundings may leave this share of the error.
_ROUGHLY_LEFT = 0.2
# A backward pass costs about this many times as much as the evaluation of its scores.
_COST = 5
# The backward pass supports changes of only these stages of the forward pipeline.
_RULES = {"scale", "softcap", "rules", "terms", "sinks"}


def diagnose(model: Model, found: Mapping[str, Judged], time_limit: float) -> Diagnosis:
    """Return why gradients are wrong; the time limit is counted in units of work."""
    findings = tuple(_narrowed(found))
    cells = math.prod(model.problem.shape)
    if cells > _MOST_CELLS:
        words = f"those of the backward pass, beyond {_MOST_CELLS:,} scores"
        return Diagnosis(findings=findings, tried=1, too_large=(words,))
    search, work, tried = _Search(model, found), Work(time_limit), 0
    fits = []
    for mistake, changed in search.candidates():
        if work.over:
            break
        work.spend(_COST * cells)
        tried += 1
        if (fit := search.fit(mistake, changed)) is not None:
            fits.append((*fit, mistake))
    causes = tuple(search.causes(fits))
    return Diagnosis(explanations=causes, findings=findings, tried=tried, complete=not work.over)


def _narrowed(found: Mapping[str, Judged]) -> Iterator[str]:
    """Yield conclusions from gradients that are right while others are wrong."""
    wrong = {name for name, one in found.items() if one.errors is None or not one.errors.passed}
    right = found.keys() - wrong
    if "dvalue" in right and wrong & {"dquery", "dkey"}:
        yield (
            "dvalue is right, so the weights that the backward pass computes again are right: the "
            "mistake is in delta, in the gradient of the scores, or after it"
        )
    if len(right & {"dquery", "dkey"}) == 1 and wrong & {"dquery", "dkey"}:
        (good,), (bad,) = right & {"dquery", "dkey"}, wrong & {"dquery", "dkey"}
        yield f"{good} is right, so the gradient of the scores is right: the mistake is in {bad}"


class _Search:
    def __init__(self, model: Model, found: Mapping[str, Judged]) -> None:
        self.model, self.found = model, found
        # dvalue first: it depends on few steps, and rules out many mistakes soon.
        order = sorted(found, key=[*GRADIENTS].index, reverse=True)
        self.files = {
            name: one.file.values
            if (one := found[name]).errors is None
            else canonical(model.problem, name, one.file.values)
            for name in order
        }

    def candidates(self) -> Iterator[tuple[Mistake, Model]]:
        """Yield each mistake with its model."""
        for mistake in ROWS:
            change: Any = mistake.change
            yield mistake, change(self.model)
        pipe = self.model["backward"]
        for mistake in TABLE:
            if mistake.needs or mistake.writes or mistake.projects or mistake.reshapes:
                continue
            other = mistake.change(pipe)
            if other is None or other is pipe:
                continue
            if {n for n, stage in vars(pipe).items() if vars(other)[n] is not stage} <= _RULES:
                yield mistake, self.model.by(other, "forward", "backward")

    def fit(self, mistake: Mistake, changed: Model) -> tuple[float, float] | None:
        """Return the rms left, in tolerances, and the largest error; None if it does not fit."""
        each = []
        for name in self.files:
            made = self._shaped(name, changed)
            left = None if made is None else self._left(name, made, mistake)
            if left is None:
                return None
            each.append(left)
        shares, errors, bits = zip(*each, strict=True)
        return (max(shares), max(errors)) if sum(bits) >= BITS_FOR_ONE else None

    def _shaped(self, name: str, changed: Model) -> Array | None:
        """Return a gradient of a model in the shape of the file; None if the shapes differ."""
        made, shape = np.asarray(changed[name]), self.files[name].shape
        if self.found[name].errors is not None:
            return made if made.shape == shape else None
        # A file whose shape differs from the answer's may hold terms that are not summed.
        alike = [n for n in made.shape if n > 1] == [n for n in shape if n > 1]
        return made.reshape(shape) if alike else None

    def _tolerance(self, name: str, made: Array) -> Tolerance:
        """Return the tolerance of a gradient of a model, in proportion to its size."""
        own = self.found[name].tolerance
        sizes = [root_mean_square(a[np.isfinite(a)]) for a in (made, self.model[name])]
        times = max(1.0, sizes[0] / sizes[1]) if sizes[1] else 1.0
        rms = None if own.rms is None else times * own.rms
        return replace(own, absolute=times * own.absolute, rms=rms)

    def _left(self, name: str, made: Array, mistake: Mistake) -> tuple[float, float, float] | None:
        """Return the rms left, in tolerances, the largest error, and bits of evidence."""
        file, right, tolerance = self.files[name], self.model[name], self._tolerance(name, made)
        if right.shape != file.shape:
            right = np.full_like(file, np.nanmean(file))
        before = Errors(file, right, tolerance)
        finite = before.error[np.isfinite(before.error)]
        usual = tolerance.rms or float(tolerance.allowed(made).max())
        errors = self.found[name].errors
        was_right = errors is not None and errors.passed
        if mistake.roughly and not was_right:
            # A number that is rounded the other way moves by at most twice the rounding error.
            largest = 2 * float(finite.max(initial=tolerance.absolute))
            most = max(_ROUGHLY_LEFT * before.rms, tolerance.rms or 0.0)
            tolerance = replace(tolerance, absolute=largest, rms=most)
        left = Errors(file, made, tolerance)
        bits = 0.0
        if not left.passed:
            return None
        if not was_right:
            if finite.size == before.error.size and left.rms > _MOST_LEFT * before.rms:
                return None
            bits = bits_of(file, right, made, tolerance, tolerance.rms)
        return left.rms / usual, float(left.error.max()), bits

    def causes(self, fits: list[tuple[float, float, Mistake]]) -> Iterator[Cause]:
        """Yield the explanations that are about as good as the best one."""
        least = min((share for share, *_ in fits), default=0.0)
        for share, error, mistake in sorted(fits, key=lambda item: item[0]):
            if share <= _EQUALLY_GOOD * least + _ROUNDING:
                options = together([mistake.option(self.model.problem)])
                yield Cause(
                    conventions=(mistake,),
                    options=options,
                    outputs=tuple(self.found),
                    error=error,
                )
