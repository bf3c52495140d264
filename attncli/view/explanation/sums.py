"""Sums that stay short: the largest terms, and the total of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attncli.view.labels import text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from attncli.view.notation import Notation

__all__ = ["Rest", "largest", "sum_pieces", "sums_pieces"]

# A sum is written out if it takes no more lines than this; one that is cut takes fewer.
_SUM_LINES = 3
_CUT_SUM_LINES = 2
# Beyond this, a wide terminal would only make a cut sum harder to read.
_CUT_SUM_COLUMNS = 120


@dataclass(frozen=True)
class Rest:
    """The terms of a sum that are not written out: their number and their total."""

    count: int
    total: float


def largest(
    sizes: npt.NDArray[np.float64], widths: Sequence[int], room: int, *, least: int = 1
) -> tuple[list[int], Rest | None]:
    """Choose the largest terms of a sum that fit into the room.

    Parameters
    ----------
    sizes : ndarray (terms,)
        The value of each term.
    widths : sequence of int (terms,)
        The room that each term takes.
    room : int
    least : int
        At least this many are taken, whether they fit or not.

    Returns
    -------
    indices : list of int
        In their order.
    rest : Rest or None
        What was left out.

    Examples
    --------
    >>> largest(np.array([1.0, -4.0, 2.0]), [1, 1, 1], 2)
    ([1, 2], Rest(count=1, total=1.0))
    """
    order = np.argsort(-np.abs(sizes), kind="stable")
    ends = np.cumsum(np.asarray(widths)[order])
    count = max(least, int(np.searchsorted(ends, room, side="right")))
    chosen, others = sorted(order[:count].tolist()), order[count:]
    return chosen, Rest(len(others), float(sizes[others].sum())) if len(others) else None


def sum_pieces(
    terms: list[str],
    sizes: npt.NDArray[np.float64],
    notation: Notation,
    room: int,
    *,
    tags: Sequence[str],
    rest: Rest | None = None,
) -> list[str]:
    """Return all terms of a sum if they fit, else the largest and the sum of the rest.

    Parameters
    ----------
    terms : list of str
    sizes : ndarray (terms,)
        The value of each term.
    notation : Notation
    room : int
        Columns of a line.
    tags : sequence of str (terms,)
        If terms are left out, the others carry these.
    rest : Rest, optional
        Terms that are not among these.
    """
    return sums_pieces([terms], [sizes], None, notation, room, tags=tags, rests=[rest])[0]


def sums_pieces(
    sums: Sequence[list[str]],
    sizes: Sequence[npt.NDArray[np.float64]],
    order: npt.NDArray[np.float64] | None,
    notation: Notation,
    room: int,
    *,
    tags: Sequence[str],
    rests: Sequence[Rest | None],
) -> list[list[str]]:
    """Return several sums over the same things: all terms if they fit, else some of each.

    Parameters
    ----------
    sums : sequence of list of str
        The terms of each.
    sizes : sequence of ndarray (terms,)
        The value of each term of each sum.
    order : ndarray (terms,), or None
        If not all sums fit, the same terms of each stay, those with the largest of these; None for
        the largest terms of each.
    notation, room, tags
        As in `sum_pieces`.
    rests : sequence of Rest or None
        For each sum, the terms that are not among these.
    """
    chosen = [list(range(len(tags)))] * len(sums)
    if any(sum(text_width(term) + 3 for term in terms) > _SUM_LINES * room for terms in sums):
        sums = [[f"{term} ({tag})" for term, tag in zip(s, tags, strict=True)] for s in sums]
        widths = [max(map(text_width, terms)) + 3 for terms in zip(*sums, strict=True)]
        room = min(_CUT_SUM_LINES * room, _CUT_SUM_COLUMNS)
        orders = sizes if order is None else [order] * len(sums)
        chosen = [largest(each, widths, room, least=2)[0] for each in orders]
    word = "smaller" if order is None else "more"
    return [
        _written(terms, parts, some, notation, rest, word)
        for terms, parts, some, rest in zip(sums, sizes, chosen, rests, strict=True)
    ]


def _written(
    terms: list[str],
    sizes: npt.NDArray[np.float64],
    chosen: list[int],
    notation: Notation,
    rest: Rest | None,
    word: str,
) -> list[str]:
    """Return the chosen terms of a sum, and the total of the others, with a word for these."""
    if not chosen:
        return []
    pieces = [terms[chosen[0]], *(f"+ {terms[i]}" for i in chosen[1:])]
    count = len(terms) - len(chosen) + (rest.count if rest else 0)
    if count:
        others = np.delete(sizes, chosen)
        total = (float(others.sum()) if len(others) else 0.0) + (rest.total if rest else 0.0)
        pieces.append(f"{notation.plus(total)} ({count:,} {word})")
    return pieces
