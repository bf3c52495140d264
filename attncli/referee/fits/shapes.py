"""Find files that hold a part of the answer, or more, or rows and columns of zeros or NaN."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors.text import counted, first_few
from attncli.referee.fits.table import Fitting, at_first, found
from attncli.referee.tolerance import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.run import Outputs, Part, Run

# The fewest numbers that file and answer must share; the bits that were free in choosing a part.
_LEAST, _CHOICE = 4, 4.0
# The most axes that may differ in length; the most indices tried for missing axes.
_MOST_AXES, _MOST_PARTS = 2, 4096


class _Cut(NamedTuple):
    """The indices of the shared part, in the answer and in the file."""

    answer: tuple[slice | int, ...]
    file: tuple[slice | int, ...]


def other_shape(case: Case) -> Mistake | None:
    """Find the part that a file of another shape shares with the answer."""
    if not case.whole:
        return None
    cuts: dict[str, _Cut] = {}
    words, missing = [], []
    for name, file in case.files.items():
        right = case.answers[name]
        layout = case.problem.layout
        rows = layout.weight_axes + ("s" if name == "lse" else "sk")
        letters = (layout.axes if name == "context" else rows)[-right.ndim :]
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


def _nearest(letters: str, right: Array, file: Array) -> _Cut | None:
    least, best = math.inf, None
    for cut in _cuts(letters, right.shape, file.shape):
        known, made = finite_in_both(file[cut.file], right[cut.answer])
        far = root_mean_square(known - made) if known.size else math.inf
        if far < least:
            least, best = far, cut
    return best


def _cuts(letters: str, right: tuple[int, ...], file: tuple[int, ...]) -> Iterator[_Cut]:
    """Yield the parts that both may share: ends of axes, or one index of missing axes."""
    axes = range(len(right))
    if len(file) == len(right):
        if 1 <= sum(right[at] != file[at] for at in axes) <= _MOST_AXES:
            yield from _ends(right, file)
        return
    for lost in combinations(axes, max(0, len(right) - len(file))):
        rest = tuple(right[at] for at in axes if at not in lost)
        few = math.prod(right[at] for at in lost) <= _MOST_PARTS
        if rest == file and few and {letters[at] for at in lost} <= set("bhs"):
            # If the axis of queries is missing, only the first and the last query are tried.
            steps = (max(1, right[at] - 1) if letters[at] == "s" else 1 for at in lost)
            some = (range(0, right[at], step) for at, step in zip(lost, steps, strict=True))
            for places in product(*some):
                own: dict[int, Any] = dict(zip(lost, places, strict=True))
                answer = tuple(own.get(at, slice(None)) for at in axes)
                yield _Cut(answer, (slice(None),) * len(file))


def _ends(right: tuple[int, ...], file: tuple[int, ...]) -> Iterator[_Cut]:
    def part(length: int, other: int, last: bool) -> slice:  # noqa: FBT001
        start = length - other if last else 0
        return slice(start, start + other) if length > other else slice(None)

    for ends in product((False, True), repeat=len(right)):
        yield _Cut(tuple(map(part, right, file, ends)), tuple(map(part, file, right, ends)))


def _index(own: tuple[slice | int, ...]) -> str:
    parts = (f"{at.start}:{at.stop}" if isinstance(at, slice) else str(at) for at in own)
    return f"[{', '.join(parts)}]".replace("None:None", ":")


# Rows and columns that are all 0 or NaN, as if no block had written them.


def unwritten(cases: Sequence[Case]) -> Mistake | None:
    """Find rows of zeros, or else columns of zeros."""
    for axis, noun in ((-1, "row"), (-2, "column")):
        empty = {case.part: _empty(case, axis) for case in cases if case.question.comparable}
        masks = [mask for each in empty.values() for mask in each.values()]
        if any(mask.any() for mask in masks):
            return _unwritten(noun, masks, empty)
    return None


def _empty(case: Case, axis: int) -> dict[str, Bools]:
    """Return which rows (B, H, L, 1) or columns (B, H, 1, ·) are 0, but should not be."""
    lines = {}
    # Columns of weights are keys: keys without weight are lost, not unwritten.
    for name in ("context", "weights") if axis == -1 else ("context",):
        if name in case.files:
            file, right = case.canonical(name), case.right[name]
            if file.shape == right.shape and (axis == -1 or file.shape[axis] > 1):
                empty: Bools = (file == 0).all(axis, keepdims=True)
                lines[name] = empty & (right != 0).any(axis, keepdims=True)
    return lines


def _unwritten(
    noun: str, masks: Sequence[Bools], empty: Mapping[Part, Mapping[str, Bools]]
) -> Mistake:
    def emptied(run: Run, outputs: Outputs) -> Outputs:
        own = empty.get(run.part, {})
        return outputs | {n: np.where(lines, 0, outputs[n]) for n, lines in own.items()}

    def change(pipe: Pipeline) -> Pipeline:
        return pipe.then("finish" if pipe.output is None else "behind", emptied)

    heads = [tuple(np.flatnonzero(mask.any(axis=(0, 2, 3))).tolist()) for mask in masks]
    whole = all(mask[:, list(own)].all() for mask, own in zip(masks, heads, strict=True))
    if noun == "row" and whole and len({*heads}) == 1 and len(heads[0]) < masks[0].shape[1]:
        noun = "head" if len(heads[0]) == 1 else "heads"
        return found("heads_not_written", change, f"{noun} {first_few([*map(str, heads[0])])}")
    return found(f"{noun}s_not_written", change, _so_many(masks, noun))


def _so_many(masks: Iterable[Bools], noun: str) -> str:
    every = np.concatenate([mask.ravel() for mask in masks])
    return f"{np.count_nonzero(every):,} of {counted(every.size, noun)}"


def nan_rows_told(rows: Iterable[Bools], *, alone: bool) -> Mistake:
    """Return the mistake for rows of NaN; ``alone``: all other rows are right."""
    rest = ", and the others are right" if alone else ""
    return found("rows_of_nan", lambda _: None, _so_many(rows, "row"), rest)


FITTINGS = (
    at_first(other_shape, "other_length"),
    Fitting(unwritten, of_part=True),
)
