"""One self-contained HTML page that shows attention: matrix, token lines and all heads.

The page holds its own code (``page.js`` files), its style and its numbers. It loads nothing.
Weights are cut into tiles of `SIDE` × `SIDE`, and each tile is packed on its own, so that the
browser unpacks only what is in sight.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["Map", "Patches", "page"]

# Queries and keys of a tile: what a browser unpacks in some milliseconds.
SIDE = 512
# Up to so many weights in all, and up to SIDE tokens, the page holds float32: about 25 MB of text.
EXACT_CELLS = 6_000_000
# More weights than this have 7 bits instead of 8, so that 12 layers of 12 heads and 512 tokens,
# 38 million, stay below 40 MB even if they hardly compress.
_COARSE_CELLS = 30_000_000
# The colour scale ends where so many queries have their largest weight below: the first few queries
# of long causal inputs would leave the others pale.
_SHARE = 0.95
# Pixels of a thumbnail's side, at most.
THUMBNAIL = 64
_SCRIPTS = ("data", "colours", "state", "matrix", "details", "lines", "grid", "patches", "main")


@dataclass(eq=False)
class Map:
    """The weights of one layer, batch entry and head.

    Attributes
    ----------
    layer, batch, head : int
    weights : ndarray (L, S)
    lse : ndarray (L,) or None
        The page gives scores as ln weight + lse.
    reasons : ndarray (L, S) of uint8, or None
        0 where the query sees the key; otherwise bit n stands for reason n. Maps may share an
        array.
    stats : mapping of str to float
        ``entropy``, ``distance`` and ``first``, to sort by.
    labels : (sequence of str or None, sequence of str or None)
        The names of queries and keys.
    """

    layer: int
    batch: int
    head: int
    weights: Array
    lse: Array | None = None
    reasons: Array | None = None
    stats: Mapping[str, float | None] | None = None
    labels: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None)

    @property
    def name(self) -> str:
        """The name under which the page keeps it."""
        return f"{self.layer}-{self.batch}-{self.head}"


@dataclass(frozen=True)
class Patches:
    """An image cut into patches, one key each: the last rows · columns keys.

    Attributes
    ----------
    grid : (rows, columns)
    image : str
        A ``data:`` address, or empty for the grid alone.
    """

    grid: tuple[int, int]
    image: str = ""


def page(
    maps: Sequence[Map],
    *,
    title: str,
    layers: Mapping[int, str] | None = None,
    reasons: Sequence[str] = (),
    patches: Patches | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    maps : sequence of Map
    title : str
    layers : mapping of int to str, optional
        Names of the layers.
    reasons : sequence of str
        Why a key is hidden: up to 8 sentences.
    patches : Patches, optional

    Returns
    -------
    str
        HTML. Labels, titles and reasons are text in it, never markup.
    """
    longest = max(max(one.weights.shape) for one in maps)
    cells = sum(one.weights.size for one in maps)
    exact = longest <= SIDE and cells <= EXACT_CELLS
    bits = 8 if cells <= _COARSE_CELLS else 7
    shared: dict[int, int] = {}
    for one in maps:
        if one.reasons is not None:
            shared.setdefault(id(one.reasons), len(shared))
    names: dict[Sequence[str] | None, int] = {}
    strongest = [one.weights.max(axis=1, initial=0) for one in maps]
    top = float(np.quantile(np.concatenate(strongest), _SHARE)) or 1.0
    data: dict[str, Any] = {
        "side": SIDE,
        "exact": exact,
        "steps": 2**bits - 1,
        "top": top,
        "maps": [_facts(one, shared, names) for one in maps],
        "labels": [*names],
        "layers": layers,
        "reasons": [*reasons],
        "patches": None if patches is None else {"grid": patches.grid, "image": patches.image},
        "note": ""
        if exact
        else f"To keep the page small, weights have {bits} bits: they are rounded "
        f"to about {100 / (2**bits - 1):.1g} % of the largest weight of their query.",
    }
    packed = "\n".join(_blocks(maps, shared, top, data["steps"], exact=exact))
    return _filled(title, _as_script(json.dumps(data)), packed)


