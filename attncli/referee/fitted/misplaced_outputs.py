"""Heads, batch entries and rows of the output in the places of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import at_the_end
from attncli.referee.convention import Convention
from attncli.referee.fitted.places import Indices, Places, judged, told
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["misplaced_columns", "misplaced_outputs", "misplaced_rows"]

Array = npt.NDArray[Any]
# Of heads of all batch entries, of rows, of numbers of each that are compared, and of columns.
_MOST_HEADS, _MOST_ROWS, _MOST_NUMBERS = 128, 4096, 64
_MOST_COLUMNS = 1024


def misplaced_outputs(case: Case) -> Convention | None:
    """Return the convention that heads or batch entries of the output stand in others' places.

    Parameters
    ----------
    case : Case
        With all batch entries and heads.

    Returns
    -------
    Convention or None
        None where they stand in their own, or any is none of the answer's.
    """
    name = judged(case)
    if name is None:
        return None
    file, right = case.canonical(name), case.right[name]
    batch, heads = right.shape[:2]
    if batch * heads > _MOST_HEADS or file.shape != right.shape:
        return None
    places = _nearest(file, right, case.recipe.resolution)
    if places is None:
        return None
    words = told(places.pairs(Places(*np.indices((batch, heads)))), "is")
    if not words:
        return None

    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        return {name: array[places.batch, places.head] for name, array in outputs.items()}

    return Convention(
        "outputs_misplaced",
        "the numbers are right, but heads or batch entries stand in the places of others: in the "
        f"file {words} of the answer",
        lambda recipe: replace(recipe, finish=(*recipe.finish, finish)),
        topic=topics.HEADS,
        fix="write each head of each batch entry in its own place",
        shows="more than one batch entry or head",
        needs=frozenset({"batch", "heads"}),
        late=True,
    )


def _nearest(file: Array, right: Array, error: float) -> Places | None:
    """Return which of the answer's slices each slice of a file is."""
    batch, heads = right.shape[:2]
    files, answers = (array.reshape(batch * heads, -1) for array in (file, right))
    step = max(1, files.shape[1] // _MOST_NUMBERS)
    some, others = files[:, ::step], answers[:, ::step]
    with np.errstate(invalid="ignore"):
        apart = np.abs(some[:, None] - others[None]).max(axis=-1)
    apart[np.isnan(apart)] = np.inf
    nearest = apart.argmin(axis=1)
    if (apart.min(axis=1) > error).any():
        return None
    one, other = np.unravel_index(nearest.reshape(batch, heads), (batch, heads))
    return Places(one, other)


def misplaced_rows(case: Case) -> Convention | None:
    """Return the convention that rows of the output stand in the places of others.

    Parameters
    ----------
    case : Case
        With all queries.

    Returns
    -------
    Convention or None
        None where they stand in their own, or any is none of the answer's, or heads differ.
    """
    names = [name for name in ("weights", "context", "lse") if name in case.files]
    if not names or not case.comparable or not 1 < case.right[names[0]].shape[2] <= _MOST_ROWS:
        return None
    file, right = case.canonical(names[0]), case.right[names[0]]
    if file.shape != right.shape:
        return None
    # A row of all heads: they must have moved together.
    rows, answers = (
        array.transpose(2, 0, 1, 3).reshape(array.shape[2], -1) for array in (file, right)
    )
    places = _nearest_rows(rows, answers, case.recipe.resolution)
    if places is None or (places == np.arange(len(places))).all():
        return None

    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        return {name: array[:, :, places] for name, array in outputs.items()}

    return Convention(
        "rows_misplaced",
        "the numbers are right, but rows stand in the places of others: "
        f"{_moved(places, 'row', 'query')}",
        lambda recipe: replace(recipe, behind=(*recipe.behind, finish)),
        topic=topics.AXES,
        fix="write the row of each query in its own place",
        shows="more than one query",
        needs=frozenset({"rows"}),
        late=True,
    )


def misplaced_columns(case: Case) -> Convention | None:
    """Return the convention that columns of the output stand in the places of others.

    Parameters
    ----------
    case : Case

    Returns
    -------
    Convention or None
        None where they stand in their own, or any is none of the answer's, or heads differ.
    """
    name = next((name for name in ("context", "weights") if name in case.files), None)
    if name is None or not case.comparable or case.right[name].shape[3] > _MOST_COLUMNS:
        return None
    file, right = case.canonical(name), case.right[name]
    if file.shape != right.shape:
        return None
    columns, answers = (
        array.transpose(3, 0, 1, 2).reshape(array.shape[3], -1) for array in (file, right)
    )
    places = _nearest_rows(columns, answers, case.recipe.resolution)
    if places is None or (places == np.arange(len(places))).all():
        return None
    before_projection = case.recipe.problem.output is None

    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        return {**outputs, name: outputs[name][..., places]}

    noun = "key" if name == "weights" else "column"
    return Convention(
        "columns_misplaced",
        "the numbers are right, but columns stand in the places of others: "
        f"{_moved(places, 'column', noun)}",
        lambda recipe: at_the_end(recipe, finish, before_projection=before_projection),
        topic=topics.AXES,
        fix="write each column in its own place",
        shows="more than one column",
    )


def _nearest_rows(rows: Array, answers: Array, error: float) -> Indices | None:
    """Return which row of the answer each row is; its own where that comes near enough."""
    step = max(1, rows.shape[1] // _MOST_NUMBERS)
    some, others = rows[:, ::step], answers[:, ::step]
    places = np.arange(len(rows))
    with np.errstate(invalid="ignore"):
        for row in np.flatnonzero(~(np.abs(some - others).max(axis=1) <= error)):
            apart = np.abs(others - some[row]).max(axis=1)
            places[row] = int(np.argmin(apart))
            if not apart[places[row]] <= error:
                return None
    return places


def _moved(places: Indices, one: str, of: str) -> str:
    """Say where rows or columns are: all so many places farther, turned round, or one by one.

    Parameters
    ----------
    places : ndarray of int
    one, of : str
        What they are called, and what there is one for each.
    """
    if len(places) > 2 and (places == np.arange(len(places))[::-1]).all():
        return f"the first {one} is the last, and so on to the last, which is the first"
    shifts = np.unique((places - np.arange(len(places))) % len(places))
    if len(shifts) == 1:
        by = int(shifts[0])
        by = by - len(places) if 2 * by > len(places) else by
        side = "after" if by > 0 else "before"
        return f"each is that of the {of} {abs(by)} {side} it, the ends joined"
    moved = np.flatnonzero(places != np.arange(len(places)))
    pairs = ((f"{one} {i}", f"{one} {places[i]}") for i in moved)
    return f"in the file {told(pairs, 'is')} of the answer"
