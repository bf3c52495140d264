"""The page inside a notebook."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import DataError, ShapeError, UsageError
from attncli.numerics.finite import are_weights
from attncli.problem.problem import Problem
from attncli.summaries.maps import Computed, Given
from attncli.view.page import page
from attncli.view.page.maps import REASONS, MapMaker

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt


class Page:
    """A page that shows attention; notebooks show it in a frame.

    Attributes
    ----------
    html : str
        The whole page, which loads nothing.
    """

    def __init__(self, text: str) -> None:
        self.html = text

    def __repr__(self) -> str:
        return f"<Page: {len(self.html):,} characters of HTML>"

    def _repr_html_(self) -> str:
        """Return a frame that may run the page's own code and nothing else."""
        inside = html.escape(self.html, quote=True)
        style = "width: 100%; height: 720px; border: 0"
        return (
            f'<iframe sandbox="allow-scripts" title="Attention" style="{style}" '
            f'srcdoc="{inside}"></iframe>'
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page into a file.

        Parameters
        ----------
        path : str or path
        """
        Path(path).write_text(self.html, encoding="utf-8")


def view(
    source: Problem | npt.ArrayLike,
    *,
    title: str = "Attention weights",
    tokens: Sequence[str] | None = None,
    threads: int | None = None,
) -> Page:
    """Return a page that shows the weights of a problem, or finished weights.

    Parameters
    ----------
    source : Problem, or array_like (L, S), (H, L, S) or (B, H, L, S)
    title : str
    tokens : sequence of str, optional
        Names of queries and keys of finished weights; a problem has its own names.
    threads : int, optional

    Returns
    -------
    Page

    Raises
    ------
    UsageError
        There are tokens beside a problem.
    ShapeError
        The weights have another number of axes, or there are more or fewer tokens than keys.
    DataError
        A weight is negative or not finite; or a score of the problem is out of range.

    Examples
    --------
    >>> import attncli
    >>> attncli.view([[1.0, 0.0], [0.5, 0.5]], tokens=["a", "b"])._repr_html_()[:32]
    '<iframe sandbox="allow-scripts" '
    """
    if isinstance(source, Problem) and tokens is not None:
        raise UsageError("tokens: a problem has names of its own: give them to attncli.pose")
    weights: Computed | Given
    if isinstance(source, Problem):
        weights = Computed(source, threads=threads)
    else:
        weights = _given(source, tokens)
    return Page(page(MapMaker(threads).maps(weights), title=title, reasons=REASONS))


def _given(source: npt.ArrayLike, tokens: Sequence[str] | None) -> Given:
    weights = np.asarray(source)
    if not 2 <= weights.ndim <= 4 or not weights.size:
        raise ShapeError(
            f"weights: expected (L, S), (H, L, S) or (B, H, L, S); found shape {weights.shape}"
        )
    if weights.dtype.kind not in "fiu" or not are_weights(
        float(weights.min()), float(weights.max())
    ):
        raise DataError("weights: expected finite numbers that are not negative")
    names = None if tokens is None else tuple(tokens)
    if names is not None and {len(names)} != {*weights.shape[-2:]}:
        raise ShapeError(
            f"tokens: expected as many as queries and keys, {weights.shape[-2:]}; "
            f"found {len(names)}"
        )
    axes = {2: "", 3: "h", 4: "bh"}[weights.ndim]
    whole = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
    return Given(whole, axes, (names, names))
