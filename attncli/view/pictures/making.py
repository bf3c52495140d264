"""From the maps of some heads to their picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from attncli.errors.text import label_text, places
from attncli.numerics.indices import EVERYTHING, Picked
from attncli.view.labels import shorten
from attncli.view.pictures.picture import Axis, Picture, make_picture
from attncli.view.pictures.pooling import Pooler, block_size
from attncli.view.pictures.sizes import cell_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.summaries.maps import Difference, Maps
    from attncli.view.pictures.picture import Panel

__all__ = ["Wish", "difference_picture", "picture_of"]

Span: TypeAlias = tuple[int, int]

# So many units of a weight of 1 are roundings of two right computations.
_UNITS = 4
# On a scale so many times as long, roundings are nearly white.
_WHITE = 100
_LONGEST_NAME = 20


@dataclass(frozen=True)
class Wish:
    """What a picture should show.

    Attributes
    ----------
    what : {"weights", "scores", "difference"}
    rows, columns : (int, int) or None
        From the first to the one behind the last; None for all.
    title : str or None
    vmax : float or None
        End of the colour scale.
    log : bool
        Logarithmic colour scale.
    picked : Picked
        Which of all batch entries and heads the maps are.
    dpi : float
    size : (float, float) or None
        Inches of the figure. Both say how many cells there is room for.
    columns_are : str
        Name of the horizontal axis.
    """

    what: Literal["weights", "scores", "difference"] = "weights"
    rows: Span | None = None
    columns: Span | None = None
    title: str | None = None
    vmax: float | None = None
    log: bool = False
    picked: Picked = EVERYTHING
    dpi: float = 150
    size: tuple[float, float] | None = None
    columns_are: str = "Keys"


def picture_of(maps: Maps, wish: Wish, *, scale_names: Sequence[str] | None = None) -> Picture:
    """Pool the maps while they come, some rows at a time, and put them on one colour scale.

    Of one query, the maps of several heads are one panel, whose rows are the heads.

    Parameters
    ----------
    maps : Maps
    wish : Wish
    scale_names : sequence of str, optional
        What the colours mean, and the same in fewer words.
    """
    heads = maps.counts[1]
    (queries, keys), (query_labels, key_labels) = maps.shape, maps.labels
    span, across = wish.rows or (0, queries), wish.columns or (0, keys)
    rows, remark = _axis("Queries", span, queries, query_labels), None
    together = rows.count == 1 and heads > 1
    if together:
        rows, remark = _head_axis(heads, wish.picked), _only_query(rows)
    rows, columns, group = _pooled_axes(
        rows, _axis(wish.columns_are, across, keys, key_labels), maps, wish, together=together
    )
    panels = _panels(maps, wish, (rows, columns), (span, across), together=together)
    return make_picture(
        panels,
        rows,
        columns,
        what=wish.what,
        title=wish.title,
        vmax=wish.vmax,
        log=wish.log,
        group=group,
        remarks=[remark] if remark else [],
        scale_names=scale_names,
    )


def _axis(name: str, span: Span, whole: int, labels: tuple[str, ...] | None) -> Axis:
    return Axis(name, span[1] - span[0], span[0], whole, labels and labels[slice(*span)])


def _only_query(rows: Axis) -> str | None:
    """Return which query all heads show, where there are others or it has a label."""
    if rows.note or not rows.labels:
        return rows.note
    return f"query {rows.start}, {label_text(rows.labels[0])} (one of {rows.whole})"


def _head_axis(heads: int, picked: Picked) -> Axis:
    numbers = tuple(str(picked.place(None, head)[1]) for head in range(heads))
    return Axis("Heads", heads, labels=numbers if picked.head else None)


def _pooled_axes(
    rows: Axis, columns: Axis, maps: Maps, wish: Wish, *, together: bool
) -> tuple[Axis, Axis, int | None]:
    """Return the axes with as many cells as there is room for, and how many panels are a group."""
    batches, heads = maps.counts
    group = heads if batches > 1 and heads > 1 and not together else None
    limit = cell_limit(
        (rows.count, columns.count),
        panels=batches if together else batches * heads,
        group=group,
        dpi=wish.dpi,
        size=wish.size,
    )
    down, across = (
        Axis(a.name, a.count, a.start, a.whole, a.labels, block_size(a.count, most))
        for a, most in zip((rows, columns), limit, strict=True)
    )
    return down, across, group


def _panels(
    maps: Maps, wish: Wish, axes: tuple[Axis, Axis], spans: tuple[Span, Span], *, together: bool
) -> list[Panel]:
    """Return a panel for each map, or of each batch entry where rows are heads."""
    shape, block = (axes[0].count, axes[1].count), (axes[0].block, axes[1].block)
    (start, stop), keys = spans[0], slice(*spans[1])
    signed = wish.what != "weights"
    panels = []
    for batch in range(maps.counts[0]):
        shared = Pooler(shape, block, signed=signed) if together else None
        for head in range(maps.counts[1]):
            pooler = shared or Pooler(shape, block, signed=signed)
            for at, values, hidden in maps.strips(batch, head, (start, stop)):
                row = head if together else at - start
                pooler.add(values[:, keys], hidden[:, keys], row=row)
            if shared is None:
                panels.append(pooler.panel(_title(maps, wish.picked, batch, head)))
        if shared is not None:
            panels.append(shared.panel(_title(maps, wish.picked, batch, None)))
    return panels


def _title(maps: Maps, picked: Picked, batch: int, head: int | None) -> str | None:
    """Return which map it is, where there are several."""
    numbers = zip(("batch", "head"), picked.place(batch, head), maps.counts, strict=True)
    where = {name: number for name, number, count in numbers if count > 1 and name[0] in maps.axes}
    return ", ".join(places(where)) or None


def difference_picture(maps: Difference, wish: Wish, than: str) -> Picture:
    """Return the picture of some maps minus others.

    Parameters
    ----------
    maps : Difference
    wish : Wish
    than : str
        What is subtracted, a name.
    """
    name = shorten(than, _LONGEST_NAME)
    names = f"above 0: more than in {name}", "above 0: more"
    picture = picture_of(maps, replace(wish, what="difference"), scale_names=names)
    largest, rounding = picture.largest, _UNITS * maps.eps
    if largest > rounding:
        return picture
    remark = "equal up to rounding" if largest else "no difference: all of these numbers are equal"
    picture = replace(picture, remarks=(*picture.remarks, remark))
    if wish.vmax is None and largest:
        end = _WHITE * rounding
        picture = replace(picture, vmin=-end, vmax=end)
    return picture
