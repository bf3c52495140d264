"""The backward pass as named steps, so that a mistake is the exchange of one of them.

    scores, lse ─▶ weights ─▶ factor ─▶ dvalue_heads ─▶ dvalue_operand ─▶ dvalue
    context ─▶ delta ┐
    dweights ────────┴▶ dscores ─▶ draw ─▶ dquery_operand ─▶ dquery
                           │          └─▶ dkey_heads ─▶ dkey_operand ─▶ dkey
                           └─▶ dbias; and delta, lse ─▶ dsinks

The forward pass is a pipeline of `attncli.referee.pipeline`. The backward pass computes the scores
again by a pipeline of its own, so that a rule can be missing there only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import turned
from attncli.referee.formats import FLOAT64, Array, Precision
from attncli.referee.pipeline import pipeline_of
from attncli.referee.run import WHOLE, Part, Run, evaluate, together

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.pipeline import Pipeline

Step = Callable[["Model"], Any]
Change = Callable[["Model", Any], Any]
# The steps that are not stored, and so not rounded.
_EXACT = ("delta", "dlse", "sink_terms")


class Model:
    """A backward pass on a part of a problem; each step is computed on demand."""

    def __init__(
        self,
        problem: Problem,
        steps: Mapping[str, Step],
        precision: Precision = FLOAT64,
        part: Part = WHOLE,
        known: dict[str, tuple[Any, set[str]]] | None = None,
    ) -> None:
        self.problem, self.steps = problem, steps
        self.precision, self.part = precision, part
        self.share = int(self.problem.shape[1] // self.problem.key.shape[1])
        # The result of each step, and the steps that it depends on.
        self._known = {} if known is None else known
        self._open: list[set[str]] = []

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._open.append(set())
            with np.errstate(all="ignore"):
                made = self.steps[name](self)
            if isinstance(made, np.ndarray) and name not in _EXACT:
                made = self.precision.rounded(made)
            self._known[name] = made, self._open.pop()
        made, parts = self._known[name]
        if self._open:
            self._open[-1] |= {name, *parts}
        return made

    def but(self, **steps: Step) -> Model:
        """Return the model with other steps; results that do not depend on them are kept."""
        known = {
            name: (made, parts)
            for name, (made, parts) in self._known.items()
            if steps.keys().isdisjoint({name, *parts})
        }
        return Model(self.problem, {**self.steps, **steps}, self.precision, self.part, known)

    def then(self, **changes: Change) -> Model:
        """Return the model with changed results of some steps."""

        def after(name: str, change: Change) -> Step:
            step = self.steps[name]
            return lambda model: change(model, step(model))

        return self.but(**{name: after(name, change) for name, change in changes.items()})

    def through(self, change: Callable[[Array], Array], *steps: str) -> Model:
        """Return the model with a function applied to the results of some steps."""
        return self.then(**dict.fromkeys(steps, lambda _, made: change(made)))

    def by(self, pipe: Pipeline, *passes: str) -> Model:
        """Return the model with another pipeline in the forward or backward pass, or both."""
        return self.but(**dict.fromkeys(passes, lambda _: pipe))

    def stored(self, precision: Precision, part: Part) -> Model:
        """Return the model on a part, with every step rounded to a precision."""
        return Model(self.problem, self.steps, precision, part)

    @property
    def run(self) -> Run:
        """The pipeline of the backward pass on the part."""
        return Run(self["backward"], self.part, self.precision, None)

    def scaled(self, array: Array) -> Array:
        """Return the array times the scale."""
        return np.asarray(array * np.asarray(self["backward"].scale, array.dtype))


def model_of(problem: Problem, dcontext: Array, dlse: Array, outputs: Mapping[str, Array]) -> Model:
    """Return the right backward pass for given outputs and gradients of context and lse."""
    own: dict[str, Step] = {
        "dcontext": lambda m: m.part.of(dcontext),
        "dlse": lambda m: m.part.of(dlse),
        "outputs": lambda _: outputs,
    }
    return Model(problem, _STEPS | own).by(pipeline_of(problem), "forward", "backward")


def _weights(model: Model) -> Array:
    lse = np.where(np.isneginf(model["lse"]), np.inf, model["lse"])  # without keys, weights are 0
    return np.asarray(np.exp(model["again"]["scores"] - lse))


def _delta(model: Model) -> Array:
    own = np.vecdot(model["dcontext"], model["context"])[..., None]
    return np.asarray(own - model["dlse"])


def _draw(model: Model) -> Array:
    cap = model["backward"].softcap
    slope = 1.0 if cap is None else 1 - (model["again"]["capped"] / cap) ** 2
    return np.asarray(model["dscores"] * slope)


def _summed(name: str, of: str) -> Step:
    """Return the step that sums over the query heads of a key head, and over batch entries."""

    def step(model: Model) -> Array:
        batch, heads, *rest = (rows := model[name]).shape
        made = model["gathered"](rows.reshape(batch, heads // model.share, model.share, *rest))
        shared = len(getattr(model.problem, of)) == 1
        return np.asarray(made.sum(axis=0, keepdims=True) if shared else made)

    return step


def _dquery(model: Model) -> Array:
    rows, problem = model["dquery_operand"], model.problem
    if problem.score_weight is not None:
        rows = rows @ np.asarray(problem.score_weight, rows.dtype).T
    rows = _before_product(model, "query", rows)
    # All batch entries may share one query.
    shared = problem.query.strides[0] == 0
    return rows.sum(axis=0, keepdims=True) if shared and len(rows) > 1 else rows


def _before_product(model: Model, name: str, rows: Array) -> Array:
    """Return the gradient of an input, from the gradient of its rotated or normalised rows."""
    run, rope = model.run, model["backward"].rope
    if model.problem.score == "cosine":
        plain = run.pipe.but(score="dot", score_weight=None)
        given = Run(plain, run.part, run.precision, None).operand(name)
        length = np.sqrt(np.vecdot(given, given))[..., None]
        unit = given / np.where(length == 0, 1, length)
        along = np.vecdot(unit, rows)[..., None]
        rows = (rows - unit * along) / np.where(length == 0, np.inf, length)
    if rope is not None:
        angles = run.positions(name)[..., None] * rope.of_width(rows.shape[-1])
        rows = turned(rows, model["back"] * angles.astype(rows.dtype), rope.pairing)
    return rows


def _dbias(model: Model) -> Array:
    shape, made = np.asarray(model.problem.bias).shape, model["dscores"]
    axes = tuple(n for n, size in enumerate(shape) if size == 1 < made.shape[n])
    return np.asarray(made.sum(axis=axes, keepdims=True) if axes else made)


def _sink_terms(model: Model) -> Array:
    sinks = np.asarray(model.problem.sinks).reshape(1, -1, 1, 1)
    return np.asarray(-np.exp(sinks - model["lse"]) * model["delta"])


_STEPS: dict[str, Step] = {
    "made": lambda m: evaluate(m["forward"], m.part, m.precision),
    "again": lambda m: evaluate(m["backward"], m.part, m.precision),
    "query": lambda m: m.run.operand("query"),
    "key": lambda m: m.run.operand("key"),
    "value": lambda m: m.run.operand("value"),
    "lse": lambda m: m["made"]["lse"],
    "context": lambda m: m["made"]["context"],
    "weights": _weights,
    "dweights": lambda m: together(m["dcontext"], m["value"].mT),
    "delta": _delta,
    "dscores": lambda m: m["weights"] * (m["dweights"] - m["delta"]),
    "draw": _draw,
    "factor": lambda m: m["weights"],
    "times": lambda _: together,
    "back": lambda _: -1,
    "gathered": lambda _: lambda rows: rows.sum(axis=2),
    "dquery_operand": lambda m: m.scaled(m["times"](m["draw"], m["key"])),
    "dkey_heads": lambda m: m.scaled(m["times"](m["draw"].mT, m["query"])),
    "dkey_operand": _summed("dkey_heads", "key"),
    "dvalue_heads": lambda m: m["times"](m["factor"].mT, m["dcontext"]),
    "dvalue_operand": _summed("dvalue_heads", "value"),
    "dquery": _dquery,
    "dkey": lambda m: _before_product(m, "key", m["dkey_operand"]),
    "dvalue": lambda m: m["dvalue_operand"],
    "dbias": _dbias,
    "sink_terms": _sink_terms,
    "dsinks": lambda m: m["sink_terms"].sum(axis=(0, 2), keepdims=True),
}
