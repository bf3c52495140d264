"""`check` of many dumps, and of one problem that is too large to be held: block by block."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dask
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from attncli.dask.blocks import Block
from attncli.dask.chunks import Chunks
from attncli.errors import AttnError
from attncli.errors.names import INPUTS
from attncli.errors.text import places
from attncli.gather import load, load_output
from attncli.referee import check as judged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.dask.chunks import Place
    from attncli.problem.layout import Layout
    from attncli.referee.report import CheckReport


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


def check_blocks(
    arguments: Mapping[str, Any], outputs: Mapping[str, Any], **settings: Any
) -> dict[str, Delayed]:
    """Judge one problem block by block, lazily. A block holds the keys of one head.

    Parameters
    ----------
    arguments : mapping of str to object
        Those of `attncli.attention`; arrays may be on disk.
    outputs : mapping of str to array
        What to judge.
    **settings
        As of `attncli.check`.

    Returns
    -------
    dict of str to dask.delayed.Delayed
        By the place of each block in words: its `CheckReport`, or the `AttnError` that kept it
        from being judged.
    """
    given = {name: arguments[name] for name in INPUTS if arguments.get(name) is not None}
    gone = {*INPUTS, "layout", "query_labels", "key_labels"}
    rules = {name: rule for name, rule in arguments.items() if name not in gone}
    chunks = Chunks(given, arguments.get("layout"), rules, whole_keys=True)
    chunks.add_outputs(outputs)
    own = f"report-{uuid4()}"
    blocks = [(*at, 0) for at in product(*(range(len(chunks.spans[letter])) for letter in "bhl"))]
    tasks = {}
    for place in blocks:
        found = [chunks.chunk(name, place) for name in outputs]
        block = chunks.block(place)
        tasks[own, *place] = (_judge_block, chunks.layout, [*outputs], found, settings, *block)
    graph = HighLevelGraph.from_collections(own, tasks, chunks.read)
    return {_words(chunks, place): Delayed((own, *place), graph, layer=own) for place in blocks}


def _judge_block(
    layout: Layout, names: list[str], outputs: list[Any], settings: Mapping[str, Any], *block: Any
) -> CheckReport | AttnError:
    expected = {
        name: layout.join(array) if name == "context" else layout.drop(array)
        for name, array in zip(names, outputs, strict=True)
    }
    try:
        problem = replace(Block(*block).problem(), layout=layout, shard=None)
        return judged(expected, problem, threads=1, **settings)
    except AttnError as error:
        return error


def _words(chunks: Chunks, place: Place) -> str:
    """Return where a block lies: ``batch 0, heads 4 to 7, queries 0:16384``."""
    axes = chunks.layout.weight_axes
    (batch, _), (head, stop), rows = (
        chunks.spans[letter][n] for letter, n in zip("bhl", place, strict=False)
    )
    alone = stop == head + 1
    words = places(
        {"batch": batch if "b" in axes else None, "head": head if "h" in axes and alone else None}
    )
    heads = [] if alone else [f"heads {head} to {stop - 1}"]
    return ", ".join([*words, *heads, f"queries {rows[0]}:{rows[1]}"])
