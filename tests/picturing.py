"""Pictures for tests, made of arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.view.pictures import picture as pictures
from attncli.view.pictures.picture import Axis, Look, Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.view.pictures.picture import Picture

__all__ = ["looking", "make_panel", "make_picture", "split"]


def make_panel(values: Any, hidden: Any = None, title: str | None = None) -> Panel:
    """Return a panel; −inf means hidden, too."""
    array = np.asarray(values, dtype=np.float64)
    unseen = np.isneginf(array) | np.broadcast_to(False if hidden is None else hidden, array.shape)
    return Panel(np.where(unseen, 0.0, array), unseen, title)


def split(values: Any, hidden: Any = None, *, names: Sequence[str] = ()) -> list[Panel]:
    """Return a panel for each leading index, with that for its title."""
    lead = values.shape[:-2]
    return [
        make_panel(
            values[index],
            hidden,
            ", ".join(f"{name} {n}" for name, n in zip(names, index, strict=True)) or None,
        )
        for index in np.ndindex(*lead)
    ]


def make_picture(
    panels: Sequence[Panel],
    *,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    shape: tuple[int, int] | None = None,
    block: tuple[int, int] = (1, 1),
    row_start: int = 0,
    column_start: int = 0,
    whole: tuple[int, int] = (0, 0),
    **others: Any,
) -> Picture:
    """Return a picture of queries and keys."""
    rows, columns = shape or panels[0].values.shape
    down, across = (labels and tuple(labels) for labels in (query_labels, key_labels))
    group = others.pop("group", None)
    axes = (
        Axis("Queries", rows, row_start, whole[0] or rows, down, block[0]),
        Axis("Keys", columns, column_start, whole[1] or columns, across, block[1]),
    )
    return pictures.make_picture(panels, axes, Look(**others), group=group)


def looking(picture: Picture, **looks: Any) -> Picture:
    """Return a picture that looks otherwise."""
    return replace(picture, look=replace(picture.look, **looks))