def _facts(
    one: Map, shared: Mapping[int, int], names: dict[Sequence[str] | None, int]
) -> dict[str, Any]:
    """Return what the page knows of a map before it unpacks anything; add its labels to `names`."""
    queries, keys = one.weights.shape
    labels = [label and tuple(label) for label in one.labels]
    return {
        "name": one.name,
        "layer": one.layer,
        "batch": one.batch,
        "head": one.head,
        "queries": queries,
        "keys": keys,
        "queryLabels": names.setdefault(labels[0], len(names)),
        "keyLabels": names.setdefault(labels[1], len(names)),
        "lse": None if one.lse is None else [_finite(x) for x in one.lse.tolist()],
        "reasons": None if one.reasons is None else shared[id(one.reasons)],
        "stats": one.stats,
        "thumbnail": [-(-n // _step(n)) for n in (queries, keys)],
    }


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _blocks(
    maps: Sequence[Map], shared: Mapping[int, int], top: float, steps: int, *, exact: bool
) -> Iterator[str]:
    """Yield the script elements that hold the tiles, their reasons and the thumbnails."""
    written: set[int] = set()
    for one in maps:
        ends = one.weights.max(axis=1, initial=0).astype("<f4")
        if not exact:
            yield _block(f"m-{one.name}", ends)
        for row, column, part in _tiles(one.weights):
            of_rows = ends[row * SIDE :][: len(part), None]
            codes = part.astype("<f4") if exact else _roots(part, of_rows, steps)
            yield _block(f"w-{one.name}-{row}-{column}", codes)
        yield _block(f"t-{one.name}", _thumbnail(one, top))
        if one.reasons is not None and id(one.reasons) not in written:
            written.add(id(one.reasons))
            for row, column, part in _tiles(one.reasons):
                yield _block(f"r-{shared[id(one.reasons)]}-{row}-{column}", part.astype(np.uint8))


def _tiles(array: Array) -> Iterator[tuple[int, int, Array]]:
    queries, keys = array.shape
    for row, column in product(range(-(-queries // SIDE)), range(-(-keys // SIDE))):
        part = array[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
        yield row, column, part


def _roots(weights: Array, top: Array | float, steps: int) -> Array:
    """Return weights as whole numbers up to `steps`: square roots keep small ones apart."""
    shares: Array = np.sqrt(np.clip(weights / np.where(np.equal(top, 0), 1, top), 0, 1))
    codes: Array = np.rint(steps * shares).astype(np.uint8)
    return codes


def _step(length: int) -> int:
    return -(-length // THUMBNAIL)


def _thumbnail(one: Map, top: float) -> Array:
    """Return the largest weight of each group of cells; 255 where all of them are hidden."""
    pooled = _pooled(one.weights, np.maximum)
    codes = _roots(pooled, top, 254)
    if one.reasons is not None:
        codes[_pooled(one.reasons > 0, np.logical_and)] = 255
    return codes


def _pooled(array: Array, how: np.ufunc) -> Array:
    for axis in (0, 1):
        length = array.shape[axis]
        array = how.reduceat(array, np.arange(0, length, _step(length)), axis=axis)
    return array


def _block(name: str, array: Array) -> str:
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>'


def _as_script(text: str) -> str:
    """Return JSON that ends no script element, whatever its strings hold."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _filled(title: str, data: str, blocks: str) -> str:
    """Return the frame with its parts; a policy lets nothing else run or load."""
    here = files(__name__)

    def read(name: str) -> str:
        return (here / name).read_text(encoding="utf-8")

    code = '"use strict";\n' + "\n".join(read(f"{name}.js") for name in _SCRIPTS)
    style = read("page.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(code)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "{policy}": policy,
        "{title}": html.escape(title),
        "{style}": style,
        "{data}": data,
        "{blocks}": blocks,
        "{script}": code,
    }
    # One pass, so that a title like "{data}" stays what it is.
    pieces = [read("page.html")]
    for mark, text in parts.items():
        pieces = [bit for piece in pieces for bit in _split(piece, mark, text)]
    return "".join(map(str, pieces))


class _Done(str):
    """A part that is filled in and not looked at again."""

    __slots__ = ()


def _split(piece: str, mark: str, text: str) -> list[str]:
    if isinstance(piece, _Done):
        return [piece]
    parts: list[str] = []
    for bit in piece.split(mark):
        parts += [_Done(text), bit]
    return parts[1:]


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
