"""`check` of many dumps, and of one problem that is too large to be held: block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import numpy as np

from attncli.errors import AttnError
from attncli.errors.text import places
from attncli.gather import load, load_output
from attncli.problem.posing import pose
from attncli.problem.shards import ARRAY_AXES, placed
from attncli.referee import check as judged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.report import CheckReport

# Numbers of query and context in a block: 16 MB of each in float64.
_NUMBERS = 1 << 21


def check(
    files: Sequence[str],
    *,
    expect: Mapping[str, str] | str = "out",
    time_limit: float = 10.0,
    **options: Any,
) -> list[Any]:
    """Judge dumps, each by its own inputs and outputs, lazily.

    Parameters
    ----------
    files : sequence of str
        Problem files that hold outputs, too, where workers see them.
    expect : str or mapping of str to str
        The member that holds the context, or the members of outputs by their names:
        ``{"context": "out", "lse": "lse"}``.
    time_limit : float
        Seconds for the diagnosis of one dump.
    **options
        As of `attncli.load`: rules that hold for all.

    Returns
    -------
    list of dask.delayed.Delayed
        Of a `CheckReport` for each file, or of the `AttnError` that kept it from being judged.

    Examples
    --------
    >>> import dask
    >>> import attncli.dask
    >>> reports = attncli.dask.check(["layer-000-call-0000.safetensors"], causal=True)
    >>> dask.compute(*reports)  # doctest: +SKIP
    """
    members = {"context": expect} if isinstance(expect, str) else dict(expect)
    judge = dask.delayed(_judge_dump, pure=False)
    return [judge(str(file), members, time_limit, options) for file in files]


def _judge_dump(
    file: str, members: Mapping[str, str], time_limit: float, options: Mapping[str, Any]
) -> CheckReport | AttnError:
    try:
        problem = load(file, **options)
        expected = {name: load_output(file, member) for name, member in members.items()}
        return judged(expected, problem, time_limit=time_limit, threads=1)
    except AttnError as error:
        return error


class Block(NamedTuple):
    """Some queries of one batch entry, and of the heads that share a key.

    Attributes
    ----------
    arguments : mapping of str to object
        The arguments of `attncli.pose`; large arrays are on disk.
    axes : str
        The layout.
    batch, group : int
    rows : (int, int)
    """

    arguments: Mapping[str, Any]
    axes: str
    batch: int
    group: int
    rows: tuple[int, int]

    @property
    def share(self) -> int:
        """How many query heads read one head of the keys."""
        query, key = (self._counts(name)["h"] for name in ("query", "key"))
        return max(1, query // key)

    def __str__(self) -> str:
        first = self.group * self.share
        heads = f"heads {first} to {first + self.share - 1}" if self.share > 1 else ""
        alone = None if heads or "h" not in self.axes else self.group
        words = places({"batch": self.batch if "b" in self.axes else None, "head": alone})
        return ", ".join(
            [*words, *([heads] if heads else []), f"queries {self.rows[0]}:{self.rows[1]}"]
        )

    def _counts(self, name: str) -> dict[str, int]:
        sizes = dict(zip(self.axes, self.arguments[name].shape, strict=True))
        return {"b": 1, "h": 1} | sizes

    def _spans(self) -> dict[str, tuple[int, int]]:
        first = self.group * self.share
        return {
            "b": (self.batch, self.batch + 1),
            "h": (first, first + self.share),
            "l": self.rows,
        }

    def problem(self) -> Problem:
        """Return the problem of the block, which holds the keys of one head."""
        spans, given = self._spans(), dict(self.arguments)
        queries, keys = (self._counts(name)["s"] for name in ("query", "key"))
        if given.get("segment_ids") is not None and given.get("kv_segment_ids") is None:
            given["kv_segment_ids"] = given["segment_ids"]
        given = placed(
            given, (self.rows[0], 0), (queries, keys), (self.rows[1] - self.rows[0], keys)
        )
        for name, letters in ARRAY_AXES.items():
            rule = given.get(name)
            if rule is not None and np.ndim(rule):
                if "h" not in self.axes and np.ndim(rule) < 4:
                    letters = letters.replace("h", "")  # noqa: PLW2901 - (B, L, S)
                given[name] = _cut(np.asarray(rule), letters[-np.ndim(rule) :], spans)
        given["query"] = _cut(given["query"], self.axes.replace("s", "l"), spans)
        for name in ("key", "value"):
            if given.get(name) is not None:
                own = {**spans, "h": (self.group, self.group + 1)}
                given[name] = _cut(given[name], self.axes, own)
        for name in ("query_labels", "key_labels"):
            given.pop(name, None)
        return pose(**{**given, "layout": self.axes})

    def report(self, outputs: Mapping[str, Any], **settings: Any) -> CheckReport:
        """Judge the outputs of the block, given those of the whole."""
        square = "".join(axis for axis in "bh" if axis in self.axes) + "ls"
        letters = {"context": self.axes.replace("s", "l")}
        expected = {
            name: _cut(array, letters.get(name, square), self._spans())
            for name, array in outputs.items()
        }
        return judged(expected, self.problem(), threads=1, **settings)


def blocks_of(arguments: Mapping[str, Any], axes: str) -> Iterator[Block]:
    """Yield the blocks of a problem."""
    whole = Block(arguments, axes, 0, 0, (0, 1))
    counts, groups = whole._counts("query"), whole._counts("key")["h"]  # noqa: SLF001 - its own
    step = max(1, _NUMBERS // (counts["d"] * whole.share))
    for batch in range(counts["b"]):
        for group in range(groups):
            for start in range(0, counts["s"], step):
                rows = start, min(start + step, counts["s"])
                yield Block(arguments, axes, batch, group, rows)


def _cut(array: Any, letters: str, spans: Mapping[str, tuple[int, int]]) -> Any:
    """Return the part of an array, whose axes the letters name, that a block reads."""
    index = (
        slice(*spans[letter]) if letter in spans and size > 1 else slice(None)
        for letter, size in zip(letters, array.shape, strict=False)
    )
    return np.asarray(array[tuple(index)])
