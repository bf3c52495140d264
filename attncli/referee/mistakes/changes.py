"""Changes of one stage of the pipeline, of which the rows of the table are made.

A change takes a pipeline and parameters, and returns another pipeline. Where the mistake makes no
sense for the pipeline, `require` and `given` end the change, and the search passes over its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.formats import Array
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.run import Outputs, Run

__all__ = [
    "DoesNotApplyError",
    "after",
    "altered",
    "given",
    "negated",
    "require",
    "softmaxed",
    "where",
    "without",
    "without_rule",
    "written",
]

T = TypeVar("T")


class DoesNotApplyError(Exception):
    """A mistake makes no sense for a pipeline."""


def require(*conditions: object) -> None:
    """Go on where all conditions are true."""
    if not all(conditions):
        raise DoesNotApplyError


def given(value: T | None) -> T:
    """Return what the pipeline has; go on only where it has it."""
    if value is None:
        raise DoesNotApplyError
    return value


def where(
    pipe: Pipeline, sense: Callable[[Pipeline], object], change: Callable[..., Pipeline], *more: Any
) -> Pipeline:
    """Make a change where something is true of the pipeline."""
    require(sense(pipe))
    return change(pipe, *more)


def altered(pipe: Pipeline, stage: str, make: Callable[[Any], Any]) -> Pipeline:
    """Make a stage of what it was, where the pipeline has it; it has to become another one."""
    own = given(getattr(pipe, stage))
    made = given(make(own))
    require(not (isinstance(made, np.ndarray) and np.array_equal(made, own)))
    return pipe.but(**{stage: made})


def without(pipe: Pipeline, stage: str) -> Pipeline:
    """Leave a stage out."""
    require(getattr(pipe, stage) is not None)
    return pipe.but(**{stage: None})


def without_rule(pipe: Pipeline, name: str) -> Pipeline:
    """Leave a rule out."""
    require(name in pipe.rules)
    return pipe.with_rule(name, None)


def negated(pipe: Pipeline, name: str) -> Pipeline:
    """Take a rule for its opposite."""
    own = given(pipe.rules.get(name))
    return pipe.with_rule(name, lambda run: ~run.called(own))


def softmaxed(pipe: Pipeline, softmax: Callable[[Run, Array], tuple[Array, Array]]) -> Pipeline:
    """Take another softmax: scores to weights and lse."""
    return pipe.but(softmax=softmax)


def after(pipe: Pipeline, change: Callable[[Array], Array]) -> Pipeline:
    """Change the weights before they meet the values."""
    return pipe.then("after", lambda _, weights: change(weights))


def written(pipe: Pipeline, name: str, make: Callable[[Run, Outputs], Array]) -> Pipeline:
    """Write something else for an output."""
    return pipe.then("finish", lambda run, made: {**made, name: make(run, made)})
