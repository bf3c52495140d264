"""From the maps of some heads to their picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from attncli.errors.text import places as place_names
from attncli.errors.text import printable
from attncli.numerics.indices import EVERYTHING, Picked
from attncli.view.labels import shorten
from attncli.view.pictures.picture import Axis, Look, Picture, make_picture
from attncli.view.pictures.pooling import Pooler, block_size
from attncli.view.pictures.sizes import cell_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.summaries.maps import Difference, Maps
    from attncli.view.pictures.picture import Panel

Span: TypeAlias = tuple[int, int]

# Two right weights may differ by this many times the machine epsilon.
_UNITS = 4
# A scale that is this many times as long shows rounding errors nearly white.
_WHITE = 100
_LONGEST_NAME = 20


def picture_of(
    maps: Maps,
    look: Look,
    picked: Picked = EVERYTHING,
    progress: Callable[[int, int], None] | None = None,
) -> Picture:
    """Pool the maps while they come, some rows at a time, and put them on one colour scale.

    If only one query is drawn, its heads are the rows of one panel. `picked` gives the user's
    indices of batch entries and heads.
    """
    batches, heads, queries, keys = maps.shape
    spans = look.rows or (0, queries), look.columns or (0, keys)
    rows = _axis(maps.names[0], spans[0], queries, maps.labels[0])
    columns = _axis(maps.names[1], spans[1], keys, maps.labels[1])
    together, remarks = rows.count == 1 and heads > 1, maps.remarks
    if together:
        numbers = tuple(str(picked.place(None, head)[1]) for head in range(heads))
        if told := rows.part if rows.labels else rows.note:
            remarks = told, *remarks
        rows = Axis("Heads", heads, labels=numbers if picked.head else None)
    count = batches if together else batches * heads
    group = heads if batches > 1 and heads > 1 and not together else None
    limit = cell_limit((rows.count, columns.count), look, panels=count, group=group)
    axes = (
        replace(rows, block=block_size(rows.count, limit[0])),
        replace(columns, block=block_size(columns.count, limit[1])),
    )
    panels = _panels(maps, axes, look, spans, picked, progress, together=together)
    return make_picture(panels, axes, look, group=group, remarks=remarks)


def _axis(name: str, span: Span, whole: int, labels: tuple[str, ...] | None) -> Axis:
    return Axis(name, span[1] - span[0], span[0], whole, labels and labels[slice(*span)])


def _panels(
    maps: Maps,
    axes: tuple[Axis, Axis],
    look: Look,
    spans: tuple[Span, Span],
    picked: Picked,
    progress: Callable[[int, int], None] | None,
    *,
    together: bool,
) -> list[Panel]:
    """Return a panel for each map, or for each batch entry if rows are heads."""
    (start, stop), keys = spans[0], slice(*spans[1])
    panels, done, (batches, heads, *_) = [], 0, maps.shape
    shape, block = (axes[0].count, axes[1].count), (axes[0].block, axes[1].block)
    places = list(np.ndindex(batches, heads))
    several = heads if together else 1
    for first in range(0, len(places), several):
        pooler = Pooler(shape, block, signed=look.signed)
        for row, (batch, head) in enumerate(places[first : first + several]):
            for at, values, hidden, _ in maps.rows(batch, head, (start, stop)):
                unseen = None if hidden is None else hidden[:, keys]
                pooler.add(values[:, keys], unseen, row=row if together else at - start)
                done += len(values)
                if progress is not None:
                    progress(done, batches * heads * (stop - start))
        batch, head = places[first]
        panels.append(pooler.panel(_title(maps, picked, batch, None if together else head)))
    return panels


def _title(maps: Maps, picked: Picked, batch: int, head: int | None) -> str | None:
    numbers = zip(("batch", "head"), picked.place(batch, head), maps.shape[:2], strict=True)
    where = {name: number for name, number, count in numbers if count > 1 and name[0] in maps.axes}
    return ", ".join(place_names(where)) or None


def difference_picture(
    maps: Difference,
    look: Look,
    picked: Picked,
    than: str,
    progress: Callable[[int, int], None] | None = None,
) -> Picture:
    """Return the picture of a difference; `than` is the name of what was subtracted."""
    name = shorten(printable(than), _LONGEST_NAME)
    names = f"above 0: more than in {name}", "above 0: more"
    picture = picture_of(
        maps, replace(look, what="difference", scale_names=names), picked, progress
    )
    largest, rounding = picture.largest, _UNITS * maps.eps
    if largest > rounding:
        return picture
    remark = "equal up to rounding" if largest else "no difference: all of these numbers are equal"
    picture = replace(picture, remarks=(*picture.remarks, remark))
    if look.vmax is None and largest:
        end = _WHITE * rounding
        picture = replace(picture, vmin=-end, vmax=end)
    return picture
