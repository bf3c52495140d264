"""What the engine holds: nothing that was not asked for, and never a row of tiles too many."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from process import long_but

from attncli import attention

ALL = ("raw", "capped", "scores", "weights", "context", "lse")

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="peaks are read as Unix counts them"
)

# Peaks are of a process of its own: allocations of BLAS and of page tables count too.
PEAK = """
import re, resource, sys
import numpy as np
from attncli import attention, pose
from attncli.engine import attend, result_shapes

def peak():
    # On Linux getrusage begins with the peak of who started the process, the tests.
    if sys.platform.startswith("linux"):
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1e3
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6

def normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)

small = normal(1, 600, 32)
attention(small, small, small, layout="hsd", threads=2)
{setup}
before = peak()
"""


def grown(setup, *works):
    """Return by how many megabytes a process had grown at its peak after each of its works."""
    script = PEAK.format(setup=setup)
    script += "".join(f"{work}\nprint(peak() - before)\n" for work in works)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return [float(line) for line in done.stdout.split()]


def test_context_and_lse_hold_no_row_of_keys_for_every_query():
    # Scores of 6,144 x 6,144 would take 151 MB.
    rules = ["", "causal=True", "window=(64, 0)", "alibi_slopes=True"]
    rules.append("kv_lengths=5000, sinks=[1.0]")
    call = "attention(q, q, q, layout='hsd', outputs=('context', 'lse'), threads=2, {})".format
    after = grown("q = normal(1, 6144, 16)", *map(call, rules))
    assert max(after) < 20, dict(zip(rules, after, strict=True))


@pytest.mark.parametrize(
    "dtype",
    long_but(
        ["f4", "f2", ">f4", "i1", "[('bfloat16', '<u2')]"],
        *("i1", "[('bfloat16', '<u2')]"),
    ),
)
def test_a_bias_of_any_numbers_is_read_tile_by_tile(dtype):
    # As float32 it would take 100 MB more, as float64 200.
    setup = f"q = normal(1, 5000, 8); bias = np.zeros((5000, 5000), np.dtype({dtype!r}))"
    if dtype.startswith("["):
        setup = setup.replace(f"np.dtype({dtype!r})", f"np.dtype({dtype})")
    work = "attention(q, q, q, layout='hsd', outputs=('context',), threads=2, bias=bias)"
    assert grown(setup + "; bias[...] = bias", work)[0] < 20


@pytest.mark.parametrize(("dtype", "seen", "means"), [("f4", 1, "keep"), ("?", 0, "drop")])
def test_a_mask_of_numbers_or_of_what_is_dropped_is_read_tile_by_tile(dtype, seen, means):
    # As booleans it would take 25 MB more.
    setup = f"q = normal(1, 5000, 8); mask = np.full((5000, 5000), {seen}, '{dtype}')"
    setup += f"; mask[:, 4000:] = {1 - seen}"
    work = "attention(q, q, q, layout='hsd', outputs=('context',), threads=2, mask=mask"
    assert grown(setup, f"{work}, mask_means='{means}')")[0] < 15


def test_twice_as_long_takes_twice_the_memory_not_four_times():
    call = "attention({0}, {0}, {0}, layout='hsd', outputs=('context',), threads=2)".format
    setup = "long = normal(1, 12288, 8); short = long[:, :6144].copy()"
    short, long = grown(setup, call("short"), call("long"))
    # Four times the scores would be 450 MB more than the first.
    assert long - short < 5


def test_half_precision_is_widened_tile_by_tile():
    # Made of a few rows: 200,000 in float32 would already be a peak to hide behind.
    setup = (
        "q = normal(1, 200, 64); k = np.tile(q.astype(np.float16), (1, 1000, 1)); q = q[:, :100]"
    )
    work = "attention(q, k, k, layout='hsd', outputs=('context',), threads=2)"
    # Keys and values of 25.6 MB each would take twice as much in float32.
    assert grown(setup, work)[0] < 20


@pytest.mark.parametrize(
    ("heads", "work"),
    [
        (1, 'attend(problem, ("weights",), into={"weights": weights[None, None]}, threads=2)'),
        pytest.param(
            *(2, "average_weights(problem, into=weights, threads=2)"), marks=pytest.mark.long
        ),
    ],
)
def test_weights_stream_into_a_file_that_is_larger_than_memory_may_be(tmp_path, heads, work):
    # 144 MB of weights; the process may have 96 MB of memory beside mapped files.
    script = f"""
import resource, numpy as np
from attncli import attention, pose
from attncli.engine import attend
from attncli.engine.averaging import average_weights

x = np.random.default_rng(0).standard_normal(({heads}, 6_000, 8), np.float32)
attention(x[:, :700], x[:, :700], x[:, :700], layout="hsd", threads=2)
problem = pose(x, x, layout="hsd")
weights = np.memmap({str(tmp_path / "w")!r}, np.float32, "w+", shape=(6_000, 6_000))
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + 96_000_000,) * 2)
{work}
weights.flush()
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits on data are Linux's")
    subprocess.run([sys.executable, "-c", script], check=True)
    weights = np.memmap(tmp_path / "w", np.float32, "r", shape=(6_000, 6_000))
    for row in (0, 4_321, 5_999):
        assert weights[row].sum(dtype=float) == pytest.approx(1, abs=1e-5)
        assert (weights[row] > 0).all()


def test_a_memory_mapped_file_is_not_read_into_memory(tmp_path):
    path = tmp_path / "k.npy"
    np.save(path, np.ones((1, 50_000, 64), np.float32))
    query, key = np.ones((1, 600, 64), np.float32), np.load(path, mmap_mode="r")
    tracemalloc.start()
    try:
        attention(query, key, key, layout="hsd", outputs=("context",), threads=2)
        held = tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
    # The file has 12.8 MB.
    assert held < 8
