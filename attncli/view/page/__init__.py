"""One self-contained HTML page that shows attention: matrix, token lines, all heads and patches.

The page holds its own code (the ``.js`` files here), its style and its numbers. It loads nothing.
Weights are cut into bands of queries, and each band is packed on its own, so that the browser
unpacks only what is in sight.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from dataclasses import asdict, dataclass
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["Map", "Patches", "image_address", "page"]

# Weights of a band: a browser unpacks them in some milliseconds.
_BAND = 2**18
# Up to this many weights in all, the page holds float32: about 29 MB of text.
_EXACT = 6_000_000
# A larger page holds integers up to this one: roots of weights as shares of the row's largest.
# With 7 bits, 38 million weights (12 layers of 12 heads and 512 tokens) take at most 39 MB; with 8
# bits, those of random queries and keys would take 44 MB.
_STEPS = 127
_NOTE = (
    "To keep the page small, weights have 7 bits: they are rounded by at most 0.8 % of the largest "
    "weight of their query."
)
# The colour scale ends at a weight that this share of the rows stays below: the first queries of
# long causal inputs have weights near 1, and would leave the others pale.
_SHARE = 0.95
# Pixels of a thumbnail's side, at most.
_THUMBNAIL = 64
_SCRIPTS = ("data", "state", "colours", "matrix", "details", "lines", "grid", "patches", "main")


@dataclass(eq=False)
class Map:
    """The weights of one layer, batch entry and head."""

    layer: int
    batch: int
    head: int
    weights: Array  # (L, S)
    lse: Array | None = None  # (L,): the page gives scores as ln weight + lse
    # (L, S) of uint8: bit n stands for reason n why a key is hidden. Maps may share an array.
    reasons: Array | None = None
    stats: Mapping[str, float | None] | None = None  # entropy, distance and first, to sort by
    labels: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None)

    @property
    def name(self) -> str:
        """The name of the map in the page."""
        return f"{self.layer}-{self.batch}-{self.head}"


@dataclass(frozen=True)
class Patches:
    """An image cut into patches, one key each."""

    grid: tuple[int, int]  # rows and columns
    first: int = 0  # the key of the first patch
    image: str = ""  # a ``data:`` address, or empty for the grid alone
    smooth: bool = True  # whether colours run from the middle of a patch to the next


def image_address(pixels: npt.NDArray[np.uint8]) -> str:
    """Return an image (height, width, 3) as a ``data:`` address."""
    from PIL import Image  # noqa: PLC0415 - few pages have one

    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def page(
    maps: Sequence[Map],
    *,
    title: str,
    layers: Mapping[int, str] | None = None,
    reasons: Sequence[str] = (),
    patches: Patches | None = None,
    query: int = 0,
) -> str:
    """Return the page as HTML, in which labels, titles and reasons are text, never markup."""
    exact = sum(one.weights.size for one in maps) <= _EXACT
    # Arrays and labels that several maps have are written once.
    shared: dict[int, int] = {}
    names: dict[tuple[str, ...] | None, int] = {}
    largest = [one.weights.max(axis=1, initial=0) for one in maps]
    top = float(np.quantile(np.concatenate(largest), _SHARE)) or 1.0
    facts = [_facts(one, shared, names) for one in maps]
    data = {
        "exact": exact,
        "steps": _STEPS,
        "top": top,
        "maps": facts,
        "labels": [*names],
        "layers": layers,
        "reasons": reasons,
        "patches": patches and asdict(patches),
        "query": query,
        "note": "" if exact else _NOTE,
    }
    blocks = "\n".join(_blocks(maps, shared, top, exact=exact))
    return _filled(title or "Attention weights", _as_script(json.dumps(data)), blocks)


def _facts(
    one: Map, shared: dict[int, int], names: dict[tuple[str, ...] | None, int]
) -> dict[str, Any]:
    """Return the facts about a map that the page needs before it unpacks weights."""
    queries, keys = one.weights.shape
    labels = [None if given is None else tuple(given) for given in one.labels]
    lse = None if one.lse is None else [x if np.isfinite(x) else None for x in one.lse.tolist()]
    reasons = None if one.reasons is None else shared.setdefault(id(one.reasons), len(shared))
    return {
        **{name: getattr(one, name) for name in ("name", "layer", "batch", "head")},
        "queries": queries,
        "keys": keys,
        "band": _band(keys),
        "queryLabels": names.setdefault(labels[0], len(names)),
        "keyLabels": names.setdefault(labels[1], len(names)),
        "lse": lse,
        "reasons": reasons,
        "stats": one.stats or {},
        "thumbnail": [-(-n // _step(n)) for n in (queries, keys)],
    }


def _blocks(
    maps: Sequence[Map], shared: Mapping[int, int], top: float, *, exact: bool
) -> Iterator[str]:
    """Yield the script elements that hold the weights, the thumbnails and the reasons."""
    for one in maps:
        for number, part in enumerate(_bands(one.weights)):
            weights = part.astype("<f4")
            yield _block(f"w-{one.name}-{number}", *([weights] if exact else _rounded(weights)))
        yield _block(f"t-{one.name}", _thumbnail(one, top))
    for name, reasons in {id(one.reasons): one.reasons for one in maps}.items():
        for number, part in enumerate([] if reasons is None else _bands(reasons)):
            yield _block(f"r-{shared[name]}-{number}", part)


def _band(keys: int) -> int:
    return max(1, _BAND // keys)


def _bands(array: Array) -> Iterator[Array]:
    step = _band(array.shape[1])
    return (array[start : start + step] for start in range(0, len(array), step))


def _rounded(weights: Array) -> tuple[Array, Array]:
    """Return the largest weight of each row, and square roots, which keep small weights apart."""
    largest = weights.max(axis=1, initial=0)
    return largest, _roots(weights, largest[:, None], _STEPS)


def _roots(weights: Array, top: Array | float, steps: int) -> Array:
    shares: Array = np.sqrt(np.clip(weights / np.where(np.equal(top, 0), 1, top), 0, 1))
    codes: Array = np.rint(steps * shares).astype(np.uint8)
    return codes


def _step(length: int) -> int:
    return -(-length // _THUMBNAIL)


def _thumbnail(one: Map, top: float) -> Array:
    """Return the largest weight of each group of cells; 255 where all of them are hidden."""
    codes = _roots(_pooled(one.weights, np.maximum), top, 254)
    if one.reasons is not None:
        codes[_pooled(one.reasons > 0, np.logical_and)] = 255
    return codes


def _pooled(array: Array, how: np.ufunc) -> Array:
    for axis, length in enumerate(array.shape):
        array = how.reduceat(array, np.arange(0, length, _step(length)), axis=axis)
    return array


def _block(name: str, *arrays: Array) -> str:
    packed = zlib.compress(b"".join(array.tobytes() for array in arrays), 6)
    text = base64.b64encode(packed).decode()
    return f'<script type="text/plain" id="{name}">{text}</script>'


def _as_script(text: str) -> str:
    """Return JSON that cannot end the script element in which it stands."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _filled(title: str, data: str, blocks: str) -> str:
    """Fill the frame of the page; its security policy lets nothing else run or load."""
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
        "policy": policy,
        "title": html.escape(title),
        "style": style,
        "data": data,
        "blocks": blocks,
        "script": code,
    }
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], read("page.html"))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
