"""Rows and columns of nothing but zeros, as if no block of the kernel had written them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted, first_few
from attncli.referee import topics
from attncli.referee.catalogue.helpers import at_the_end
from attncli.referee.convention import Apply, Convention
from attncli.referee.fitted.found_weights import by_part
from attncli.referee.report import Cause
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from attncli.referee.case import Case
    from attncli.referee.question import Question
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["nan_rows_told", "rows_of_nan", "rows_of_nothing", "unwritten"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_OUTPUTS = ("context", "weights")
_LINES = {
    -1: ("row", "write every block of queries, the last one too where it is not full"),
    -2: ("column", "write the whole width, the last block of it too where it is not full"),
}


def unwritten(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that some rows were not written, or else some columns."""
    if not all(case.comparable for case in cases):
        return None
    return _told(cases, axis=-1) or _told(cases, axis=-2)


def _told(cases: Sequence[Case], axis: int) -> Convention | None:
    """Return the convention of the rows (−1) or columns (−2) that are empty along an axis."""
    empty = {case.recipe.part: _empty(case, axis) for case in cases}
    masks = [mask for each in empty.values() for mask in each.values()]
    count = sum(int(np.count_nonzero(mask)) for mask in masks)
    if count == 0:
        return None
    of = sum(mask.size for mask in masks)
    before_projection = cases[0].recipe.problem.output is None
    apply = by_part(empty, partial(_emptied, before_projection=before_projection))
    heads = _whole_heads(masks) if axis == -1 and _have_all_heads(cases) else ()
    if heads:
        return _of_heads(heads, apply)
    # Of slices the count says nothing of the file.
    return _convention(axis, count, of if cases[0].whole else None, apply)


def _have_all_heads(cases: Sequence[Case]) -> bool:
    return all(case.recipe.part[1] is None for case in cases)


def _whole_heads(masks: Sequence[Bools]) -> tuple[int, ...]:
    """Return the heads that are empty, if nothing else is, and not all of them are."""
    found = {tuple(np.flatnonzero(mask.any(axis=(0, 2, 3))).tolist()) for mask in masks}
    heads = found.pop()
    whole = not found and all(mask[:, list(heads)].all() for mask in masks)
    return heads if whole and len(heads) < masks[0].shape[1] else ()


def _of_heads(heads: tuple[int, ...], apply: Apply) -> Convention:
    one = len(heads) == 1
    return Convention(
        "heads_not_written",
        f"{'head' if one else 'heads'} {first_few([str(head) for head in heads])} "
        f"{'is' if one else 'are'} 0, as if nothing had been written, and the others are right",
        apply,
        topic=topics.UNWRITTEN,
        fix="write all heads; if several devices have some each, gather them, or add up what each "
        "of them projects",
        shows="more than one head",
    )


def _convention(axis: int, count: int, of: int | None, apply: Apply) -> Convention:
    noun, fix = _LINES[axis]
    which = f"some {noun}s are" if of is None else _so_many(count, of, noun)
    return Convention(
        f"{noun}s_not_written",
        f"{which} 0, as if nothing had been written, and the others are right",
        apply,
        topic=topics.UNWRITTEN,
        fix=fix,
        shows="other numbers of queries" if noun == "row" else "other widths",
    )


def _so_many(count: int, of: int, noun: str) -> str:
    return f"{count:,} of {counted(of, noun)} {'is' if count == 1 else 'are'}"


def rows_of_nothing(question: Question) -> Cause | None:
    """Return the explanation that all wrong numbers of a problem stand in rows of zeros.

    None where something else is wrong, too.

    Parameters
    ----------
    question : Question
        Of any size: only the files and the answers are looked at.
    """
    found = _rows(question, lambda file: file == 0)
    if found is None:
        return None
    heads = _whole_heads([empty[..., None] for empty in found])
    if heads:
        return _cause(question, _of_heads(heads, _not_again))
    return _cause(question, _convention(-1, *_counts(found), _not_again))


def rows_of_nan(question: Question) -> Cause | None:
    """Return the explanation that all wrong numbers of a problem stand in rows of NaN.

    None where something else is wrong, too.

    Parameters
    ----------
    question : Question
    """
    found = _rows(question, np.isnan)
    if found is None:
        return None
    return _cause(question, nan_rows_told(*_counts(found), alone=True))


def nan_rows_told(count: int, of: int, *, alone: bool = False) -> Convention:
    """Return the convention that so many rows are NaN, perhaps beside another mistake."""
    words = f"{_so_many(count, of, 'row')} NaN"
    return Convention(
        "rows_of_nan",
        f"{words}, and the others are right" if alone else words,
        _not_again,
        topic=topics.UNWRITTEN,
        fix="look for what these rows divide or take: 0 by 0, a difference of infinities, memory "
        "that nothing was written to",
        shows="these rows",
    )


def _counts(rows: Sequence[Bools]) -> tuple[int, int]:
    """Return how many rows are empty, and of how many."""
    return sum(int(np.count_nonzero(each)) for each in rows), sum(each.size for each in rows)


def _rows(question: Question, is_empty: Callable[[Array], Bools]) -> list[Bools] | None:
    """Return which rows (B, H, L) of each output are empty and should not be.

    None if more than that is wrong.
    """
    shaped = question.shaped
    marked = {name: question.outputs[name].wrong for name in shaped}
    wrong = {name: each for name, each in marked.items() if each is not None and each.any()}
    if len(shaped) < len(question.outputs) or not wrong or not set(wrong) <= set(_OUTPUTS):
        return None
    found, widest = [], 0
    for name, places in wrong.items():
        answer = canonical(question.problem, name, question.outputs[name].answer)
        empty = is_empty(shaped[name]).all(axis=-1) & (answer != 0).any(axis=-1)
        if (places & ~empty[..., None]).any():
            return None
        found.append(empty)
        widest = max(widest, places.shape[-1])
    # One number may be 0 by chance.
    return found if widest > 1 or _counts(found)[0] > 1 else None


def _cause(question: Question, told: Convention) -> Cause:
    return Cause(conventions=(told,), outputs=tuple(question.outputs), error=0.0)


def _not_again(_: Recipe) -> None:
    """Compute nothing again: the rows were looked at in the files."""


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


def _emptied(recipe: Recipe, empty: Mapping[str, Bools], *, before_projection: bool) -> Recipe:
    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        return {**outputs, **{n: np.where(rows, 0, outputs[n]) for n, rows in empty.items()}}

    return at_the_end(recipe, finish, before_projection=before_projection)
