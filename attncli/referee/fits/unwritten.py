"""Rows and columns of nothing but zeros, or of NaN, as if no block had written them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import counted, first_few
from attncli.referee.fits.table import Fitting, found

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from attncli.referee.formats import Bools
    from attncli.referee.mistakes.table import Change, Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.run import Outputs, Run

__all__ = ["FITTINGS", "nan_rows_told"]

_OUTPUTS = ("context", "weights")


def unwritten(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that some rows were not written, or else some columns; of any size."""
    if not cases[0].question.comparable:
        return None
    return _empty_lines(cases, -1) or _empty_lines(cases, -2)


def _empty_lines(cases: Sequence[Case], axis: int) -> Mistake | None:
    """Return the mistake of the rows (−1) or columns (−2) that are empty along an axis."""
    empty = {case.part: _empty(case, axis) for case in cases}
    masks = [mask for each in empty.values() for mask in each.values()]
    if not any(mask.any() for mask in masks):
        return None

    def emptied(run: Run, outputs: Outputs) -> Outputs:
        own = empty.get(run.part, {})
        return outputs | {n: np.where(lines, 0, outputs[n]) for n, lines in own.items()}

    def change(pipe: Pipeline) -> Pipeline:
        return pipe.then("finish" if pipe.output is None else "behind", emptied)

    return _told("row" if axis == -1 else "column", masks, change)


def _empty(case: Case, axis: int) -> dict[str, Bools]:
    """Return which rows or columns of each output are empty and should not be.

    They are (B, H, L, 1) or (B, H, 1, ·); of one number they may be 0 by chance.
    """
    lines = {}
    # Columns of weights are keys: those without weight are lost, not unwritten.
    for name in _OUTPUTS if axis == -1 else _OUTPUTS[:1]:
        if name in case.files:
            file, right = case.canonical(name), case.right[name]
            if file.shape == right.shape and (axis == -1 or file.shape[axis] > 1):
                empty: Bools = (file == 0).all(axis, keepdims=True)
                lines[name] = empty & (right != 0).any(axis, keepdims=True)
    return lines


def _told(noun: str, masks: Sequence[Bools], change: Change) -> Mistake:
    """Return the mistake of empty lines (B, H, ·, ·): of whole heads, if nothing else is empty."""
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
    """Return the mistake that these rows are NaN, perhaps beside another one."""
    rest = ", and the others are right" if alone else ""
    return found("rows_of_nan", lambda _: None, _so_many(rows, "row"), rest)


FITTINGS = (Fitting(unwritten, of_part=True),)
