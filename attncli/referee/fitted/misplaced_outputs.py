"""Heads, batch entries and rows of the output in the places of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import at_the_end
from attncli.referee.convention import Convention, then
from attncli.referee.fitted.places import Indices, Places, judged, told
from attncli.referee.fitted.rank_orders import order_told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.case import Case
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["misplaced_columns", "misplaced_outputs", "misplaced_rows"]

Array = npt.NDArray[Any]
# Of heads of all batch entries, of rows, of numbers of each that are compared, and of columns.
_MOST_HEADS, _MOST_ROWS, _MOST_NUMBERS = 128, 4096, 64
_MOST_COLUMNS = 1024


def misplaced_outputs(case: Case) -> Convention | None:
    """Return the convention that heads or batch entries of the output stand in others' places."""
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
        lambda recipe: then(recipe, finish=finish),
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
    """Return the convention that rows of the output stand in the places of others."""
    found = _places_along(case, 2, ("weights", "context", "lse"), _MOST_ROWS)
    if found is None:
        return None
    _, places = found

    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        return {name: array[:, :, places] for name, array in outputs.items()}

    return Convention(
        "rows_misplaced",
        "the numbers are right, but rows stand in the places of others: "
        f"{order_told(places) or _moved(places, 'row', 'query')}",
        lambda recipe: then(recipe, behind=finish),
        topic=topics.AXES,
        fix="write the row of each query in its own place",
        shows="more than one query",
        needs=frozenset({"rows"}),
        late=True,
    )


def _places_along(
    case: Case, axis: int, names: Sequence[str], most: int
) -> tuple[str, Indices] | None:
    """Return the first of some outputs, and which places of an axis it has instead of its own.

    None where all stand in their own, where any is none of the answer's, or where there are too
    many, or one.
    """
    name = next((name for name in names if name in case.files), None)
    if name is None or not case.comparable or not 1 < case.right[name].shape[axis] <= most:
        return None
    file, right = case.canonical(name), case.right[name]
    if file.shape != right.shape:
        return None
    # Of all heads together: they must have moved alike.
    found, answers = (
        np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) for array in (file, right)
    )
    places = _nearest_rows(found, answers, case.recipe.resolution)
    if places is None or (places == np.arange(len(places))).all():
        return None
    return name, places


def misplaced_columns(case: Case) -> Convention | None:
    """Return the convention that columns of the output stand in the places of others."""
    found = _places_along(case, 3, ("context", "weights"), _MOST_COLUMNS)
    if found is None:
        return None
    name, places = found
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
