"""Where conventions are tried: a problem, or a slice of it, beside what the files hold of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee.evaluation import Stages, evaluate
from attncli.referee.recipe import Outputs, Recipe, recipe_of
from attncli.referee.verdict import Errors, canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem

__all__ = ["Case", "is_evaluable", "widened"]

Array = npt.NDArray[Any]

# Larger than this a slice is not evaluated at all.
_MOST_CELLS = 2**21
# Products of embeddings and weights that take some hundredths of a second.
_MOST_PROJECTED = 2**29


@dataclass(frozen=True, eq=False)
class Case:
    """The right recipe of a problem or of a slice, and what the files hold of it.

    Attributes
    ----------
    recipe : Recipe
    files : mapping of str to ndarray
        In the axes of the user where the case is the whole problem, else (B, H, L, ·).
    right : dict of str to ndarray
        What `evaluate` gives for the recipe.
    whole : bool
    evaluable : bool
        Small enough to be computed again for each convention.
    stages : Stages
    errors, right_shapes : dict
        All shared by all recipes tried on it: the errors beside the right answer, and, of a whole
        problem, whether a way of writing makes the shapes of the files of those of the outputs.
    place : str
        Which part of the problem it is; empty for all of it.
    deadline : float
        When the search ends, on the clock of `time.monotonic`.
    """

    recipe: Recipe
    files: Mapping[str, Array]
    right: Outputs
    whole: bool
    evaluable: bool = True
    stages: Stages = field(default_factory=Stages, repr=False)
    errors: dict[str, Errors | None] = field(default_factory=dict, repr=False)
    right_shapes: dict[object, bool] = field(default_factory=dict, repr=False)
    place: str = ""
    deadline: float = math.inf

    @property
    def projectable(self) -> bool:
        """Whether query, key and value can quickly be projected again."""
        problem, given = self.recipe.problem, self.recipe.projected
        if given is None:
            return False
        arrays = [problem.query, problem.key, problem.value]
        rows = max(self.recipe.whole.shape[2:]) * given["x"].shape[-1]
        widths = sum(array.shape[1] * array.shape[3] for array in arrays if array is not None)
        return bool(problem.shape[0] * rows * widths <= _MOST_PROJECTED)

    @property
    def has_numbers(self) -> bool:
        """Whether any number of its files is finite."""
        return any(np.isfinite(file).any() for file in self.files.values())

    @property
    def cells(self) -> int:
        """How many scores there are."""
        return math.prod(self.recipe.problem.shape)

    @property
    def comparable(self) -> bool:
        """Whether it can be evaluated, and its files have the shapes of the outputs."""
        return self.evaluable and all(
            self.shaped(self.recipe, self.right, name).shape == file.shape
            and bool(np.isfinite(file).any())
            for name, file in self.files.items()
        )

    def canonical(self, name: str) -> Array:
        """Return a file as (B, H, L, ·)."""
        file = self.files[name]
        return canonical(self.recipe.problem, name, file) if self.whole else file

    def row(self, b: int, i: int) -> Case:
        """Return one query of a batch entry, which is evaluable even where all of them are not."""
        recipe, rows = self.recipe, (i, i + 1)
        right = recipe_of(widened(recipe.problem.select(batch=b, rows=rows)), recipe.whole)
        part = b if recipe.part[0] is None else recipe.part[0], recipe.part[1], rows
        own = replace(
            recipe, problem=right.problem, rules=right.rules, terms=right.terms, start=i, part=part
        )
        files = {name: self.canonical(name)[b : b + 1, :, i : i + 1] for name in self.files}
        return replace(
            self,
            recipe=own,
            files=files,
            right=evaluate(own),
            whole=False,
            evaluable=True,
            stages=Stages(),
            errors={},
        )

    def shaped(self, recipe: Recipe, outputs: Outputs, name: str) -> Array:
        """Return an output in the axes of the case's files."""
        return recipe.shape(recipe.problem, name, outputs[name]) if self.whole else outputs[name]


def is_evaluable(problem: Problem) -> bool:
    """Return whether a problem is small enough to be computed again for a convention."""
    return math.prod(problem.shape) <= _MOST_CELLS


def widened(problem: Problem) -> Problem:
    """Return a problem whose inputs need no widening whenever it is evaluated."""
    value = None if problem.value is None else widen(problem.value, np.float64)
    query, key = widen(problem.query, np.float64), widen(problem.key, np.float64)
    return replace(problem, query=query, key=key, value=value)
