"""`attention` of Dask arrays: a graph of blocks, and a tree that merges them."""

from __future__ import annotations

from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Collection

Array = npt.NDArray[Any]
Span = tuple[int, int]
Place = tuple[int, ...]
# Parts that one task merges: few enough that a worker holds them, many enough for a flat tree.
_FAN_IN = 8
# Bytes of a block of an array on disk: a worker of 600 MB holds a dozen of them. Queries of a
# block, so that all cores have some.
_BLOCK, _QUERIES = 1 << 24, 1 << 14


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
        2-D to 4-D, in the axes of `layout`. Other arrays are cut into blocks of 16 MiB. Of
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
    share = {"query": max(1, heads[0] // heads[1])}
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    inputs = {
        name: _four_axes(as_lazy(array, axes, share.get(name)), axes)
        for name, array in given.items()
    }
    stored = {name: array for name, array in given.items() if isinstance(array, Chunked)}
    rules = {name: _with_heads(name, rule, axes) for name, rule in rules.items()}
    results = _Graph(inputs, stored, axes, rules).results(names)
    return Attention(**{name: _restored(array, name, axes) for name, array in results.items()})


def as_lazy(array: Any, axes: str, share: int | None) -> da.Array:
    """Return a Dask array; others are cut into blocks of about 16 MiB.

    ``share`` query heads read the same key head, and a block of queries holds all of them.
    """
    if isinstance(array, da.Array):
        return array
    if not isinstance(array, Chunked):
        array = np.asarray(array)
    length, width = (array.shape[axes.index(letter)] for letter in "sd")
    rows = max(1, _BLOCK // ((share or 1) * width * array.dtype.itemsize))
    # As the chunks on disk lie, where they are neither much smaller nor much larger.
    own = getattr(array, "chunks", array.shape)[axes.index("s")]
    rows = rows // own * own if own <= rows else own if own <= 4 * rows else rows
    rows = min(rows, length, length if share is None else _QUERIES)
    sizes = {"b": 1, "h": share or 1, "s": rows, "d": width}
    chunks = tuple(min(n, sizes[axis]) for n, axis in zip(array.shape, axes, strict=True))
    return da.from_array(array, chunks)


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


class _Graph:
    """The inputs and rules, cut so that their chunks fit together, and the tasks.

    A place is the numbers of a chunk of batch entries, of heads, of queries and of keys.
    """

    def __init__(
        self,
        inputs: dict[str, da.Array],
        stored: dict[str, Chunked],
        axes: str,
        rules: dict[str, Any],
    ) -> None:
        self.stored, self.axes = stored, axes
        query, key = inputs["query"], inputs["key"]
        (batch, heads), groups = query.shape[:2], key.shape[1]
        if key.shape[0] not in (1, batch) or heads % groups:
            raise ShapeError(
                f"expected a batch of {batch} or 1 and heads that divide {heads} in key; "
                f"found {key.shape}"
            )
        share = heads // groups
        if any(size % share for size in query.chunks[1]):
            query = query.rechunk({1: share})
        chunks = {1: tuple(size // share for size in query.chunks[1]), 2: key.chunks[2]}
        if key.shape[0] == batch:
            chunks[0] = query.chunks[0]
        of_keys = {name: inputs[name].rechunk(chunks) for name in inputs if name != "query"}
        self.inputs = {"query": query} | of_keys
        self.chunks = dict(zip("bhls", (*query.chunks[:3], key.chunks[2]), strict=True))
        self.spans = {letter: _spans(sizes) for letter, sizes in self.chunks.items()}
        self.given = dict(rules)
        if self.given.get("alibi_slopes") is True:
            self.given["alibi_slopes"] = paper_slopes(heads)
        if self.given.get("sinks") is not None:
            self.given["sinks"] = da.broadcast_to(da.asarray(self.given["sinks"]), (heads,))
        self.arrays = {
            name: self._cut_alike(name, rule)
            for name, rule in self.given.items()
            if name in ARRAY_AXES and rule is not None and np.ndim(rule) > 0
        }
        self.plain = {name: rule for name, rule in self.given.items() if name not in self.arrays}
        widest = np.result_type(*(array.dtype for array in self.inputs.values()))
        usual = "float64" if widest.kind in "iub" else np.result_type(widest, np.float32)
        self.dtype = np.dtype(self.plain.get("precision") or usual)

    def _cut_alike(self, name: str, rule: Any) -> da.Array:
        """Return a rule with the chunks of the scores."""
        array = da.asarray(rule)
        letters = _letters(name, array)
        return array.rechunk(
            {
                axis: self.chunks[letter] if letter in self.chunks and size > 1 else -1
                for axis, (letter, size) in enumerate(zip(letters, array.shape, strict=True))
            }
        )

    def results(self, names: tuple[str, ...]) -> dict[str, da.Array]:
        """Return the lazy outputs, (B, H, L, …)."""
        given = [*self.inputs.values(), *self.arrays.values()]
        token = tokenize(given, self.plain, names)
        graph = HighLevelGraph.merge(*(array.dask for array in given))
        rows = f"rows-{token}"
        # Several parts are merged by their lse, and weights are made with it.
        several = len(self.spans["s"]) > 1
        parts = ["context"] * ("context" in names)
        parts += ["lse"] * ("lse" in names or "weights" in names or (several and bool(parts)))
        places = [*product(*(range(len(self.spans[letter])) for letter in "bhl"))]
        if parts:
            tasks: dict[Any, Any] = {}
            for place in places:
                self._add_rows(tasks, rows, place, tuple(parts))
            graph = _with_layer(graph, rows, tasks, {array.name for array in given})
        results = {}
        for name in names:
            own = f"attention-{name}-{token}"
            sizes = [self.chunks[letter] for letter in "bhl"]
            if name in parts:
                end = (0,) if name == "context" else ()
                take = itemgetter(parts.index(name))
                tasks = {(own, *place, *end): (take, (rows, *place)) for place in places}
                sizes += [(self.inputs["value"].shape[3],)] if end else []
                needed = {rows}
            else:
                columns = range(len(self.spans["s"]))
                blocks = [(*place, column) for place in places for column in columns]
                tasks = {(own, *block): self._square(name, rows, block) for block in blocks}
                sizes.append(self.chunks["s"])
                sinks = self.arrays.get("sinks")
                needed = {array.name for array in given if array is not sinks}
                needed |= {rows} if name == "weights" else set()
            made = _with_layer(graph, own, tasks, needed)
            results[name] = da.Array(made, own, tuple(sizes), dtype=self.dtype)
        return results

    def _add_rows(
        self, tasks: dict[Any, Any], name: str, place: Place, parts: tuple[str, ...]
    ) -> None:
        """Add the task that gives some queries their outputs over all keys, and its parts."""
        columns = [c for c in range(len(self.spans["s"])) if not self._is_hidden((*place, c))]
        if len(columns) <= 1:
            column = columns[0] if columns else 0
            tasks[name, *place] = self._block((*place, column), parts, with_sinks=True)
            return
        keys: list[Any] = [(name, *place, 0, column) for column in columns]
        for key, column in zip(keys, columns, strict=True):
            tasks[key] = self._block((*place, column), parts, with_sinks=False)
        level = 0
        while len(keys) > _FAN_IN:
            level += 1
            groups = [keys[at : at + _FAN_IN] for at in range(0, len(keys), _FAN_IN)]
            keys = [(name, *place, level, at) for at in range(len(groups))]
            for key, group in zip(keys, groups, strict=True):
                tasks[key] = (merged, group, None, "float64")
        sinks = self._chunk("sinks", place) if "sinks" in self.arrays else None
        tasks[name, *place] = (merged, keys, sinks, self.dtype.name)

    def _square(self, name: str, rows: str, place: Place) -> Any:
        """Return the task of one block of weights or scores."""
        wanted = "scores" if name == "weights" else name
        block = (itemgetter(0), self._block(place, (wanted,), with_sinks=False))
        return (weights_of, block, (rows, *place[:3])) if name == "weights" else block

    def _block(self, place: Place, outputs: tuple[str, ...], *, with_sinks: bool) -> Any:
        """Return the task of one block of queries and keys."""
        query, key = self.inputs["query"], self.inputs["key"]
        start = self.spans["l"][place[2]][0], self.spans["s"][place[3]][0]
        block = Block(start, (query.shape[2], key.shape[2]), self.plain, outputs)
        names = [name for name in self.arrays if with_sinks or name != "sinks"]
        inputs = [self._input(name, place) for name in self.inputs]
        return block_outputs, block, inputs, names, [self._chunk(name, place) for name in names]

    def _input(self, name: str, place: Place) -> Any:
        """Return a block of an input: the key of a chunk, or where it lies on disk."""
        array, (b, h, i, j) = self.inputs[name], place
        at = (b if array.numblocks[0] > 1 else 0, h, i if name == "query" else j, 0)
        if name not in self.stored:
            return (array.name, *at)
        spans = (_spans(sizes)[n] for sizes, n in zip(array.chunks, at, strict=True))
        return Stored(self.stored[name], self.axes, tuple(spans))

    def _chunk(self, name: str, place: Place) -> Any:
        """Return the key of the chunk of a rule that holds for a block."""
        array, at = self.arrays[name], dict(zip("bhls", place, strict=False))
        sizes = zip(_letters(name, array), array.shape, strict=True)
        return (array.name, *(at.get(letter, 0) if size > 1 else 0 for letter, size in sizes))

    def _is_hidden(self, place: Place) -> bool:
        """Return whether causal rule, window or lengths hide a block, as far as is known."""
        b, _, i, j = place
        queries, keys = self.inputs["query"].shape[2], self.inputs["key"].shape[2]
        rows, columns = self.spans["l"][i], self.spans["s"][j]
        lengths = self._extent("kv_lengths", b, (keys, keys), (0, keys))
        usual = (0.0, 0.0)
        if self.given.get("causal_align") == "bottom-right":
            usual = lengths[0] - queries, lengths[1] - queries
        offsets = self._extent("query_offset", b, usual, (-np.inf, np.inf))
        window = self.given.get("window")
        left, right = (None, None) if window is None else window_pair("window", window)
        right = 0 if self.given.get("causal") else right
        return bool(
            columns[0] >= lengths[1]
            or (right is not None and columns[0] > rows[1] - 1 + offsets[1] + right)
            or (left is not None and columns[1] - 1 < rows[0] + offsets[0] - left)
        )

    def _extent(
        self, name: str, b: int, unless_given: tuple[float, float], unknown: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the least and the most that a rule is in some batch entries."""
        rule = self.given.get(name)
        if rule is None:
            return unless_given
        if isinstance(rule, da.Array):
            return unknown
        own = np.asarray(rule).reshape(-1)
        own = own[slice(*self.spans["b"][b])] if len(own) > 1 else own
        return own.min(), own.max()


def _spans(chunks: tuple[int, ...]) -> list[Span]:
    stops = np.cumsum(chunks).tolist()
    return [(stop - size, stop) for stop, size in zip(stops, chunks, strict=True)]


def _letters(name: str, array: da.Array) -> str:
    """Return the axes of a rule, such as ``ls``; ``?`` where an axis is cut nowhere."""
    return ARRAY_AXES[name][-array.ndim :] or "?" * array.ndim


def _with_layer(
    graph: HighLevelGraph, name: str, tasks: dict[Any, Any], needed: set[str]
) -> HighLevelGraph:
    layers, links = {**graph.layers, name: tasks}, {**graph.dependencies, name: needed}
    return HighLevelGraph(layers, links)
