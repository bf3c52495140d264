"""Inputs and rules as Dask arrays whose chunks fit together, and the blocks that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from attncli.errors import ShapeError
from attncli.numerics.chunked import Chunked, Stored
from attncli.numerics.positions import alibi_slopes as paper_slopes
from attncli.problem.arguments import layout_axes, window_pair
from attncli.problem.layout import Layout
from attncli.problem.shards import ARRAY_AXES

if TYPE_CHECKING:
    from collections.abc import Mapping

Span = tuple[int, int]
Place = tuple[int, ...]
# Of a task: its name, and numbers.
Key = tuple[Any, ...]
# The axes of outputs: batch, heads, queries (l), keys (s), width.
OUTPUT_AXES = {"context": "bhld", "lse": "bhl"} | dict.fromkeys(
    ("weights", "scores", "raw", "capped"), "bhls"
)
_AXES = ARRAY_AXES | OUTPUT_AXES
# Bytes of a block of an array on disk: a worker of 600 MB holds a dozen of them. Queries of a
# block, so that all cores have some.
_BLOCK, _QUERIES = 1 << 24, 1 << 14


def as_lazy(array: Any, axes: str, share: int | None) -> da.Array:
    """Return a Dask array; others are cut into blocks of about 16 MiB.

    ``share`` query heads read the same key head, and a block of queries holds all of them. It is
    None for keys and values.
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


