"""Changes of one stage of the pipeline, of which the rows of the table are made.

A change takes a pipeline and parameters, and returns another pipeline. Where the mistake makes no
sense for the pipeline, `require` and `given` end the change, and the search passes over its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.formats import Array, Bools
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.run import Outputs, Run

    Softmax = Callable[[Run, Array, Array, Array], tuple[Array, Array]]

__all__ = [
    "DoesNotApplyError",
    "after",
    "altered",
    "given",
    "require",
    "ruled",
    "softmaxed",
    "without",
    "written",
]

T = TypeVar("T")


class DoesNotApplyError(Exception):
    """A mistake makes no sense for a pipeline."""


def require(*conditions: object) -> None:
    """Go on if all conditions are true."""
    if not all(conditions):
        raise DoesNotApplyError


def given(value: T | None) -> T:
    """Return the value; go on only if there is one."""
    if value is None:
        raise DoesNotApplyError
    return value


def altered(pipe: Pipeline, stage: str, make: Callable[[Any], Any]) -> Pipeline:
    """Change a stage that the pipeline has, and require that it becomes another one."""
    own = given(getattr(pipe, stage))
    made = given(make(own))
    require(not np.array_equal(made, own) if isinstance(made, np.ndarray) else made != own)
    return pipe.but(**{stage: made})


def without(pipe: Pipeline, name: str) -> Pipeline:
    """Leave a rule or a stage out."""
    if name in pipe.rules:
        return pipe.with_rule(name, None)
    require(getattr(pipe, name, None) is not None)
    return pipe.but(**{name: None})


def ruled(pipe: Pipeline, name: str, seen: Callable[[Run, Bools], Bools]) -> Pipeline:
    """Replace a rule by one made of it and of the indices."""
    own = given(pipe.rules.get(name))
    return pipe.with_rule(name, lambda run: seen(run, run.called(own)))


def softmaxed(pipe: Pipeline, change: Softmax) -> Pipeline:
    """Replace weights and lse; the change gets the scores, the right weights and their lse."""
    own = pipe.softmax
    return pipe.but(softmax=lambda run, scores: change(run, scores, *own(run, scores)))


def after(pipe: Pipeline, change: Callable[[Array], Array]) -> Pipeline:
    """Change the weights before they meet the values."""
    return pipe.then("after", lambda _, weights: change(weights))


def written(
    pipe: Pipeline, name: str, make: Callable[[Run, Outputs], Array], stage: str = "finish"
) -> Pipeline:
    """Replace an output, before its projection or behind it."""

    def finish(run: Run, made: Outputs) -> Outputs:
        return {**made, name: make(run, made)} if name in made else made

    return pipe.then(stage, finish)
