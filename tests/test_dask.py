"""Attention of Dask arrays: the answer of one machine, lazily, in blocks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import attncli

pytestmark = pytest.mark.dask
da = pytest.importorskip("dask.array")
from dask.array.utils import assert_eq  # noqa: E402

import attncli.dask  # noqa: E402

RANDOM = np.random.default_rng(0)
QUERY, KEY, VALUE = (RANDOM.normal(size=s) for s in ((2, 4, 10, 8), (2, 2, 12, 8), (2, 2, 12, 5)))
OUTPUTS = ("context", "lse", "weights", "scores")
RULES = {
    "nothing": {},
    "causal, bottom-right": {"causal": True, "causal_align": "bottom-right"},
    "causal": {"causal": True, "causal_align": "top-left"},
    "window": {"window": (3, 1), "causal_align": "top-left"},
    "lengths": {"kv_lengths": np.array([3, 12]), "query_lengths": np.array([10, 7])},
    "mask": {"mask": RANDOM.random((2, 1, 10, 12)) > 0.4},
    "a lazy mask": {"mask": RANDOM.random((10, 12)) > 0.4, "lazy": "mask"},
    "a bias of each key": {"bias": RANDOM.normal(size=(4, 1, 12))},
    "ALiBi": {"alibi_slopes": True, "causal": True, "causal_align": "top-left"},
    "sinks": {"sinks": np.array([0.1, 2, -1, 0])},
    "rope": {"rope": "half", "causal": True, "causal_align": "bottom-right"},
    "softcap": {"softcap": 2.0, "scale": 0.7},
    "padding": {"key_padding_mask": RANDOM.random((2, 12)) > 0.3},
    "segments": {
        "segment_ids": np.repeat([0, 1], 5), "kv_segment_ids": np.repeat([0, 1], 6)
    },
    "offsets": {"causal": True, "query_offset": np.array([1, 3])},
    "lazy lengths": {
        "causal": True, "causal_align": "bottom-right", "kv_lengths": np.array([11, 12]),
        "lazy": "kv_lengths",
    },
    "cosine": {"score": "cosine", "scale": 3.0},
}  # fmt: skip


def lazy(keys=5, queries=4):
    chunks = (1, 2, queries, 8), (1, 1, keys, 8), (1, 1, keys, 5)
    arrays = (QUERY, KEY, VALUE)
    return [da.from_array(a, chunks=c) for a, c in zip(arrays, chunks, strict=True)]


def on_one_machine(**rules):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", attncli.AttnWarning)
        return attncli.attention(QUERY, KEY, VALUE, outputs=OUTPUTS, **rules)


@pytest.mark.parametrize("name", RULES)
def test_blocks_give_the_answer_of_one_machine(name):
    rules = dict(RULES[name])
    made_lazy = rules.pop("lazy", None)
    expected = on_one_machine(**rules)
    if made_lazy:
        rules[made_lazy] = da.from_array(rules[made_lazy], chunks=3)
    made = attncli.dask.attention(*lazy(), outputs=OUTPUTS, **rules)
    for output in OUTPUTS:
        assert_eq(getattr(made, output), getattr(expected, output))


@pytest.mark.parametrize("layout", ["bshd", "hsd", "sd", "bsd"])
def test_layouts_come_back_as_they_were_given(layout):
    arrays = [array.swapaxes(1, 2) if layout == "bshd" else array for array in (QUERY, KEY, VALUE)]
    if layout != "bshd":
        index = {"hsd": 0, "sd": (0, 0), "bsd": (slice(None), 0)}[layout]
        arrays = [array[index] for array in arrays]
    expected = attncli.attention(*arrays, layout=layout, outputs=("context", "lse"))
    parts = [da.from_array(array, chunks=4) for array in arrays]
    made = attncli.dask.attention(*parts, layout=layout, outputs=("context", "lse"))
    assert_eq(made.context, expected.context)
    assert_eq(made.lse, expected.lse)


@pytest.mark.parametrize(
    ("queries", "keys", "rows"), [(10, 12, -1), (1, 3000, -1), (1100, 1500, 512)]
)
@pytest.mark.parametrize("outputs", [("context",), ("weights", "context"), ("lse",)], ids=str)
@pytest.mark.parametrize("rules", [{}, {"causal": True, "causal_align": "top-left"}], ids=str)
def test_keys_in_one_chunk_give_the_same_bits(rules, outputs, queries, keys, rows):
    arrays = [RANDOM.normal(size=(2, 4, count, 8)) for count in (queries, keys, keys)]
    sinks = np.arange(4.0)
    expected = attncli.attention(*arrays, sinks=sinks, outputs=outputs, **rules)
    # 512 queries are some whole blocks of the engine.
    parts = [
        da.from_array(a, chunks=(1, 2, c, -1)) for a, c in zip(arrays, (rows, -1, -1), strict=True)
    ]
    made = attncli.dask.attention(*parts, sinks=sinks, outputs=outputs, **rules)
    for name in outputs:
        np.testing.assert_array_equal(getattr(made, name).compute(), getattr(expected, name))


def test_segments_of_queries_are_those_of_keys():
    query, segments = KEY, np.repeat([0, 1, 2], 4)
    expected = attncli.attention(query, KEY, VALUE, segment_ids=segments, outputs="context")
    parts = [da.from_array(array, chunks=(1, 1, 5, -1)) for array in (query, KEY, VALUE)]
    assert_eq(attncli.dask.attention(*parts, segment_ids=segments).context, expected.context)


def test_nothing_is_computed_before_it_is_asked_for():
    def refuse(_):
        raise AssertionError("computed")

    query, key, value = (part.map_blocks(refuse, dtype=float) for part in lazy())
    made = attncli.dask.attention(query, key, value, causal=True)
    assert made.context.shape == (2, 4, 10, 5)
    assert made.context.dtype == np.float64
    assert made.context.chunks == ((1, 1), (2, 2), (4, 4, 2), (5,))


def test_hidden_blocks_make_no_task_and_graphs_stay_small():
    part = da.ones((1, 1, 640, 4), chunks=(1, 1, 64, 4))
    whole = len(attncli.dask.attention(part, part, part).context.dask)
    causal = len(attncli.dask.attention(part, part, part, causal=True).context.dask)
    window = attncli.dask.attention(part, part, part, window=(10, 10)).context.dask
    assert whole <= 2 * 100 + 60
    assert causal <= whole - 40
    assert len(window) <= whole - 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outputs": "dquery"}, "dquery"),
        ({"outputs": "context", "value": None}, "value"),
        ({"heads": 2}, "heads"),
        ({"layout": "bsd"}, "query"),
    ],
)
def test_wrong_arguments_are_told(options, words):
    query, key, value = lazy()
    with pytest.raises(attncli.AttnError, match=words):
        attncli.dask.attention(query, key, **{"value": value, **options})
