"""Right numbers in another shape: a part of the answer, or more than it."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.referee.fits.table import at_first, found
from attncli.referee.tolerance import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline

__all__ = ["FITTINGS"]

# What few numbers have in common says nothing of the rest. The bits that it takes to tell the ends
# of a few axes.
_LEAST, _CHOICE = 4, 4.0
# Axes whose lengths may differ at once; batch entries and heads that one may be.
_MOST_AXES, _MOST_PARTS = 2, 4096


class _Cut(NamedTuple):
    """Indices of what a file and the answer have in common."""

    answer: tuple[slice | int, ...]
    file: tuple[slice | int, ...]


def other_shape(case: Case) -> Mistake | None:
    """Return the mistake that the file holds a part of the answer, or more than it."""
    if not case.whole:
        return None
    cuts: dict[str, _Cut] = {}
    words, missing = [], []
    for name, file in case.files.items():
        right = case.shaped(case.pipe, case.right, name)
        letters = _letters(case, name)[-right.ndim :]
        cut = _nearest(letters, right, file)
        if cut is None or np.unique(right[cut.answer]).size < _LEAST:
            return None
        cuts[name] = cut
        words.append(f"{_index(cut.file)} of the file is {name}{_index(cut.answer)}")
        pairs = zip(letters, cut.answer, strict=True)
        missing.append("".join(letter for letter, own in pairs if isinstance(own, int)))

    def change(pipe: Pipeline) -> Pipeline:
        before = pipe.axes

        def axes(problem: Problem, name: str, array: Array) -> Array:
            made = np.array(case.files[name], np.float64)
            made[cuts[name].file] = before(problem, name, array)[cuts[name].answer]
            return made

        return pipe.but(axes=axes)

    part = set("".join(missing)) <= set("bh") and all(missing)
    name = "one_part" if part else "other_length"
    return found(name, change, " and ".join(words), choice=_CHOICE)


def _letters(case: Case, name: str) -> str:
    layout = case.problem.layout
    if name == "context":
        return layout.axes
    return layout.weight_axes + ("s" if name == "lse" else "sk")


def _nearest(letters: str, right: Array, file: Array) -> _Cut | None:
    """Return the stretch of the answer that the file comes nearest to."""
    least, best = math.inf, None
    for cut in _cuts(letters, right.shape, file.shape):
        known, made = finite_in_both(file[cut.file], right[cut.answer])
        far = root_mean_square(known - made) if known.size else math.inf
        if far < least:
            least, best = far, cut
    return best


def _cuts(letters: str, right: tuple[int, ...], file: tuple[int, ...]) -> Iterator[_Cut]:
    """Yield what they may have in common: ends of axes, or one index of axes that are missing."""
    axes = range(len(right))
    if len(file) == len(right):
        other = [at for at in axes if right[at] != file[at]]
        if 1 <= len(other) <= _MOST_AXES:
            yield from _ends(right, file, other)
        return
    for lost in combinations(axes, max(0, len(right) - len(file))):
        rest = tuple(right[at] for at in axes if at not in lost)
        few = math.prod(right[at] for at in lost) <= _MOST_PARTS
        if rest == file and few and {letters[at] for at in lost} <= set("bhs"):
            # Of queries, the first or the last one may be all there is.
            ends = (
                range(0, right[at], max(1, (right[at] - 1) * (letters[at] == "s"))) for at in lost
            )
            for places in product(*ends):
                own: list[slice | int] = [slice(None)] * len(right)
                for at, place in zip(lost, places, strict=True):
                    own[at] = place
                yield _Cut(tuple(own), (slice(None),) * len(file))


def _ends(right: tuple[int, ...], file: tuple[int, ...], other: list[int]) -> Iterator[_Cut]:
    """Yield the stretches at either end of axes whose lengths differ."""
    for ends in product((False, True), repeat=len(other)):
        answer: list[slice | int] = [slice(None)] * len(right)
        rest: list[slice | int] = [slice(None)] * len(right)
        for at, last in zip(other, ends, strict=True):
            few, many = sorted((right[at], file[at]))
            start = many - few if last else 0
            longer = answer if right[at] == many else rest
            longer[at] = slice(start, start + few)
        yield _Cut(tuple(answer), tuple(rest))


def _index(own: tuple[slice | int, ...]) -> str:
    """Write an index as NumPy does."""
    parts = (f"{at.start}:{at.stop}" if isinstance(at, slice) else str(at) for at in own)
    return f"[{', '.join(parts)}]".replace("None:None", ":")


FITTINGS = (at_first(other_shape, "other_length"),)
