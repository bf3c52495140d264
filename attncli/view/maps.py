"""From a problem, or from finished weights, to the picture of its maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.advice import blind_advice
from attncli.arguments import warn
from attncli.averaging import refuse_without_heads
from attncli.dtypes import BFLOAT16, widen
from attncli.engine import attend
from attncli.errors import DataError, ShapeError, UsageError
from attncli.view.figure_layout import cell_limit
from attncli.view.picture import Picture, make_picture
from attncli.view.pooling import Pooler
from attncli.view.scale import are_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.engine import Progress
    from attncli.gather import Finished
    from attncli.problem import Problem
    from attncli.view.panel import Panel

__all__ = ["Wish", "chosen", "finished_picture", "four_axes", "grouped", "problem_picture"]

Array = npt.NDArray[Any]
# A block of rows with its scores and weights stays within about 32 MB.
_BLOCK_CELLS = 2_000_000
# Those of rounded weights add up to a little more than 1.
_MOST_OF_A_ROW = 1.05


@dataclass(frozen=True)
class Wish:
    """What the picture should show.

    Attributes
    ----------
    what : {"weights", "scores"}
    rows, columns : (start, stop), None where open; or None for all
    title : str or None
    vmax : float or "auto"
    log : bool
    average : bool
        The mean of the heads in one map.
    dpi : float
        Sets how many cells have room.
    """

    what: Literal["weights", "scores"] = "weights"
    rows: tuple[int | None, int | None] | None = None
    columns: tuple[int | None, int | None] | None = None
    title: str | None = None
    vmax: float | Literal["auto"] = "auto"
    log: bool = False
    average: bool = False
    dpi: float = 150


def problem_picture(
    problem: Problem,
    wish: Wish,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Picture:
    """Compute the maps of a problem, some rows at a time, and pool what has no room.

    Parameters
    ----------
    problem : Problem
    wish : Wish
    threads : int, optional
    progress : callable, optional
        Called with blocks of rows done and blocks in all.

    Raises
    ------
    UsageError
        A range of rows or columns is empty.
    """
    axes, counts = problem.layout.weight_axes, problem.shape[:2]
    if wish.average:
        _check_average(wish, axes)
    rows = chosen("--rows", wish.rows, problem.shape[2])
    columns = chosen("--cols", wish.columns, problem.shape[3])
    heads = [range(counts[1])] if wish.average else [[h] for h in range(counts[1])]
    places = [(b, together) for b in range(counts[0]) for together in heads]
    shape = rows[1] - rows[0], columns[1] - columns[0]
    group = grouped(counts[0], len(heads))
    limit = cell_limit(shape, panels=len(places), group=group, dpi=wish.dpi)
    panels, blind, block = [], 0, (1, 1)
    blocks = -(-shape[0] // _rows_of_a_block(problem)) * counts[0] * counts[1]
    told = iter(range(1, blocks + 1))

    def tell() -> None:
        if progress is not None:
            progress(next(told), blocks)

    for batch, together in places:
        pooler = Pooler(shape, limit, signed=wish.what == "scores")
        parts = [
            problem.select(batch=batch if "b" in axes else None, head=head if "h" in axes else None)
            for head in together
        ]
        blind += _pour(parts, pooler, wish.what, rows, columns, threads, tell)
        shown = axes.replace("h", "") if wish.average else axes
        panels.append(pooler.panel(_title(shown, counts, batch, together[0])))
        block = pooler.block
    if blind:
        warn(blind_advice(problem, blind))
    labels = problem.query_labels, problem.key_labels
    return _picture(panels, wish, rows, columns, problem.shape[2:], block, *labels, group)


def finished_picture(
    finished: Finished, wish: Wish, *, batch: int | None = None, head: int | None = None
) -> Picture:
    """Return the picture of weights that were computed before.

    Raises
    ------
    ShapeError
        The array is no (…, L, S), or the labels do not fit.
    DataError
        A weight is negative or not finite.
    """
    weights = four_axes(finished, batch, head)
    if wish.average:
        _check_average(wish, "h" if finished.weights.ndim > 2 and head is None else "")
        weights = weights.mean(axis=1, keepdims=True)
    counts = weights.shape[:2]
    rows = chosen("--rows", wish.rows, weights.shape[2])
    columns = chosen("--cols", wish.columns, weights.shape[3])
    shape = rows[1] - rows[0], columns[1] - columns[0]
    group = grouped(*counts)
    limit = cell_limit(shape, panels=counts[0] * counts[1], group=group, dpi=wish.dpi)
    panels, block = [], (1, 1)
    for b in range(counts[0]):
        for h in range(counts[1]):
            pooler = Pooler(shape, limit, signed=wish.what == "scores")
            pooler.add(weights[b, h, slice(*rows), slice(*columns)])
            panels.append(pooler.panel(_title("bh", counts, b, h)))
            block = pooler.block
    labels = finished.query_labels, finished.key_labels
    return _picture(panels, wish, rows, columns, weights.shape[2:], block, *labels, group)


def _check_average(wish: Wish, axes: str) -> None:
    if wish.what == "scores":
        raise UsageError("scores are not averaged: leave out --average-heads, or --what")
    refuse_without_heads(axes)


def _pour(
    heads: Sequence[Problem],
    pooler: Pooler,
    what: str,
    rows: tuple[int, int],
    columns: tuple[int, int],
    threads: int | None,
    tell: Callable[[], None],
) -> int:
    """Compute the rows of one head, or the mean of some, block by block.

    Return how many see nothing.
    """
    blind = 0
    step = _rows_of_a_block(heads[0])
    for start in range(*rows, step):
        block = start, min(start + step, rows[1])
        values, hidden, unseeing = _rows(heads[0], block, what, columns, threads)
        tell()
        for head in heads[1:]:
            more, unseen, count = _rows(head, block, what, columns, threads)
            tell()
            values, hidden, unseeing = values + more, hidden & unseen, unseeing + count
        mean = values if len(heads) == 1 else values / len(heads)
        pooler.add(mean, hidden, row=start - rows[0])
        blind += unseeing
    return blind


def _rows_of_a_block(problem: Problem) -> int:
    return max(1, _BLOCK_CELLS // problem.shape[3])


def _rows(
    problem: Problem,
    block: tuple[int, int],
    what: str,
    columns: tuple[int, int],
    threads: int | None,
) -> tuple[Array, npt.NDArray[np.bool_], int]:
    """Return some rows of one head, which of them are hidden, and how many see nothing."""
    part = problem.select(rows=block)
    answer, blind = attend(part, ("weights", "scores"), threads=threads)
    scores = np.asarray(answer.scores)[:, slice(*columns)]
    values = np.asarray(answer.weights)[:, slice(*columns)] if what == "weights" else scores
    return values, np.isneginf(scores), blind


def _picture(
    panels: list[Panel],
    wish: Wish,
    rows: tuple[int, int],
    columns: tuple[int, int],
    whole: tuple[int, int],
    block: tuple[int, int],
    query_labels: tuple[str, ...] | None,
    key_labels: tuple[str, ...] | None,
    group: int | None,
) -> Picture:
    return make_picture(
        panels,
        what=wish.what,
        query_labels=query_labels and query_labels[slice(*rows)],
        key_labels=key_labels and key_labels[slice(*columns)],
        row_start=rows[0],
        column_start=columns[0],
        title=wish.title,
        vmax=wish.vmax,
        log=wish.log,
        shape=(rows[1] - rows[0], columns[1] - columns[0]),
        whole=whole,
        block=block,
        group=group,
    )


def grouped(batches: int, heads: int) -> int | None:
    """Return how many panels belong together, where there are several batch entries."""
    return heads if batches > 1 and heads > 1 else None


def _title(axes: str, counts: tuple[int, ...], batch: int, head: int) -> str | None:
    parts = [
        f"{name} {index}"
        for axis, name, index, count in zip(
            "bh", ("batch", "head"), (batch, head), counts, strict=False
        )
        if axis in axes and count > 1
    ]
    return ", ".join(parts) or None


def chosen(
    option: str, wanted: tuple[int | None, int | None] | None, count: int
) -> tuple[int, int]:
    """Return which rows or columns an option chooses of so many, as (start, stop)."""
    wanted = wanted or (None, None)
    start, stop, _ = slice(*wanted).indices(count)
    if start >= stop:
        raise UsageError(f"{option}: expected a range within 0:{count}; found an empty one")
    for end in wanted:
        if end is not None and not -count <= end <= count:
            raise UsageError(
                f"{option}: expected a range within 0:{count}; found {end}, beyond the end"
            )
    return start, stop


def four_axes(finished: Finished, batch: int | None, head: int | None) -> Array:
    """Return finished weights as (B, H, L, S); three axes are (H, L, S)."""
    weights = finished.weights
    if weights.dtype == BFLOAT16:
        weights = widen(weights, np.float32)
    if weights.dtype.kind not in "fiu":
        raise DataError(f"{finished.name}: expected weights; found {weights.dtype.name}")
    if weights.dtype.kind != "f":  # differences of unsigned numbers would be wrong
        weights = weights.astype(np.float64)
    if not 2 <= weights.ndim <= 4:
        raise ShapeError(f"{finished.name}: expected weights (…, queries, keys) of 2 to 4 axes")
    weights = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
    for axis, option, index in ((0, "--batch", batch), (1, "--head", head)):
        if index is not None:
            if not 0 <= index < weights.shape[axis]:
                raise UsageError(
                    f"{option}: expected a number from 0 to {weights.shape[axis] - 1}; "
                    f"found {index}"
                )
            weights = weights.take([index], axis)
    if weights.size and not are_weights(float(np.min(weights)), float(np.max(weights))):
        raise DataError(
            f"{finished.name}: expected finished weights, finite and not negative",
            hint="for attention from query, key and value give their files",
        )
    most = float(np.max(weights.sum(axis=-1, dtype=np.float64)))
    if most > _MOST_OF_A_ROW:
        warn(f"{finished.name}: a row adds up to {most:.4g}, not to 1: are these weights?")
    return weights
