"""Which axis is which, and the way from the user's axes to (B, H, L, D) and back.

Letters: b batch, h head, s sequence, d width. Inside, every array has four axes,
(B, H, L, D); an axis that the inputs do not have is of length 1 there and is
dropped again from the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import ShapeError, UsageError
from attncli.errors.text import number_words

if TYPE_CHECKING:
    import numpy.typing as npt

_CANONICAL = "bhsd"
_NAMES = ("sd", "bsd", "hsd", "sbd", "shd", "bhsd", "bshd", "sbhd")
LAYOUTS: dict[str, int] = {axes: len(axes) for axes in _NAMES}
_EXCHANGED = {"bhsd": "bshd", "bshd": "bhsd", "hsd": "shd", "shd": "hsd"}
_DEFAULT = {2: "sd", 3: "bsd", 4: "bhsd"}
# How to make (B, H, S, D) from each layout: the order of its axes, and the missing axes.
_ORDER = {axes: tuple(axes.index(a) for a in _CANONICAL if a in axes) for axes in _NAMES}
_MISSING = {axes: tuple(slice(None) if a in axes else None for a in _CANONICAL) for axes in _NAMES}
# The way back: index 0 of each axis that a layout lacks, and the order of the other axes.
_KEPT = {axes: tuple(slice(None) if a in axes else 0 for a in _CANONICAL) for axes in _NAMES}
_BACK = {axes: tuple(sorted(axes, key=_CANONICAL.index).index(a) for a in axes) for axes in _NAMES}
# Layouts whose order is not (B, H, S, D).
_TURNED = frozenset(axes for axes, order in _ORDER.items() if [*order] != sorted(order))


class Layout(NamedTuple):
    """The user's axes.

    Attributes
    ----------
    axes : str
        One of `LAYOUTS`.
    packed : bool
        The heads lie side by side in the width: (B, L, H·D).
    """

    axes: str
    packed: bool = False

    @classmethod
    def of(cls, ndim: int, axes: str | None, *, packed: bool) -> Layout:
        """Return the layout of inputs with ``ndim`` axes.

        Raises
        ------
        UsageError
            The layout is for another number of axes, or has a head axis where the heads are
            packed.
        """
        if axes is None:
            axes = _DEFAULT[ndim]
        elif LAYOUTS[axes] != ndim:
            raise UsageError(
                f"layout {axes!r} is for {LAYOUTS[axes]} axes; query has {ndim}",
                hint=f"for {ndim} axes: {' or '.join(a for a, n in LAYOUTS.items() if n == ndim)}",
            )
        if packed and "h" in axes:
            raise UsageError(
                f"heads splits the width of packed inputs (2-D or 3-D); layout {axes!r} "
                "has a head axis already",
                hint="leave heads and kv_heads out",
            )
        return cls(axes, packed)

    @property
    def weight_axes(self) -> str:
        """The axes of weights and scores before (L, S): ``""``, ``"b"``, ``"h"`` or ``"bh"``."""
        has_heads = self.packed or "h" in self.axes
        return ("b" if "b" in self.axes else "") + ("h" if has_heads else "")

    @property
    def exchanged(self) -> str | None:
        """The layout with the head and the sequence axis exchanged; None without a head axis."""
        return _EXCHANGED.get(self.axes)

    def split(self, array: npt.NDArray[Any], heads: int, name: str) -> npt.NDArray[Any]:
        """Return the array as (B, H, S, D), a view wherever NumPy can make one.

        Raises
        ------
        ShapeError
            The packed width is not a multiple of the number of heads.
        """
        if self.axes in _TURNED:
            array = array.transpose(_ORDER[self.axes])
        array = array[_MISSING[self.axes]]
        if not self.packed:
            return array
        batch, _, rows, width = array.shape
        if width % heads:
            raise ShapeError(
                f"{name}: the width {width} cannot be split into {number_words(heads)} heads of "
                "equal width"
            )
        return array.reshape(batch, rows, heads, width // heads).transpose(0, 2, 1, 3)

    def join(self, context: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return (B, H, L, E) in the user's axes: the inverse of `split`."""
        if self.packed:
            batch, _, rows, _ = context.shape
            context = context.transpose(0, 2, 1, 3).reshape(batch, 1, rows, -1)
        context = context[_KEPT[self.axes]]
        return context.transpose(_BACK[self.axes]) if self.axes in _TURNED else context

    def without(self, axis: str) -> Layout:
        """Return the layout without the axis ``"b"`` or ``"h"``; the same layout for ``""``."""
        return Layout(self.axes.replace(axis, ""), self.packed and axis != "h")

    def place(self, batch: int | None, head: int | None) -> tuple[int | None, int | None]:
        """Return batch and head as results report them: None for an axis the inputs do not have."""
        axes = self.weight_axes
        return batch if "b" in axes else None, head if "h" in axes else None

    def drop(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return (B, H, …) without the axes that the inputs do not have."""
        return _without_missing(array, self.weight_axes)

    def weights_shape(self, shape: tuple[int, int, int, int]) -> tuple[int, ...]:
        """Return (B, H, L, S) without the axes that the inputs do not have."""
        kept = [size for axis, size in zip("bh", shape, strict=False) if axis in self.weight_axes]
        return (*kept, *shape[2:])

    def broadcastable(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array that broadcasts to the weights as (B or 1, H or 1, …), undoing `drop`.

        Missing leading axes are of length 1, by NumPy's rules; the array has at
        most as many axes as the weights.
        """
        axes = len(self.weight_axes) + 2
        array = array.reshape((1,) * (axes - array.ndim) + array.shape)
        if "h" not in self.weight_axes:
            array = array[..., None, :, :]
        return array if "b" in self.weight_axes else array[None]


def _without_missing(array: npt.NDArray[Any], axes: str) -> npt.NDArray[Any]:
    """Return (B, H, …) without batch or head where the letters do not name it."""
    if "h" not in axes:
        array = array[:, 0]
    return array if "b" in axes else array[0]
