"""A file with fewer or more queries, heads or columns than the answer, and right otherwise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.replacing import replace
from attncli.referee.verdict import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["other_length"]

Array = npt.NDArray[Any]
_WORDS = {
    "b": ("batch entry", "batch entries"),
    "h": ("head", "heads"),
    "s": ("query", "queries"),
    "k": ("key", "keys"),
    "d": ("column", "columns"),
}
# Of a few axes, an end of each.
_CHOICE = 4.0
_LEAST = 4


class _Cut(NamedTuple):
    """Where a file and the answer have numbers in common: a stretch of one axis.

    Attributes
    ----------
    letter : str
        The axis.
    answer, file : tuple
        Indices of what they have in common.
    """

    letter: str
    answer: tuple[slice | int, ...]
    file: tuple[slice | int, ...]

    def words(self, shape: tuple[int, ...]) -> str:
        """Return what a file of a shape holds."""
        one, several = _WORDS[self.letter]
        for size, mine in zip(shape, self.file, strict=True):
            if isinstance(mine, slice) and mine.stop is not None:
                more = counted(size - mine.stop + mine.start, one, several)
                return f"the file has {more} more {'before' if mine.start else 'behind'} them"
        (part,) = (part for part in self.answer if part != slice(None))
        first, last = (part, part) if isinstance(part, int) else (part.start, part.stop - 1)
        there = f"{one} {first}" if first == last else f"{several} {first} to {last}"
        return f"the file holds only {there}"


def other_length(case: Case) -> Convention | None:
    """Return the convention of the stretch of the answer that comes nearest to the files."""
    if not case.whole:
        return None
    cuts: dict[str, _Cut] = {}
    words = []
    for name, file in case.files.items():
        right = case.shaped(case.recipe, case.right, name)
        letters = _letters(case, name)[-right.ndim :]
        cut = min(_cuts(letters, right.shape, file.shape), key=_distance(right, file), default=None)
        # What few or equal numbers have in common says nothing of the rest.
        if cut is None or np.unique(right[cut.answer]).size < _LEAST:
            return None
        cuts[name] = cut
        words.append(cut.words(file.shape))
    return Convention(
        name="other_length",
        topic=topics.AXES,
        meaning=f"the numbers are right, but {' and '.join(dict.fromkeys(words))}",
        fix="write the whole result, without padding; or give the inputs of this part",
        shows="any input",
        apply=lambda recipe: _cut_out(recipe, cuts, case.files),
        late=True,
        choice=_CHOICE,
        variant_of=("sinks_as_first_column", "sinks_as_last_column"),
    )


def _letters(case: Case, name: str) -> str:
    """Return the axes of an output: b, h, s for queries, k for keys, d for columns."""
    layout = case.recipe.problem.layout
    if name == "context":
        return layout.axes
    return layout.weight_axes + ("s" if name == "lse" else "sk")


def _cuts(letters: str, right: tuple[int, ...], file: tuple[int, ...]) -> Iterator[_Cut]:
    """Yield the stretches at either end of one axis, or the single queries there."""
    whole: list[slice | int] = [slice(None)] * len(right)
    for at, (letter, size) in enumerate(zip(letters, right, strict=True)):
        rest = right[:at] + right[at + 1 :]
        if letter == "s" and file == rest:
            for place in (0, size - 1):
                yield _Cut(
                    letter, (*whole[:at], place, *whole[at + 1 :]), (slice(None),) * len(file)
                )
        if len(file) != len(right) or file[:at] + file[at + 1 :] != rest or file[at] == size:
            continue
        few, many = sorted((size, file[at]))
        for start in (0, many - few):
            part = (*whole[:at], slice(start, start + few), *whole[at + 1 :])
            yield _Cut(letter, *((part, tuple(whole)) if few < size else (tuple(whole), part)))


def _distance(right: Array, file: Array) -> Callable[[_Cut], float]:
    """Return how far a file lies from the answer, by the stretch that they have in common."""

    def distance(cut: _Cut) -> float:
        found, made = finite_in_both(file[cut.file], right[cut.answer])
        return root_mean_square(found - made) if found.size else math.inf

    return distance


def _cut_out(recipe: Recipe, cuts: Mapping[str, _Cut], files: Mapping[str, Array]) -> Recipe:
    def shape(problem: Problem, name: str, array: Array) -> Array:
        made = np.array(files[name], np.float64)
        made[cuts[name].file] = before(problem, name, array)[cuts[name].answer]
        return made

    before = recipe.shape
    return replace(recipe, shape=shape)
