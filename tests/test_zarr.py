"""Groups of Zarr as problems, and results that are written chunk by chunk."""

from __future__ import annotations

import signal
import subprocess
import time

import numpy as np
import pytest
from process import COMMAND, environment, measured

pytestmark = pytest.mark.dask
pytest.importorskip("dask")
zarr = pytest.importorskip("zarr")

RANDOM = np.random.default_rng(8)
# More than a megabyte each: smaller arrays are read whole.
QUERY, KEY, VALUE = (
    RANDOM.normal(size=(1, h, n, 32)) for h, n in ((4, 1200), (2, 2300), (2, 2300))
)
MASK = RANDOM.random((1200, 2300)) > 0.3
RULES = ["--causal", "--causal-align", "bottom-right"]


def group(name, arrays, layout=3, chunks=500):
    made = zarr.open_group(name, mode="w", zarr_format=layout)
    for member, array in arrays.items():
        size = tuple(min(n, chunks) for n in array.shape)
        made.create_array(member, shape=array.shape, chunks=size, dtype=array.dtype)[...] = array


def by_hand(query=QUERY, key=KEY, value=VALUE, seen=True):
    key, value = (np.repeat(array, 2, 1) for array in (key, value))
    scores = query @ key.swapaxes(2, 3) / np.sqrt(32)
    powers = np.where(seen, np.exp(scores), 0)
    total = powers.sum(-1, keepdims=True)
    return powers @ value / total, np.log(total[..., 0])


CAUSAL = np.arange(2300) <= np.arange(1200)[:, None] + 1100


@pytest.mark.parametrize("layout", [2, 3])
def test_a_group_is_computed_and_judged_block_by_block(layout, folder, attncli):
    arrays = {"query": QUERY, "key": KEY, "value": VALUE, "mask": MASK}
    group("g.zarr", arrays, layout)
    saves = ["--show", "context,lse", "--save", "context=out.zarr", "--save", "both.npz"]
    attncli("compute", "g.zarr", *RULES, *saves).good()
    context, lse = by_hand(seen=CAUSAL & MASK)
    made = zarr.open("out.zarr", mode="r")
    np.testing.assert_allclose(made[...], context, rtol=1e-11, atol=1e-12)
    with np.load("both.npz") as both:
        np.testing.assert_allclose(both["lse"], lse, rtol=1e-12)
    judged = ["check", "g.zarr", *RULES, "--expect"]
    attncli(*judged, "out.zarr", "--expect", "lse=both.npz").good()
    group("wrong.zarr", {"context": context + (np.arange(4) == 3)[:, None, None]})
    assert attncli(*judged, "wrong.zarr#context", "--no-diagnose").code == 1


def test_several_outputs_are_a_group_and_an_old_one_is_replaced(folder, attncli):
    group("g.zarr", {"query": QUERY, "key": KEY, "value": VALUE})
    for names in ("context", "context,lse"):
        attncli("compute", "g.zarr", "--show", names, "--save", "out.zarr").good()
    assert sorted(zarr.open("out.zarr", mode="r").keys()) == ["context", "lse"]
    assert sorted(path.name for path in folder.iterdir()) == ["g.zarr", "out.zarr"]


def test_info_and_heatmap_and_others_read_it(folder, attncli):
    group("g.zarr", {"query": QUERY, "key": KEY, "value": VALUE, "bias": np.ones(4)[:, None, None]})
    members = attncli("info", "g.zarr", "--json").good().json["files"][0]["members"]
    assert {one["name"]: one["shape"] for one in members}["key"] == [1, 2, 2300, 32]
    known = next(one for one in members if one["name"] == "key")
    assert known["max"] == KEY.max()
    np.savez("g.npz", query=QUERY, key=KEY, value=VALUE, bias=np.ones(4)[:, None, None])
    drawn = ["--head", "1", "--rows", "0:40", "--cols", "0:30", "--out"]
    attncli("heatmap", "g.zarr", *RULES, *drawn, "zarr.png").good()
    attncli("heatmap", "g.npz", *RULES, *drawn, "npz.png").good()
    one, other = ((folder / f"{name}.png").read_bytes() for name in ("zarr", "npz"))
    assert one.partition(b"IDAT")[2] == other.partition(b"IDAT")[2]
    words = ["explain", "{}", *RULES, "--head", "1", "--batch", "0", "--query", "7"]
    one, other = (attncli(*[w.format(f) for w in words]).good() for f in ("g.zarr", "g.npz"))
    assert one.out == other.out


def test_what_cannot_be_written_is_told_first(folder, attncli):
    group("g.zarr", {"query": QUERY, "key": KEY, "value": VALUE})
    (folder / "mine.zarr").mkdir()
    (folder / "mine.zarr" / "letter.txt").write_text("dear")
    for save in ("g.zarr", "mine.zarr", "nowhere/out.zarr"):
        ran = attncli("compute", "g.zarr", "--save", f"context={save}")
        assert (ran.code, ran.messages[0][:7]) == (2, "error: "), save
    assert (folder / "mine.zarr" / "letter.txt").read_text() == "dear"
    for words in (["--average-heads"], ["--keys", "0:5"], ["--show", "stats"], ["--batch", "2"]):
        ran = attncli("compute", "g.zarr", *words, "--save", "context=out.zarr")
        assert (ran.code, ran.messages[-1][:6] in ("error:", "hint: ")) == (2, True), words
    assert sorted(path.name for path in folder.iterdir()) == ["g.zarr", "mine.zarr"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_leaves_nothing_under_the_name(number, folder):
    long = np.zeros((1, 2, 20000, 32))
    group("g.zarr", {"query": long, "key": long, "value": long}, chunks=2000)
    words = [*COMMAND, "compute", "g.zarr", "--save", "context=out.zarr", "--threads", "1"]
    ran = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE)
    while ran.poll() is None and not list(folder.glob(".attncli-*")):
        time.sleep(0.05)
    ran.send_signal(number)
    err = ran.communicate(timeout=60)[1]
    assert b"Traceback" not in err
    left = {
        path.name for path in folder.iterdir() if number != signal.SIGKILL or path.suffix != ".tmp"
    }
    assert left == {"g.zarr"}


def test_keys_are_never_whole_in_memory(folder):
    made = zarr.open_group("g.zarr", mode="w")
    for name, rows in (("query", 64), ("key", 400_000), ("value", 400_000)):
        array = made.create_array(
            name, shape=(1, 1, rows, 64), chunks=(1, 1, 20000, 64), dtype="f4"
        )
        for start in range(0, rows, 100_000):
            part = RANDOM.normal(size=(1, 1, min(100_000, rows - start), 64))
            array[:, :, start : start + 100_000] = part
    # Keys and values take 410 MB in float64; what Python, Dask and Zarr import takes 150.
    measured(
        *("compute", "g.zarr", "--save", "context=out.zarr"), most_megabytes=400, most_seconds=60
    )


def test_without_zarr_it_is_one_line(folder, attncli, monkeypatch):
    group("g.zarr", {"query": QUERY, "key": KEY, "value": VALUE})
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    ran = attncli("info", "g.zarr")
    assert ran.code == 2
    assert "pip install" in ran.messages[-1]
