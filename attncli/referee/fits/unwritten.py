"""Rows and columns of nothing but zeros, or of NaN, as if no block had written them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import counted, first_few
from attncli.referee.mistakes.table import UNWRITTEN, Change, Mistake
from attncli.referee.report import Cause
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.formats import Array, Bools
    from attncli.referee.parts import Case, Question
    from attncli.referee.pipeline import Outputs, Pipeline, Run

__all__ = ["nan_rows_told", "rows_of", "unwritten"]

_OUTPUTS = ("context", "weights")
_LINES = {
    -1: ("row", "write every block of queries, the last one too where it is not full"),
    -2: ("column", "write the whole width, the last block of it too where it is not full"),
}


def unwritten(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that some rows were not written, or else some columns."""
    if not all(case.comparable for case in cases):
        return None
    return _empty_lines(cases, -1) or _empty_lines(cases, -2)


def _empty_lines(cases: Sequence[Case], axis: int) -> Mistake | None:
    """Return the mistake of the rows (−1) or columns (−2) that are empty along an axis."""
    empty = {case.part: _empty(case, axis) for case in cases}
    masks = [mask for each in empty.values() for mask in each.values()]
    count = sum(int(np.count_nonzero(mask)) for mask in masks)
    if count == 0:
        return None

    def change(pipe: Pipeline) -> Pipeline:
        return pipe.then("finish" if pipe.output is None else "behind", emptied)

    def emptied(run: Run, outputs: Outputs) -> Outputs:
        own = empty.get(run.part, {})
        return outputs | {n: np.where(lines, 0, outputs[n]) for n, lines in own.items()}

    all_heads = all(case.part.head is None for case in cases)
    heads = _whole_heads(masks) if axis == -1 and all_heads else ()
    if heads:
        return _of_heads(heads, change)
    # Of slices the count says nothing of the file.
    of = sum(mask.size for mask in masks) if cases[0].whole else None
    return _of_lines(axis, count, of, change)


def _empty(case: Case, axis: int) -> dict[str, Bools]:
    """Return which rows or columns of each output are empty and should not be.

    They are (B, H, L, 1) or (B, H, 1, ·); of one number they may be 0 by chance.
    """
    found = {}
    # Columns of weights are keys: those without weight are lost, not unwritten.
    for name in _OUTPUTS if axis == -1 else _OUTPUTS[:1]:
        if name not in case.files:
            continue
        file, right = case.canonical(name), case.right[name]
        if file.shape == right.shape and (axis == -1 or file.shape[axis] > 1):
            empty: Bools = (file == 0).all(axis, keepdims=True)
            found[name] = empty & (right != 0).any(axis, keepdims=True)
    return found


def _whole_heads(masks: Sequence[Bools]) -> tuple[int, ...]:
    """Return the heads that are empty, if nothing else is, and not all of them are."""
    found = {tuple(np.flatnonzero(mask.any(axis=(0, 2, 3))).tolist()) for mask in masks}
    heads = found.pop()
    whole = not found and all(mask[:, list(heads)].all() for mask in masks)
    return heads if whole and len(heads) < masks[0].shape[1] else ()


def _of_heads(heads: tuple[int, ...], change: Change) -> Mistake:
    one = len(heads) == 1
    return Mistake(
        "heads_not_written",
        f"{'head' if one else 'heads'} {first_few([str(head) for head in heads])} "
        f"{'is' if one else 'are'} 0, as if nothing had been written, and the others are right",
        change,
        UNWRITTEN,
        "write all heads; if several devices have some each, gather them, or add up what each of "
        "them projects",
        "more than one head",
    )


def _of_lines(axis: int, count: int, of: int | None, change: Change) -> Mistake:
    noun, fix = _LINES[axis]
    which = f"some {noun}s are" if of is None else _so_many(count, of, noun)
    return Mistake(
        f"{noun}s_not_written",
        f"{which} 0, as if nothing had been written, and the others are right",
        change,
        UNWRITTEN,
        fix,
        "other numbers of queries" if noun == "row" else "other widths",
    )


def _so_many(count: int, of: int, noun: str) -> str:
    return f"{count:,} of {counted(of, noun)} {'is' if count == 1 else 'are'}"


def _not_again(_: Pipeline) -> None:
    """Compute nothing again: the rows were looked at in the files."""


def nan_rows_told(count: int, of: int, *, alone: bool = False) -> Mistake:
    """Return the mistake that so many rows are NaN, perhaps beside another one."""
    words = f"{_so_many(count, of, 'row')} NaN"
    return Mistake(
        "rows_of_nan",
        f"{words}, and the others are right" if alone else words,
        _not_again,
        UNWRITTEN,
        "look for what these rows divide or take: 0 by 0, a difference of infinities, memory that "
        "nothing was written to",
        "these rows",
    )


def rows_of(question: Question, what: str) -> Cause | None:
    """Return the explanation that all wrong numbers stand in rows of ``nothing`` or of ``nan``.

    None where something else is wrong, too. Of any size: only files and answers are looked at.
    """
    found = _rows(question, what)
    if found is None:
        return None
    count, of = sum(int(np.count_nonzero(each)) for each in found), sum(e.size for e in found)
    heads = _whole_heads([empty[..., None] for empty in found]) if what == "nothing" else ()
    if what == "nan":
        told = nan_rows_told(count, of, alone=True)
    else:
        told = _of_heads(heads, _not_again) if heads else _of_lines(-1, count, of, _not_again)
    return Cause(conventions=(told,), outputs=tuple(question.outputs), error=0.0)


def _rows(question: Question, what: str) -> list[Bools] | None:
    """Return which rows (B, H, L) of each output are empty and should not be.

    None if more than that is wrong.
    """
    marked = {name: question.outputs[name].wrong for name in question.shaped}
    wrong = {name: each for name, each in marked.items() if each is not None and each.any()}
    if not question.comparable or not wrong or not set(wrong) <= set(_OUTPUTS):
        return None
    found, widest = [], 0
    for name, places in wrong.items():
        file: Array = question.shaped[name]
        answer = canonical(question.problem, name, question.outputs[name].answer)
        odd = np.isnan(file) if what == "nan" else file == 0
        empty = odd.all(axis=-1) & (answer != 0).any(axis=-1)
        if (places & ~empty[..., None]).any():
            return None
        found.append(empty)
        widest = max(widest, places.shape[-1])
    # One number may be 0 by chance.
    several = widest > 1 or sum(int(np.count_nonzero(each)) for each in found) > 1
    return found if several else None
