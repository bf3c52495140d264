"""An `Attention` as the sequence of tables that `attncli compute` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.engine import attend
from attncli.errors.names import SQUARE
from attncli.errors.text import places
from attncli.numerics.indices import EVERYTHING, Picked
from attncli.problem.layout import Layout
from attncli.summaries.averaging import average_weights
from attncli.view.sinks import SINK_NOTE, sinks_take
from attncli.view.tables import Limits, Sheet, on_one_scale, remark, sheet_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from attncli.problem.problem import Problem
    from attncli.problem.result import Attention
    from attncli.summaries.row_blocks import Given

__all__ = ["answer_parts", "average_parts", "finished_parts", "input_parts"]

Array = npt.NDArray[Any]


class _Place(NamedTuple):
    """One batch entry and one head; None where the inputs have no such axis."""

    batch: int | None
    head: int | None

    def title(self, name: str) -> str:
        return " · ".join([name, *places({"batch": self.batch, "head": self.head})])


def answer_parts(
    problem: Problem,
    answer: Attention,
    names: Sequence[str],
    limits: Limits,
    picked: Picked = EVERYTHING,
    *,
    threads: int | None,
) -> Iterator[RenderableType]:
    """Yield the tables of an answer, batch entry by batch entry and head by head.

    Parameters
    ----------
    problem : Problem
    answer : Attention
        What was computed whole; rows of other outputs are computed here, only for
        the tables.
    names : sequence of str
        The outputs to show, in this order.
    limits : Limits
    picked : Picked
        What was chosen of a larger problem, for the titles.
    threads : int or None
    """
    per_head = [name for name in names if not (name == "context" and problem.layout.packed)]
    places = _places(problem.layout.weight_axes, problem.shape[:2])

    def sheets() -> Iterator[Sheet]:
        for place in places[: limits.heads]:
            shown = _per_head(problem, answer, per_head, place, limits, threads)
            for name in per_head:
                title = _Place(*picked.place(*place)).title(name)
                title = _titled(problem, name, shown[name], title)
                sheet = _sheet(problem, name, shown[name], title)
                yield _marked(sheet, problem, place) if name == "weights" else sheet

    yield from _tables(sheets(), limits)
    if per_head:
        yield from _more(places, limits)
    if len(per_head) < len(names) and answer.context is not None:
        yield from _in_user_axes(
            problem, "context", answer.context, limits, picked, counted=not per_head
        )


def average_parts(
    problem: Problem,
    weights: Array | None,
    limits: Limits,
    picked: Picked = EVERYTHING,
    *,
    threads: int | None,
) -> Iterator[RenderableType]:
    """Yield the tables of the mean weights of all heads, batch entry by batch entry.

    Parameters
    ----------
    problem : Problem
    weights : ndarray (L, S) or (B, L, S), or None
        The mean, if it was computed whole; otherwise its rows are computed here.
    limits : Limits
    picked : Picked
        What was chosen of a larger problem, for the titles.
    threads : int or None
    """
    rows = problem.shape[2] if limits.rows is None else min(limits.rows, problem.shape[2])
    places = _places(problem.layout.weight_axes.replace("h", ""), problem.shape[:2])

    def sheets() -> Iterator[Sheet]:
        for place in places[: limits.heads]:
            if weights is None:
                part = problem.select(batch=place.batch, rows=(0, rows))
                values = average_weights(part, threads=threads)[0]
            else:
                values = weights if place.batch is None else weights[place.batch]
            batch, _ = picked.place(*place)
            title = f"{_Place(batch, None).title('weights')} · {picked.mean}"
            title = _titled(problem, "weights", values, title)
            yield _marked(_sheet(problem, "weights", values, title), problem, place, average=True)

    yield from _tables(sheets(), limits)
    yield from _more(places, limits)


def finished_parts(
    weights: Given, limits: Limits, picked: Picked = EVERYTHING, *, mean: bool
) -> Iterator[RenderableType]:
    """Yield the tables of finished weights, batch entry by batch entry and head by head.

    Parameters
    ----------
    weights : Given
    limits : Limits
    picked : Picked
        What was chosen of more weights, for the titles.
    mean : bool
        They are the mean of the heads.
    """
    places = _places(weights.axes, weights.shape[:2])

    def sheets() -> Iterator[Sheet]:
        for place in places[: limits.heads]:
            index = place.batch or 0, place.head or 0
            batch, head = picked.place(*place)
            title = _Place(batch, None if mean else head).title("weights")
            yield Sheet(
                title=f"{title} · {picked.mean}" if mean else title,
                values=weights.array[index],
                row_count=weights.shape[2],
                row_labels=weights.labels[0],
                column_labels=weights.labels[1],
                rows_are="queries",
                columns_are="keys",
                shaded=True,
                hidden=None if weights.hidden is None else weights.hidden[index],
            )

    yield from _tables(sheets(), limits)
    yield from _more(places, limits)


def input_parts(
    problem: Problem,
    names: Sequence[str],
    limits: Limits,
    picked: Picked = EVERYTHING,
) -> Iterator[RenderableType]:
    """Yield the tables of query, key and value, batch entry by batch entry and head by head.

    Parameters
    ----------
    problem : Problem
    names : sequence of str
        Those to show, in this order.
    limits : Limits
    picked : Picked
        What was chosen of a larger problem, for the titles.
    """
    for name in names:
        yield from _in_user_axes(problem, name, problem.input(name), limits, picked)


def _tables(sheets: Iterator[Sheet], limits: Limits) -> Iterator[RenderableType]:
    """Yield the tables, in whose colours the same weight is the same blue."""
    for sheet in on_one_scale(sheets, limits):
        yield from sheet_parts(sheet, limits)


def _marked(sheet: Sheet, problem: Problem, place: _Place, *, average: bool = False) -> Sheet:
    """Return the weights of a head, or of all of them, with the keys that rules hide."""
    rows, keys = sheet.values.shape
    heads = slice(None) if average else place.head or 0
    seen = problem.visible.tile(place.batch or 0, heads, (0, rows), (0, keys))
    if seen is None:
        return sheet
    by_head = seen.reshape(-1, *seen.shape[-2:])
    return sheet._replace(hidden=np.broadcast_to(~by_head.any(axis=0), sheet.values.shape))


def _titled(problem: Problem, name: str, values: Array, title: str) -> str:
    """Return the title of an output, with what is to be known about its rows."""
    noted = name == "weights" and problem.sinks is not None and sinks_take(values)
    return f"{title} · {SINK_NOTE}" if noted else title


def _in_user_axes(
    problem: Problem,
    name: str,
    array: Array,
    limits: Limits,
    picked: Picked,
    *,
    counted: bool = True,
) -> Iterator[RenderableType]:
    """Yield the tables of an array in the user's axes, where packed heads lie side by side.

    What is left out is counted unless it has been already.
    """
    axes = problem.layout.axes
    whole = Layout(axes).split(np.asarray(array), 1, name)
    places = _places(axes, (whole.shape[0], whole.shape[1]))
    for place in places[: limits.heads]:
        values = whole[place.batch or 0, place.head or 0]
        title = _Place(*picked.place(*place)).title(name)
        yield from sheet_parts(_sheet(problem, name, values, title), limits)
    if counted:
        yield from _more(places, limits)


def _more(places: list[_Place], limits: Limits) -> Iterator[RenderableType]:
    if len(places) > limits.heads:
        kinds = {
            ("heads", "--head"): len({place.head for place in places}),
            ("batch entries", "--batch"): len({place.batch for place in places}),
        }
        several = [kind for kind, count in kinds.items() if count > 1]
        named, options = (" and ".join(words) for words in zip(*several, strict=True))
        words = (
            f"… {len(places) - limits.heads} more of {len(places)} {named} "
            f"({options} {'choose' if len(several) > 1 else 'chooses'} some; --save and --format "
            "json have all)\n"
        )
        yield remark(words, limits)


def _places(axes: str, counts: tuple[int, int]) -> list[_Place]:
    batches = range(counts[0]) if "b" in axes else [None]
    heads = range(counts[1]) if "h" in axes else [None]
    return [_Place(batch, head) for batch in batches for head in heads]


def _per_head(
    problem: Problem,
    answer: Attention,
    names: Sequence[str],
    place: _Place,
    limits: Limits,
    threads: int | None,
) -> dict[str, Array]:
    """Return the rows to show of each output, (rows, columns)."""
    rows = problem.shape[2] if limits.rows is None else min(limits.rows, problem.shape[2])
    whole = {name: getattr(answer, name) for name in names}
    shown = {
        name: _matrix(problem, name, array, place)[:rows]
        for name, array in whole.items()
        if array is not None
    }
    missing = [name for name in names if name not in shown]
    if missing:
        part = problem.select(batch=place.batch, head=place.head, rows=(0, rows))
        solved = attend(part, missing, threads=threads)[0]
        shown |= {name: getattr(solved, name) for name in missing}
    return shown


def _matrix(problem: Problem, name: str, array: Array, place: _Place) -> Array:
    """Return one batch entry and head of an output in the user's axes, as (L, columns)."""
    if name == "context":
        array = problem.layout.split(array, 1, name)
        index = [place.batch or 0, place.head or 0]
    else:
        index = [at for at in (place.batch, place.head) if at is not None]
    matrix: Array = array[tuple(index)]
    return matrix[:, None] if name == "lse" else matrix


def _sheet(problem: Problem, name: str, values: Array, title: str) -> Sheet:
    over_keys, of_keys = name in SQUARE, name in ("key", "value")
    columns = problem.key_labels if over_keys else ["lse"] if name == "lse" else None
    return Sheet(
        title=title,
        values=values,
        row_count=problem.shape[3 if of_keys else 2],
        row_labels=problem.key_labels if of_keys else problem.query_labels,
        column_labels=columns,
        rows_are="keys" if of_keys else "queries",
        columns_are="keys" if over_keys else "columns",
        shaded=name == "weights",
    )
