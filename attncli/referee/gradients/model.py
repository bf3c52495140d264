"""The backward pass as named steps, so that a mistake is the exchange of one of them.

    scores, lse ─▶ weights ─▶ factor ─▶ dvalue_heads ─▶ dvalue_operand ─▶ dvalue
    context ─▶ delta ┐
    dweights ────────┴▶ dscores ─▶ draw ─▶ dquery_operand ─▶ dquery
                           │          └─▶ dkey_heads ─▶ dkey_operand ─▶ dkey
                           └─▶ dbias; and delta, lse ─▶ dsinks

The forward pass is a pipeline of `attncli.referee.pipeline`. The backward pass makes the scores
again by a pipeline of its own, so that a rule can be missing there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import turned
from attncli.referee.formats import FLOAT64, Array, Precision
from attncli.referee.pipeline import WHOLE, Memory, Part, Run, evaluate, pipeline_of, together

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.pipeline import Outputs, Pipeline

__all__ = ["Given", "Model", "Step", "model_of", "summed"]

Step = Callable[["Model"], Any]
# What each step is made of; forward and backward are the two pipelines.
_MADE_OF = {
    "made": ("forward",),
    "again": ("backward",),
    "query": ("backward",),
    "key": ("backward",),
    "value": ("backward",),
    "dcontext": (),
    "lse": ("made",),
    "context": ("made",),
    "weights": ("again", "lse"),
    "dweights": ("value", "dcontext"),
    "delta": ("context", "dcontext", "weights", "dweights"),
    "dscores": ("weights", "dweights", "delta"),
    "draw": ("dscores", "again"),
    "times": (),
    "factor": ("weights",),
    "dquery_operand": ("draw", "key", "times"),
    "dkey_heads": ("draw", "query", "times"),
    "dkey_operand": ("dkey_heads",),
    "dvalue_heads": ("factor", "dcontext", "times"),
    "dvalue_operand": ("dvalue_heads",),
    "dquery": ("dquery_operand",),
    "dkey": ("dkey_operand",),
    "dvalue": ("dvalue_operand",),
    "dbias": ("dscores",),
    "dsinks": ("lse", "delta"),
}


@dataclass(frozen=True, eq=False)
class Given:
    """What a backward pass is given.

    Attributes
    ----------
    problem : Problem
        In float64.
    dcontext : ndarray (B, H, L, E) of float64
    dlse : ndarray (B, H, L) of float64, or None
    outputs : mapping of str to ndarray
        Outputs of the other implementation that are judged beside its gradients, (B, H, L, ·).
    """

    problem: Problem
    dcontext: Array
    dlse: Array | None
    outputs: Mapping[str, Array] = field(default_factory=dict)


class Model:
    """A backward pass, worked out as far as it is asked for.

    Parameters
    ----------
    given : Given
    forward, backward : Pipeline
    steps : mapping of str to callable
    precision : Precision
        Every step is stored in it.
    part : Part
        Some batch entries and queries, all heads.
    known : dict
        What is worked out already.
    """

    def __init__(
        self,
        given: Given,
        forward: Pipeline,
        backward: Pipeline,
        steps: Mapping[str, Step],
        precision: Precision = FLOAT64,
        part: Part = WHOLE,
        known: dict[str, Any] | None = None,
    ) -> None:
        self.given, self.forward, self.backward = given, forward, backward
        self.steps, self.precision, self.part = steps, precision, part
        self._known = {} if known is None else known

    def __getitem__(self, name: str) -> Any:
        """Return what a step makes."""
        if name not in self._known:
            with np.errstate(all="ignore"):
                self._known[name] = self.steps[name](self)
        return self._known[name]

    def but(self, **changes: Any) -> Model:
        """Return the same with other steps or pipelines; the rest is not worked out again."""
        forward = changes.pop("forward", self.forward)
        backward = changes.pop("backward", self.backward)
        changed = {*changes}
        changed |= {"forward"} if forward is not self.forward else set()
        changed |= {"backward"} if backward is not self.backward else set()
        for name, parts in _MADE_OF.items():  # in their order
            if not changed.isdisjoint(parts):
                changed.add(name)
        known = {name: made for name, made in self._known.items() if name not in changed}
        steps = {**self.steps, **changes}
        return Model(self.given, forward, backward, steps, self.precision, self.part, known)

    def then(self, **changes: Callable[[Model, Array], Array]) -> Model:
        """Return the same with what some steps make changed afterwards."""

        def after(name: str, change: Callable[[Model, Array], Array]) -> Step:
            step = self.steps[name]
            return lambda model: change(model, step(model))

        return self.but(**{name: after(name, change) for name, change in changes.items()})

    def stored(self, precision: Precision, part: Part = WHOLE) -> Model:
        """Return the same on a part, with every step stored in a precision."""
        return Model(self.given, self.forward, self.backward, self.steps, precision, part)

    @property
    def problem(self) -> Problem:
        """The problem, in float64."""
        return self.given.problem

    @property
    def share(self) -> int:
        """How many query heads read one key head."""
        return int(self.problem.shape[1] // self.problem.key.shape[1])

    @property
    def run(self) -> Run:
        """The pipeline of the backward pass on the part."""
        return Run(self.backward, self.part, self.precision, Memory())

    def scaled(self, array: Array) -> Array:
        """Return an array (B, H, …) times the scale, stored."""
        scale = self.backward.scale
        factor = scale if isinstance(scale, np.ndarray) else np.float64(scale)
        return self.precision.rounded(array * factor.astype(array.dtype))

    def own(self, array: Array) -> Array:
        """Return the part of an array (B, H, L, …), stored."""
        return self.precision.rounded(self.part.of(array))


def model_of(given: Given) -> Model:
    """Return the right backward pass of a problem."""
    pipe = pipeline_of(given.problem)
    return Model(given, pipe, pipe, _STEPS)


def summed(rows: Array, times: int, entries: int) -> Array:
    """Return (B, H, S, D) summed over each key head's query heads, and over shared entries."""
    batch, heads, *rest = rows.shape
    made = rows if times == 1 else rows.reshape(batch, heads // times, times, *rest).sum(axis=2)
    return made if entries == batch or entries > 1 else made.sum(axis=0, keepdims=True)


def _made(model: Model, pipe: Pipeline) -> Outputs:
    return evaluate(pipe, model.part, model.precision)


def _weights(model: Model) -> Array:
    lse = model["lse"]
    lse = np.where(np.isneginf(lse), np.inf, lse)  # of a query without keys: its weights are 0
    return model.precision.rounded(np.exp(model["again"]["scores"] - lse))


def _dweights(model: Model) -> Array:
    made = together(model["dcontext"], model["value"].swapaxes(-1, -2))
    return model.precision.rounded(made)


def _delta(model: Model) -> Array:
    delta = np.vecdot(model["dcontext"], model["context"])[..., None]
    dlse = model.given.dlse
    return np.asarray(delta if dlse is None else delta - model.part.of(dlse[..., None]))


def _dscores(model: Model) -> Array:
    return model.precision.rounded(model["weights"] * (model["dweights"] - model["delta"]))


def _draw(model: Model) -> Array:
    cap = model.backward.softcap
    if cap is None:
        return np.asarray(model["dscores"])
    return model.precision.rounded(model["dscores"] * (1 - (model["again"]["capped"] / cap) ** 2))


def _dquery_operand(model: Model) -> Array:
    return model.scaled(model["times"](model["draw"], model["key"]))


def _dkey_heads(model: Model) -> Array:
    return model.scaled(model["times"](model["draw"].swapaxes(-1, -2), model["query"]))


def _dvalue_heads(model: Model) -> Array:
    made = model["times"](model["factor"].swapaxes(-1, -2), model["dcontext"])
    return model.precision.rounded(made)


def _summed(name: str, of: str) -> Step:
    def step(model: Model) -> Array:
        entries = len(getattr(model.problem, of))
        return model.precision.rounded(summed(model[name], model.share, entries))

    return step


def _dquery(model: Model) -> Array:
    rows = model["dquery_operand"]
    if model.problem.score_weight is not None:
        rows = rows @ np.asarray(model.problem.score_weight, rows.dtype).T
    rows = _before_product(model, "query", rows)
    shared = model.problem.gradient_shapes["dquery"]
    joined = model.problem.layout.split(np.broadcast_to(0.0, shared), rows.shape[1], "query")
    return rows if len(joined) >= len(rows) else rows.sum(axis=0, keepdims=True)


def _dkey(model: Model) -> Array:
    return _before_product(model, "key", model["dkey_operand"])


def _before_product(model: Model, name: str, rows: Array) -> Array:
    """Return the gradient of an input from that of what is multiplied."""
    run = model.run
    if model.problem.score == "cosine":
        plain = Run(run.pipe.but(score="dot", score_weight=None), run.part, run.precision, None)
        given = plain.operand(name)
        length = np.sqrt(np.vecdot(given, given))[..., None]
        unit = given / np.where(length == 0, 1, length)
        along = np.vecdot(unit, rows)[..., None]
        rows = (rows - unit * along) / np.where(length == 0, np.inf, length)
    rope = model.backward.rope
    if rope is not None:
        angles = run.positions(name)[..., None] * rope.of_width(rows.shape[-1])
        rows = turned(rows, -angles.astype(rows.dtype), rope.pairing)
    return model.precision.rounded(rows)


def _dbias(model: Model) -> Array:
    shape = np.asarray(model.problem.bias).shape
    made = model["dscores"]
    axes = tuple(n for n, size in enumerate(shape) if size == 1 < made.shape[n])
    return model.precision.rounded(made.sum(axis=axes, keepdims=True) if axes else made)


def _dsinks(model: Model) -> Array:
    sinks = np.asarray(model.problem.sinks).reshape(1, -1, 1, 1)
    share = np.exp(sinks - model["lse"]) * model["delta"]
    return np.asarray(-share.sum(axis=(0, 2), keepdims=True))


_STEPS: dict[str, Step] = {
    "made": lambda model: _made(model, model.forward),
    "again": lambda model: _made(model, model.backward),
    "query": lambda model: model.run.operand("query"),
    "key": lambda model: model.run.operand("key"),
    "value": lambda model: model.run.operand("value"),
    "dcontext": lambda model: model.own(model.given.dcontext),
    "lse": lambda model: model["made"]["lse"],
    "context": lambda model: model["made"]["context"],
    "weights": _weights,
    "dweights": _dweights,
    "delta": _delta,
    "dscores": _dscores,
    "draw": _draw,
    "times": lambda _: together,
    "factor": lambda model: model["weights"],
    "dquery_operand": _dquery_operand,
    "dkey_heads": _dkey_heads,
    "dkey_operand": _summed("dkey_heads", "key"),
    "dvalue_heads": _dvalue_heads,
    "dvalue_operand": _summed("dvalue_heads", "value"),
    "dquery": _dquery,
    "dkey": _dkey,
    "dvalue": lambda model: model["dvalue_operand"],
    "dbias": _dbias,
    "dsinks": _dsinks,
}
