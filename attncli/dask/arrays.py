"""`attention` of Dask arrays: a graph of blocks, and a tree that merges them."""

from __future__ import annotations

from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from attncli.dask.blocks import block_outputs, block_weights, merged
from attncli.dask.chunks import OUTPUT_AXES, Chunks
from attncli.errors import UsageError
from attncli.problem.result import Attention

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from attncli.dask.chunks import Key, Place

# Parts that one task merges: few enough that a worker holds them, many enough for a flat tree.
_FAN_IN = 8


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

    The chunks of `query` cut batch entries, heads and queries, and those of `key` cut the keys.
    Several chunks of keys are merged. A block that the causal rule, the window or the lengths hide
    makes no task.

    The result is that of `attncli.attention` with the same outputs. It is the same bit for bit
    where the keys of a head are in one chunk, and so are its queries. They may also be cut between
    the blocks of the engine: context and lse of 65,536 queries or more keep their bits if chunks
    have a multiple of 6,144 queries. Otherwise the last bits differ.

    Parameters
    ----------
    query, key, value : dask.array.Array
        2-D to 4-D, in the axes of `layout`. Other arrays are cut into blocks of 16 MiB. An array
        on disk (`attncli.numerics.chunked.Chunked`) is read block by block, so that no worker
        keeps it.
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
    for name in names:
        if name not in OUTPUT_AXES:
            raise UsageError(f"outputs: expected some of {', '.join(OUTPUT_AXES)}; found {name!r}")
    if "context" in names and value is None:
        raise UsageError("the context needs a value", hint="give value, or ask for weights only")
    for name in ("heads", "kv_heads", "threads"):
        if rules.pop(name, None) is not None:
            raise UsageError(f"{name}: attncli.dask takes no such option; split the heads first")
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    chunks = Chunks(given, layout, rules)
    form, results = chunks.layout, _Graph(chunks, names).results()
    return Attention(
        **{n: form.join(a) if n == "context" else form.drop(a) for n, a in results.items()}
    )


class _Graph:
    """The tasks of the blocks, of their merge along the keys, and of the outputs.

    Where the keys are in one chunk, a block has all outputs of its queries. Otherwise context and
    lse of several blocks are merged, and the weights of a block are made with the merged lse.
    """

    def __init__(self, chunks: Chunks, names: tuple[str, ...]) -> None:
        self._chunks, self._names = chunks, names
        self._columns = len(chunks.spans["s"])
        self._of_rows = names if self._columns == 1 else _merged_for(names)
        self._places = [*product(*(range(len(chunks.spans[letter])) for letter in "bhl"))]
        inputs = [*chunks.inputs.values()]
        widest = np.result_type(*(array.dtype for array in inputs))
        usual = "float64" if widest.kind in "iub" else np.result_type(widest, np.float32)
        self._dtype = np.dtype(chunks.plain.get("precision") or usual)
        token = tokenize(inputs, [*chunks.arrays.items()], chunks.plain, names)
        # Names of tasks. Dask gives tasks of a name without dependencies to whoever is free.
        self._rows, self._parts, self._tree, self._own = (
            f"{name}-{token}" for name in ("rows", "part", "merged", "attention")
        )

    def results(self) -> dict[str, da.Array]:
        """Return the lazy outputs, (B, H, L, …)."""
        read = self._chunks.read
        graph = HighLevelGraph.merge(*(array.dask for array in read))
        if self._of_rows:
            tasks = {key: task for place in self._places for key, task in self._row_tasks(place)}
            graph = _with_layer(graph, self._rows, tasks, {array.name for array in read})
        return {name: self._output(name, graph) for name in self._names}

    def _output(self, name: str, graph: HighLevelGraph) -> da.Array:
        """Return one output, given the graph of what it needs."""
        chunks, own = self._chunks, f"{self._own}-{name}"
        sizes = [chunks.sizes[letter] for letter in "bhl"]
        if name == "context":
            sizes.append((chunks.inputs["value"].shape[3],))
        elif name != "lse":
            sizes.append(chunks.sizes["s"])
        if name in self._of_rows:
            take, end = itemgetter(self._of_rows.index(name)), (0,) * (len(sizes) - 3)
            tasks = {(own, *at, *end): (take, (self._rows, *at)) for at in self._places}
            needed = {self._rows}
        else:
            places = [(*at, column) for at in self._places for column in range(self._columns)]
            tasks = {(own, *place): self._square(name, place) for place in places}
            sinks = chunks.arrays.get("sinks")
            needed = {array.name for array in chunks.read if array is not sinks}
            needed |= {self._rows} if name == "weights" else set()
        made = _with_layer(graph, own, tasks, needed)
        return da.Array(made, own, tuple(sizes), dtype=self._dtype)

    def _row_tasks(self, place: Place) -> Iterator[tuple[Key, Any]]:
        """Yield the tasks that give some queries their outputs over all keys, with their keys."""
        chunks = self._chunks
        seen = [c for c in range(self._columns) if not chunks.is_hidden((*place, c))] or [0]
        if len(seen) == 1:
            block = chunks.block((*place, *seen))
            yield (self._rows, *place), (block_outputs, self._of_rows, *block)
            return
        keys: list[Any] = [(self._parts, *place, column) for column in seen]
        for key, column in zip(keys, seen, strict=True):
            block = chunks.block((*place, column), with_sinks=False)
            yield key, (block_outputs, self._of_rows, *block)
        level = 0
        while len(keys) > _FAN_IN:
            level += 1
            groups = [keys[at : at + _FAN_IN] for at in range(0, len(keys), _FAN_IN)]
            keys = [(self._tree, *place, level, at) for at in range(len(groups))]
            for key, group in zip(keys, groups, strict=True):
                yield key, (merged, group, None, "float64")
        sinks = chunks.chunk("sinks", place) if "sinks" in chunks.arrays else None
        yield (self._rows, *place), (merged, keys, sinks, self._dtype.name)

    def _square(self, name: str, place: Place) -> Any:
        """Return the task of one block of weights or scores, where keys are in several chunks."""
        block = self._chunks.block(place, with_sinks=False)
        if name == "weights":
            scores = (block_outputs, ("scores",), *block)
            return block_weights, scores, (self._rows, *place[:3])
        return itemgetter(0), (block_outputs, (name,), *block)


def _merged_for(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is merged: context by its lse, and the lse that weights are made with."""
    context = ("context",) if "context" in names else ()
    return (*context, "lse") if {"context", "lse", "weights"} & {*names} else ()


def _with_layer(
    graph: HighLevelGraph, name: str, tasks: dict[Key, Any], needed: set[str]
) -> HighLevelGraph:
    layers, links = {**graph.layers, name: tasks}, {**graph.dependencies, name: needed}
    return HighLevelGraph(layers, links)
