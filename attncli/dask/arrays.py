"""`attention` of Dask arrays: a graph of blocks, and a tree that merges them."""

from __future__ import annotations

from itertools import product
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from attncli.dask.blocks import Block, block_outputs, merged, weights_of
from attncli.errors import ShapeError, UsageError
from attncli.numerics.chunked import Chunked, Stored
from attncli.numerics.positions import alibi_slopes as paper_slopes
from attncli.problem.arguments import window_pair
from attncli.problem.result import Attention
from attncli.problem.shards import ARRAY_AXES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["attention", "block_chunks"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
# Parts that one task merges: few enough that a worker holds them, many enough for a flat tree.
_FAN_IN = 8
# Bytes of a block of an array on disk: a worker of 600 MB holds a dozen of them.
_BLOCK = 1 << 24


def attention(
    query: da.Array,
    key: da.Array,
    value: da.Array | None = None,
    *,
    outputs: str | Collection[str] = ("context",),
    layout: str | None = None,
    **rules: Any,
) -> Attention:
    """Compute attention of Dask arrays lazily, with every rule of `attncli.attention`.

    Batch entries, heads and queries are cut as the chunks of `query` are, and keys as those of
    `key`. Blocks of keys are merged by a tree. Blocks that the causal rule, the window or the
    lengths hide whole make no task.

    Parameters
    ----------
    query, key, value : dask.array.Array
        2-D to 4-D, in the axes of `layout`. NumPy arrays become Dask arrays of one chunk. Of
        arrays on disk (`attncli.numerics.chunked.Chunked`), each block reads its own part when
        it is computed, so that no worker keeps them.
    outputs : str or collection of str
        Of context, lse, weights, scores, raw and capped.
    layout : str, optional
        As in `attncli.attention`.
    **rules
        As in `attncli.attention`. Arrays may be Dask or NumPy arrays. ``heads``, ``kv_heads`` and
        ``threads`` are not taken: cut the heads first; Dask sets the threads.

    Returns
    -------
    Attention
        Of lazy Dask arrays, in the layout of the query.

    Raises
    ------
    AttnError
        Arguments do not fit together. What depends on the numbers is raised when they are
        computed.

    Examples
    --------
    >>> import dask.array as da
    >>> import attncli.dask
    >>> q, k, v = (da.ones((1, 2, 6, 4), chunks=(1, 1, 3, 4)) for _ in range(3))
    >>> attncli.dask.attention(q, k, v, causal=True).context.shape
    (1, 2, 6, 4)
    """
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    known = ("context", "lse", "weights", "scores", "raw", "capped")
    for name in names:
        if name not in known:
            raise UsageError(f"outputs: expected some of {', '.join(known)}; found {name!r}")
    for name in ("heads", "kv_heads", "threads"):
        if rules.pop(name, None) is not None:
            raise UsageError(f"{name}: attncli.dask takes no such option; split the heads first")
    axes = layout or {2: "sd", 3: "bsd", 4: "bhsd"}.get(np.ndim(query), "")
    if len(axes) != np.ndim(query) or not set(axes) <= set("bhsd"):
        raise ShapeError(f"query: expected the axes {axes or 'of 2 to 4'}; found {np.shape(query)}")
    heads = [np.shape(x)[axes.index("h")] if "h" in axes else 1 for x in (query, key)]
    share = max(1, heads[0] // heads[1])
    q = _four_axes(_as_lazy(query, axes, share), axes)
    k = _four_axes(_as_lazy(key, axes), axes)
    v = None if value is None else _four_axes(_as_lazy(value, axes), axes)
    rules = {name: _with_heads(name, rule, axes) for name, rule in rules.items()}
    given = zip(("query", "key", "value"), (query, key, value), strict=True)
    stored = {name: (array, axes) for name, array in given if isinstance(array, Chunked)}
    graph = _Graph.of(q, k, v, rules)._replace(stored=stored)
    results = {name: _restored(array, name, axes) for name, array in graph.results(names).items()}
    return Attention(**results)


def _as_lazy(array: Any, axes: str, share: int = 1) -> da.Array:
    if isinstance(array, Chunked):
        return da.from_array(array, block_chunks(array, axes, share))
    return da.asarray(array)


def block_chunks(array: Any, axes: str, share: int = 1) -> tuple[int, ...]:
    """Return how an array is cut into blocks of about 16 MiB.

    ``share`` query heads read the same key head. A block holds all of them.
    """
    row = share * array.shape[axes.index("d")] * array.dtype.itemsize
    rows, own = max(1, _BLOCK // row), getattr(array, "chunks", array.shape)[axes.index("s")]
    # As the chunks on disk lie, where they are neither much smaller nor much larger.
    rows = rows // own * own if own <= rows else own if own <= 4 * rows else rows
    rows = min(rows, -(-array.shape[axes.index("s")] // getattr(array, "blocks", 1)))
    sizes = {"b": 1, "h": share, "s": rows, "d": array.shape[axes.index("d")]}
    return tuple(min(n, sizes[axis]) for n, axis in zip(array.shape, axes, strict=True))


def _with_heads(name: str, rule: Any, axes: str) -> Any:
    """Return a rule (B, L, S) as (B, 1, L, S) where the inputs have no axis of heads."""
    if name in ("mask", "bias") and np.ndim(rule) == 3 and "h" not in axes:
        return rule[:, None]
    return rule


def _four_axes(array: da.Array, axes: str) -> da.Array:
    """Return an array as (B, H, L, D)."""
    order = [axes.index(letter) for letter in "bhsd" if letter in axes]
    array = array.transpose(order)
    index = tuple(slice(None) if letter in axes else None for letter in "bhsd")
    # A block needs the whole width of a row.
    return array[index].rechunk({3: -1})


def _restored(array: da.Array, name: str, axes: str) -> da.Array:
    """Return a result in the axes of the query, or without those that the inputs do not have."""
    index = tuple(slice(None) if letter in axes or letter == "s" else 0 for letter in "bhs")
    array = array[index]
    if name != "context":
        return array
    kept = [letter for letter in "bhsd" if letter in axes]
    return array.transpose([kept.index(letter) for letter in axes])


def _spans(chunks: tuple[int, ...]) -> list[Span]:
    stops = np.cumsum(chunks).tolist()
    return [(stop - size, stop) for stop, size in zip(stops, chunks, strict=True)]


class _Graph(NamedTuple):
    """The inputs with chunks that fit together, and the rules."""

    query: da.Array
    key: da.Array
    value: da.Array | None
    rules: dict[str, Any]
    arrays: dict[str, Any]
    dtype: np.dtype[Any]
    stored: Mapping[str, tuple[Chunked, str]] = MappingProxyType({})

    @classmethod
    def of(
        cls, query: da.Array, key: da.Array, value: da.Array | None, rules: dict[str, Any]
    ) -> _Graph:
        """Check the shapes, and cut key, value and rules as the queries are cut."""
        batch, heads = query.shape[:2]
        groups = key.shape[1]
        if key.shape[0] not in (1, batch) or heads % groups:
            raise ShapeError(
                f"expected a batch of {batch} or 1 and heads that divide {heads} in key; "
                f"found {key.shape}"
            )
        share = heads // groups
        if any(size % share for size in query.chunks[1]):
            query = query.rechunk({1: share})
        chunks = {1: tuple(size // share for size in query.chunks[1])}
        if key.shape[0] == batch:
            chunks[0] = query.chunks[0]
        key = key.rechunk(chunks)
        value = None if value is None else value.rechunk({**chunks, 2: key.chunks[2]})
        if rules.get("alibi_slopes") is True:
            rules = {**rules, "alibi_slopes": paper_slopes(heads)}
        arrays = {
            name: rules[name]
            for name in ARRAY_AXES
            if rules.get(name) is not None and np.ndim(rules[name]) > 0
        }
        plain = {name: item for name, item in rules.items() if name not in arrays}
        if np.ndim(plain.get("sinks", ())) == 0 and plain.get("sinks") is not None:
            arrays["sinks"] = np.full(heads, plain.pop("sinks"))
        widest = np.result_type(*(x.dtype for x in (query, key, value) if x is not None))
        dtype = plain.get("precision") or (
            "float64" if widest.kind in "iub" else np.result_type(widest, np.float32)
        )
        graph = cls(query, key, value, plain, {}, np.dtype(dtype))
        return graph._replace(arrays={n: graph._cut_alike(n, x) for n, x in arrays.items()})

    def _chunks(self) -> dict[str, tuple[int, ...]]:
        sizes = self.query.chunks[0], self.query.chunks[1], self.query.chunks[2], self.key.chunks[2]
        return dict(zip("bhls", sizes, strict=True))

    def _cut_alike(self, name: str, array: Any) -> Any:
        """Return a rule with the chunks of the scores; a NumPy array as it is."""
        if not isinstance(array, da.Array):
            return np.asarray(array)
        chunks, axes = self._chunks(), ARRAY_AXES[name][-array.ndim :] if array.ndim else ""
        return array.rechunk(
            {at: chunks[axes[at]] if n > 1 else 1 for at, n in enumerate(array.shape)}
            if axes
            else -1
        )

    def results(self, names: tuple[str, ...]) -> dict[str, da.Array]:
        """Return the lazy outputs, (B, H, L, …)."""
        token = tokenize(self.query, self.key, self.value, self.rules, self.arrays, names)
        layers: dict[str, dict[Any, Any]] = {}
        spans = {letter: _spans(sizes) for letter, sizes in self._chunks().items()}
        places = [*product(*(range(len(spans[letter])) for letter in "bhl"))]
        wanted = tuple(name for name in ("context", "lse") if name in names)
        if wanted or "weights" in names:
            # The merge needs context and lse of each part; weights need only lse.
            parts = ("context", "lse") if "context" in names else ("lse",)
            rows: dict[Any, Any] = {}
            layers[f"rows-{token}"] = rows
            for place in places:
                self._rows(rows, f"rows-{token}", place, spans, parts)
            for number, name in enumerate(parts):
                ending = (0,) if name == "context" else ()
                layers[f"attention-{name}-{token}"] = {
                    (f"attention-{name}-{token}", *place, *ending): (
                        itemgetter(number),
                        (f"rows-{token}", *place),
                    )
                    for place in places
                }
        for name in set(names) - {"context", "lse"}:
            own = f"attention-{name}-{token}"
            layers[own] = {
                (own, *place, column): self._square(name, token, (*place, column), spans)
                for place in places
                for column in range(len(spans["s"]))
            }
        return {name: self._array(name, token, layers) for name in names}

    def _array(self, name: str, token: str, layers: dict[str, dict[Any, Any]]) -> da.Array:
        own = f"attention-{name}-{token}"
        given = [self.query, self.key, *([] if self.value is None else [self.value])]
        given += [array for array in self.arrays.values() if isinstance(array, da.Array)]
        needed = {own: {array.name for array in given}}
        rows, lse = f"rows-{token}", f"attention-lse-{token}"
        if name in ("context", "lse"):
            needed = {own: {rows}, rows: needed[own]}
        elif name == "weights":
            needed = {own: {lse, *needed[own]}, lse: {rows}, rows: needed[own]}
        everything = dict(HighLevelGraph.merge(*(array.dask for array in given)).layers)
        links = HighLevelGraph.merge(*(array.dask for array in given)).dependencies
        graph = HighLevelGraph(
            everything | {layer: layers[layer] for layer in needed}, {**links, **needed}
        )
        chunks = self._chunks()
        sizes = [chunks[letter] for letter in "bhl"]
        if name == "context":
            sizes.append((self.value.shape[3] if self.value is not None else 0,))
        elif name != "lse":
            sizes.append(chunks["s"])
        return da.Array(graph, own, tuple(sizes), dtype=self.dtype)

    def _rows(
        self,
        tasks: dict[Any, Any],
        name: str,
        place: tuple[int, ...],
        spans: dict[str, list[Span]],
        parts: tuple[str, ...],
    ) -> None:
        """Add the task that gives some queries their outputs over all keys, and its parts."""
        columns = [c for c in range(len(spans["s"])) if not self._is_hidden((*place, c), spans)]
        if len(columns) <= 1:
            column = columns[0] if columns else 0
            tasks[name, *place] = self._block((*place, column), spans, parts, with_sinks=True)
            return
        keys = []
        for column in columns:
            keys.append((name, *place, 0, column))
            tasks[keys[-1]] = self._block((*place, column), spans, parts, with_sinks=False)
        level = 0
        while len(keys) > _FAN_IN:
            level += 1
            groups = [keys[at : at + _FAN_IN] for at in range(0, len(keys), _FAN_IN)]
            keys = [(name, *place, level, at) for at in range(len(groups))]
            for key, group in zip(keys, groups, strict=True):
                tasks[key] = (merged, group, None, "float64")
        sinks = self._cut("sinks", place, spans) if "sinks" in self.arrays else None
        tasks[name, *place] = (merged, keys, sinks, self.dtype.name)

    def _square(
        self, name: str, token: str, place: tuple[int, ...], spans: dict[str, list[Span]]
    ) -> Any:
        """Return the task of one block of weights or scores."""
        if name != "weights":
            return itemgetter(0), self._block(place, spans, (name,), with_sinks=False)
        block = self._block(place, spans, ("scores",), with_sinks=False)
        return weights_of, (itemgetter(0), block), (f"attention-lse-{token}", *place[:3])

    def _block(
        self,
        place: tuple[int, ...],
        spans: dict[str, list[Span]],
        outputs: tuple[str, ...],
        *,
        with_sinks: bool,
    ) -> Any:
        b, h, i, j = place
        start = spans["l"][i][0], spans["s"][j][0]
        block = Block(start, (self.query.shape[2], self.key.shape[2]), self.rules, outputs)
        of_batch = b if self.key.numblocks[0] == self.query.numblocks[0] else 0
        names = [name for name in self.arrays if with_sinks or name != "sinks"]
        return (
            block_outputs,
            block,
            self._part("query", (b, h, i, 0)),
            self._part("key", (of_batch, h, j, 0)),
            None if self.value is None else self._part("value", (of_batch, h, j, 0)),
            names,
            [self._cut(name, place, spans) for name in names],
        )

    def _part(self, name: str, place: tuple[int, ...]) -> Any:
        """Return a block of an input: the key of a chunk, or where it lies on disk."""
        array = getattr(self, name)
        if name not in self.stored:
            return (array.name, *place)
        spans = (_spans(sizes)[at] for sizes, at in zip(array.chunks, place, strict=True))
        return Stored(*self.stored[name], tuple(spans))

    def _cut(self, name: str, place: tuple[int, ...], spans: dict[str, list[Span]]) -> Any:
        """Return the part of a rule for a block: the key of a chunk, or a NumPy array."""
        array = self.arrays[name]
        axes = ARRAY_AXES[name][-array.ndim :] if ARRAY_AXES[name] else ""
        at = dict(zip("bhls", place, strict=False))
        if isinstance(array, da.Array):
            index = (at[axes[n]] if array.shape[n] > 1 else 0 for n in range(len(axes)))
            return (array.name, *index) if axes else (array.name, *(0,) * array.ndim)
        part = tuple(
            slice(*spans[axes[n]][at[axes[n]]]) if array.shape[n] > 1 else slice(None)
            for n in range(len(axes))
        )
        return array[part]

    def _is_hidden(self, place: tuple[int, ...], spans: dict[str, list[Span]]) -> bool:
        """Return whether causal rule, window or lengths hide a block, as far as is known."""
        b, _, i, j = place
        rows, columns = spans["l"][i], spans["s"][j]
        lengths = self._known("kv_lengths", spans["b"][b])
        if lengths is not None and columns[0] >= lengths.max():
            return True
        offsets = self._offsets(spans["b"][b], lengths)
        if offsets is None:
            return False
        window = self.rules.get("window")
        left, right = (None, None) if window is None else window_pair("window", window)
        right = 0 if self.rules.get("causal") else right
        after = right is not None and columns[0] > rows[1] - 1 + offsets.max() + right
        before = left is not None and columns[1] - 1 < rows[0] + offsets.min() - left
        return bool(after or before)

    def _offsets(self, span: Span, lengths: Array | None) -> Array | None:
        """Return the offsets of some batch entries; None where they are not known yet."""
        if "query_offset" in self.arrays or self.rules.get("query_offset") is not None:
            return self._known("query_offset", span)
        if self.rules.get("causal_align") != "bottom-right":
            return np.zeros(1, int)
        if lengths is None:
            if "kv_lengths" in self.arrays:
                return None
            lengths = np.array([self.key.shape[2]])
        return lengths - self.query.shape[2]

    def _known(self, name: str, span: Span) -> Array | None:
        """Return a rule of some batch entries if its numbers are at hand."""
        if name in self.arrays:
            array = self.arrays[name]
            if isinstance(array, da.Array):
                return None
            return np.asarray(array[slice(*span)] if array.shape[0] > 1 else array)
        plain = self.rules.get(name)
        return None if plain is None else np.array([plain])
