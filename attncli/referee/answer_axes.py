"""Outputs of files, brought into the axes of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attncli.errors.names import SQUARE
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from attncli.numerics.indices import Picked
    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array


class AnswerAxes(NamedTuple):
    """The judged problem, and the whole problem from which it was picked."""

    problem: Problem
    whole: Problem  # with all batch entries and heads; ``problem`` itself if none was picked
    picked: Picked  # the judged batch entries and heads
    averaged: bool  # the weights are the mean of the heads

    def of(self, name: str, values: Array, *, is_table: bool) -> Array:
        """Return an output in the axes of the answer; a table has no axes of length 1."""
        is_part = self.whole is not self.problem
        right, every = (self._shape(name, one) for one in (self.problem, self.whole))
        if is_part and every != right and _long(every) == _long(values.shape) != _long(right):
            values = self._part(name, values.reshape(every))
        alike = (is_table or is_part) and _long(right) == _long(values.shape)
        return values.reshape(right) if alike else values

    def _shape(self, name: str, problem: Problem) -> tuple[int, ...]:
        square = "mean weights" if self.averaged else "weights"
        shapes = {**problem.output_shapes, **problem.gradient_shapes}
        return shapes.get(square if name in SQUARE else name, ())

    def _part(self, name: str, values: Array) -> Array:
        """Return the picked batch entries and heads of an output of the whole problem."""
        every = canonical(self.whole, name, values)
        index = tuple(
            slice(None) if one is None or count == 1 else slice(one, one + 1)
            for one, count in zip(self.picked.place(None, None), every.shape, strict=False)
        )
        part = every[index]
        return self.problem.layout.join(part) if name == "context" else part


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)
