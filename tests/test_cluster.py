"""Work on a cluster of processes, and what may go wrong there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from process import COMMAND, environment

import attncli

pytestmark = [
    pytest.mark.dask,
    # What distributed leaves open is its own.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")
zarr = pytest.importorskip("zarr")

import attncli.dask  # noqa: E402

RANDOM = np.random.default_rng(4)
QUERY, KEY, VALUE = (
    RANDOM.normal(size=(1, h, n, 32)) for h, n in ((4, 1200), (2, 2300), (2, 2300))
)


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="600MB", dashboard_address=None
    ) as made:
        yield made


@pytest.fixture
def group(folder):
    made = zarr.open_group("g.zarr", mode="w")
    for name, array in (("query", QUERY), ("key", KEY), ("value", VALUE)):
        made.create_array(name, shape=array.shape, chunks=(1, 1, 400, 32), dtype="f8")[...] = array
    return folder


def lazily(rows, keys):
    chunks = (1, 2, rows, 32), (1, 1, keys, 32), (1, 1, keys, 32)
    arrays = (QUERY, KEY, VALUE)
    return [da.from_array(a, chunks=c) for a, c in zip(arrays, chunks, strict=True)]


def test_keys_in_one_chunk_give_the_bits_of_one_machine(cluster):
    expected = attncli.attention(QUERY, KEY, VALUE, outputs="context").context
    with distributed.Client(cluster):
        whole = [da.from_array(array, chunks=-1) for array in (QUERY, KEY, VALUE)]
        made = attncli.dask.attention(*whole).context.compute()
        cut = attncli.dask.attention(*lazily(400, 2300)).context.compute()
    assert (made == expected).all()
    np.testing.assert_allclose(cut, expected, rtol=1e-12, atol=1e-14)


def test_a_killed_worker_changes_nothing(cluster):
    expected = attncli.attention(QUERY, KEY, VALUE, causal=True, query_offset=0, outputs="context")
    arrays = lazily(200, 200)
    with distributed.Client(cluster) as client:
        killed = next(iter(client.run(os.getpid).values()))
        future = client.compute(
            attncli.dask.attention(*arrays, causal=True, query_offset=0).context
        )
        time.sleep(0.5)
        os.kill(killed, signal.SIGKILL)
        made = future.result(timeout=120)
        client.wait_for_workers(2, timeout=60)
    np.testing.assert_allclose(made, expected.context, rtol=1e-11, atol=1e-13)


def test_commands_send_their_work(cluster, group, attncli):
    where = ["--scheduler", cluster.scheduler_address]
    attncli("compute", "g.zarr", "--save", "context=here.npy").good()
    attncli("compute", "g.zarr", "--save", "context=out.zarr", *where).good()
    attncli("compute", "g.zarr", "--save", "context=there.npy", *where).good()
    here = np.load("here.npy")
    there = np.load("there.npy")
    assert (zarr.open("out.zarr", mode="r")[...] == there).all()
    np.testing.assert_allclose(there, here, rtol=1e-12, atol=1e-14)
    ran = attncli("check", "g.zarr", "--expect", "out.zarr", *where).good()
    assert "queries" in ran.text
    np.save("wrong.npy", here * 2)
    ran = attncli("check", "g.zarr", "--expect", "wrong.npy", "--no-diagnose", *where)
    assert ran.code == 1
    attncli("heatmap", "g.zarr", "--head", "0", "--out", "there.png", *where).good()
    attncli("heatmap", "g.zarr", "--head", "0", "--out", "here.png").good()
    one, other = (Path(f"{name}.png").read_bytes() for name in ("here", "there"))
    assert one.partition(b"IDAT")[2] == other.partition(b"IDAT")[2]


@pytest.fixture
def dumps(folder):
    for number in range(3):
        q, k, v = (RANDOM.normal(size=(1, 2, 6, 4)) for _ in range(3))
        out = attncli.attention(q, k, v).context * (2 if number == 1 else 1)
        np.savez(f"dump{number}.npz", query=q, key=k, value=v, out=out)
    (folder / "dump3.npz").write_bytes(b"PK\3\4 broken")
    return [f"dump{number}.npz" for number in range(4)]


def test_dumps_are_judged_by_workers(cluster, dumps, attncli):
    words = ["check", *dumps, "--expect", "#out", "--json", "--no-diagnose"]
    here = attncli(*words)
    there = attncli(*words, "--scheduler", cluster.scheduler_address)
    assert (here.code, there.code) == (2, 2)
    assert [one["passed"] for one in there.json["files"]] == [True, False, True, False]
    assert there.json["files"][:3] == here.json["files"][:3]


def test_python_maps_check_over_dumps(cluster, dumps):
    files = [str(Path(file).resolve()) for file in dumps]
    with distributed.Client(cluster) as client:
        reports = client.gather(client.compute(attncli.dask.check(files)))
    assert [bool(one) for one in reports[:3]] == [True, False, True]
    assert isinstance(reports[3], attncli.AttnError)


# --- what is not there -------------------------------------------------------------------------


def test_a_scheduler_that_does_not_answer_is_one_error(group, attncli):
    started = time.monotonic()
    words = ["compute", "g.zarr", "--save", "context=out.zarr"]
    ran = attncli(*words, "--scheduler", "tcp://127.0.0.1:9")
    assert time.monotonic() - started < 15
    assert ran.code == 2
    assert "tcp://127.0.0.1:9" in ran.messages[0]
    assert attncli(*words, "--scheduler", "nonsense").code == 2
    assert attncli(*words, "--scheduler", "tcp://127.0.0.1:9", "--workers", "2").code == 2
    assert not Path("out.zarr").exists()


def test_workers_need_the_same_version(cluster, group, attncli, monkeypatch):
    monkeypatch.setattr("attncli.dask.cluster.__version__", "0.0")
    words = ["compute", "g.zarr", "--save", "out.npy", "--scheduler", cluster.scheduler_address]
    ran = attncli(*words)
    assert (ran.code, ran.messages[0].endswith("here it is 0.0")) == (2, True)


# --- a cluster of the call's own ---------------------------------------------------------------


def alive(session):
    """Return the processes of a session that are not yet gone."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_ctrl_c_stops_everything(folder):
    long = np.zeros((1, 1, 60000, 32))
    np.savez("long.npz", query=long, key=long, value=long)
    words = [*COMMAND, "compute", "long.npz", "--save", "context=out.zarr", "--workers", "1"]
    ran = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, start_new_session=True)
    while ran.poll() is None and not list(folder.glob(".attncli-*")):
        time.sleep(0.1)
    assert len(alive(ran.pid)) > 1
    os.killpg(ran.pid, signal.SIGINT)
    err = ran.communicate(timeout=60)[1].decode()
    assert ran.returncode == 130, err
    assert "Traceback" not in err
    until = time.monotonic() + 20
    while alive(ran.pid) and time.monotonic() < until:
        time.sleep(0.2)
    assert alive(ran.pid) == []
    assert {path.name for path in folder.iterdir()} == {"long.npz"}
