"""The axes of the answer, in which outputs of files are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from attncli.errors.names import GRADIENTS, SQUARE
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from attncli.numerics.indices import Picked
    from attncli.problem.problem import Problem

__all__ = ["AnswerAxes"]

Array = npt.NDArray[Any]


class AnswerAxes(NamedTuple):
    """What brings an output of a file into the axes of the answer."""

    problem: Problem  # the one that is judged
    whole: Problem  # with all batch entries and heads; the same one where none was picked
    picked: Picked  # which of them are judged
    averaged: bool  # the weights are the mean of the heads

    def of(self, name: str, values: Array, *, is_table: bool) -> Array:
        """Return an output in the axes of the answer, as far as its file is of that.

        A table has no room for axes of length 1, a program may keep those from which it picked,
        and a file of the whole problem holds what is picked of it.
        """
        is_part = self.whole is not self.problem
        right, every = (self._shapes(one)[name] for one in (self.problem, self.whole))
        if is_part and every != right and _long(every) == _long(values.shape) != _long(right):
            values = self._part(name, values.reshape(every))
        alike = (is_table or is_part) and _long(right) == _long(values.shape)
        return values.reshape(right) if alike else values

    def _shapes(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return the shape of each output."""
        shapes = problem.output_shapes
        squares = shapes.get("mean weights" if self.averaged else "weights", ())
        context = shapes.get("context", ())
        none: dict[str, tuple[int, ...]] = dict.fromkeys(GRADIENTS, ())
        others = {"context": context, "lse": shapes["lse"], **none, **problem.gradient_shapes}
        return dict.fromkeys(SQUARE, squares) | others

    def _part(self, name: str, values: Array) -> Array:
        """Return what is picked of an output of the whole problem."""
        every = canonical(self.whole, name, values)
        index = tuple(
            slice(None) if one is None or count == 1 else slice(one, one + 1)
            for one, count in zip(self.picked.place(None, None), every.shape, strict=False)
        )
        part = every[index]
        return self.problem.layout.join(part) if name == "context" else part


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)