class Chunks:
    """The inputs, and the rules that are arrays, cut alike.

    The place of a block is the numbers of its chunk of batch entries, of heads, of queries and of
    keys.

    Parameters
    ----------
    given : mapping of str to array
        query, key and perhaps value.
    layout : str or None
    rules : mapping of str to object
        Rules of the whole.
    whole_keys : bool
        Whether a block holds all keys of a head.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        layout: str | None,
        rules: Mapping[str, Any],
        *,
        whole_keys: bool = False,
    ) -> None:
        if not 2 <= np.ndim(given["query"]) <= 4:
            raise ShapeError(f"query: expected 2 to 4 axes; found {np.shape(given['query'])}")
        axes = None if layout is None else layout_axes("layout", layout)
        self.layout = Layout.of(np.ndim(given["query"]), axes, packed=False)
        self._stored = {name: array for name, array in given.items() if isinstance(array, Chunked)}
        self.share, self.inputs = self._cut_inputs(given, whole_keys=whole_keys)
        query, key = self.inputs["query"], self.inputs["key"]
        self.whole = query.shape[2], key.shape[2]
        self.sizes = dict(zip("bhls", (*query.chunks[:3], key.chunks[2]), strict=True))
        self.spans = {letter: _spans(sizes) for letter, sizes in self.sizes.items()}
        if rules.get("kv_segment_ids") is None and rules.get("segment_ids") is not None:
            rules = {**rules, "kv_segment_ids": rules["segment_ids"]}
        self._rules = {name: self._whole_rule(name, rule) for name, rule in rules.items()}
        self.arrays = {
            name: self._cut_alike(name, rule)
            for name, rule in self._rules.items()
            if name in ARRAY_AXES and rule is not None and np.ndim(rule) > 0
        }
        self.plain = {name: rule for name, rule in self._rules.items() if name not in self.arrays}

    @property
    def read(self) -> list[da.Array]:
        """The arrays whose chunks are tasks: all but inputs on disk, which blocks read."""
        inputs = [array for name, array in self.inputs.items() if name not in self._stored]
        return [*inputs, *self.arrays.values()]

    def block(self, place: Place, *, with_sinks: bool = True) -> tuple[Any, ...]:
        """Return the attributes of a `attncli.dask.blocks.Block`, with keys of tasks for arrays."""
        start = self.spans["l"][place[2]][0], self.spans["s"][place[3]][0]
        names = [name for name in self.arrays if name in ARRAY_AXES]
        if not with_sinks and "sinks" in names:
            names.remove("sinks")
        inputs = [self._input(name, place) for name in self.inputs]
        return start, self.whole, self.plain, inputs, names, [self.chunk(n, place) for n in names]

    def chunk(self, name: str, place: Place) -> Key:
        """Return the key of the chunk of a rule or output that belongs to a block."""
        array, at = self.arrays[name], dict(zip("bhls", place, strict=False))
        sizes = zip(_letters(name, array), array.shape, strict=True)
        return (array.name, *(at.get(letter, 0) if size > 1 else 0 for letter, size in sizes))

    def add_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Cut outputs to judge like the rest; they have the axes of the inputs."""
        value = self.inputs.get("value")
        sizes = self.sizes | {"d": (0 if value is None else value.shape[3],)}
        for name, array in outputs.items():
            letters = self.layout.weight_axes + OUTPUT_AXES[name][2:]
            if name == "context":
                letters = self.layout.axes.replace("s", "l")
            shape = tuple(sum(sizes[letter]) for letter in letters)
            if np.shape(array) != shape:
                raise ShapeError(f"{name}: expected the shape {shape}; found {np.shape(array)}")
            lazy: Any = da.from_array(array, tuple(sizes[letter] for letter in letters))
            if name == "context":
                self.arrays[name] = self.layout.split(lazy, 1, name)
                continue
            kept = (slice(None) if letter in letters else None for letter in OUTPUT_AXES[name])
            self.arrays[name] = lazy[tuple(kept)]

    def is_hidden(self, place: Place) -> bool:
        """Return whether causal rule, window or lengths hide a block, as far as is known."""
        b, _, i, j = place
        queries, keys = self.whole
        rows, columns = self.spans["l"][i], self.spans["s"][j]
        lengths = self._extent("kv_lengths", b, (keys, keys), (0, keys))
        usual = (0.0, 0.0)
        if self._rules.get("causal_align") == "bottom-right":
            usual = lengths[0] - queries, lengths[1] - queries
        offsets = self._extent("query_offset", b, usual, (-np.inf, np.inf))
        window = self._rules.get("window")
        left, right = (None, None) if window is None else window_pair("window", window)
        right = 0 if self._rules.get("causal") else right
        return bool(
            columns[0] >= lengths[1]
            or (right is not None and columns[0] > rows[1] - 1 + offsets[1] + right)
            or (left is not None and columns[1] - 1 < rows[0] + offsets[0] - left)
        )

    def _cut_inputs(
        self, given: Mapping[str, Any], *, whole_keys: bool
    ) -> tuple[int, dict[str, da.Array]]:
        """Return how many query heads share a key head, and the inputs, (B, H, L, D)."""
        axes = self.layout.axes
        at = axes.find("h")
        heads, groups = (np.shape(given[n])[at] if at >= 0 else 1 for n in ("query", "key"))
        share = max(1, heads // groups)

        def four_axes(name: str) -> Any:
            lazy = as_lazy(given[name], axes, share if name == "query" else None)
            made: Any = self.layout.split(lazy, 1, name)
            # A block needs the whole width of a row.
            return made.rechunk({3: -1})

        query, key = four_axes("query"), four_axes("key")
        if key.shape[0] not in (1, query.shape[0]) or heads % groups:
            raise ShapeError(
                f"expected a batch of {query.shape[0]} or 1 and heads that divide {heads} in key; "
                f"found {key.shape}"
            )
        if any(size % share for size in query.chunks[1]):
            query = query.rechunk({1: share})
        chunks = {
            1: tuple(size // share for size in query.chunks[1]),
            2: -1 if whole_keys else key.chunks[2],
        }
        if key.shape[0] > 1:
            chunks[0] = query.chunks[0]
        others = {name: four_axes(name).rechunk(chunks) for name in given if name != "query"}
        return share, {"query": query, **others}

    def _whole_rule(self, name: str, rule: Any) -> Any:
        """Return a rule in the axes of the scores, with a number for each head where it has any."""
        heads = self.inputs["query"].shape[1]
        if name == "alibi_slopes" and rule is True:
            return paper_slopes(heads)
        if name == "sinks" and rule is not None:
            return da.broadcast_to(da.asarray(rule), (heads,))
        if name in ("mask", "bias") and np.ndim(rule) == 3 and "h" not in self.layout.axes:
            return rule[:, None]
        return rule

    def _cut_alike(self, name: str, rule: Any) -> da.Array:
        """Return a rule with the chunks of the scores."""
        array = da.asarray(rule)
        letters = zip(_letters(name, array), array.shape, strict=True)
        return array.rechunk(
            tuple(
                self.sizes[letter] if letter in self.sizes and size > 1 else (size,)
                for letter, size in letters
            )
        )

    def _input(self, name: str, place: Place) -> Any:
        """Return a block of an input: the key of a chunk, or where it lies on disk."""
        array, (b, h, i, j) = self.inputs[name], place
        at = (b if array.numblocks[0] > 1 else 0, h, i if name == "query" else j, 0)
        if name not in self._stored:
            return (array.name, *at)
        spans = (_spans(sizes)[n] for sizes, n in zip(array.chunks, at, strict=True))
        return Stored(self._stored[name], self.layout.axes, tuple(spans))

    def _extent(
        self, name: str, b: int, unless_given: tuple[float, float], unknown: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the least and the most that a rule is in some batch entries."""
        rule = self._rules.get(name)
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
    return _AXES[name][-array.ndim :] or "?" * array.ndim
