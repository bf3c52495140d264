"""Any number of threads gives the same bits, and none is left behind, whatever happens."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from process import long_but
from threadpoolctl import threadpool_info, threadpool_limits

from attncli import attention, pose, solve
from attncli.engine import plan
from attncli.errors import DataError
from attncli.numerics.threads import cores, pool

OUTPUTS = ("weights", "context", "lse")


def blas_threads():
    return [
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    ]


def large(*, heads=2, queries=600, keys=900, width=32, dtype="float32"):
    random = np.random.default_rng(0)
    query = random.standard_normal((heads, queries, width), dtype)
    key, value = random.standard_normal((2, heads, keys, width), dtype)
    return query, key, value


@pytest.fixture(autouse=True)
def threads_from_the_start(monkeypatch):
    """Use threads even where they do not pay."""
    monkeypatch.setattr(plan, "WAKING", 0)


class TestTheSameBits:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"causal": True, "causal_align": "bottom-right"},
            {"window": (300, 20), "query_offset": 200, "sinks": [0.5, 2]},
            {"alibi_slopes": True, "softcap": 20.0, "scale": 3},
        ],
        ids=lambda options: "-".join(options) or "plain",
    )
    @pytest.mark.parametrize("outputs", [OUTPUTS, ("context", "lse")], ids="-".join)
    @pytest.mark.filterwarnings("ignore:.*no alignment given")
    def test_on_1_2_3_and_7_threads(self, options, outputs):
        qkv = large()
        one, *others = [
            attention(*qkv, layout="hsd", outputs=outputs, threads=threads, **options)
            for threads in (1, 2, 3, 7)
        ]
        for other in others:
            for name in outputs:
                assert np.array_equal(getattr(one, name), getattr(other, name)), name

    def test_where_one_query_has_many_keys(self):
        # Fewer blocks than threads: the keys are cut.
        qkv = large(queries=1, keys=40_000)
        one, *others = [
            attention(*qkv, layout="hsd", outputs=("context",), threads=threads).context
            for threads in (1, 2, 3, 7)
        ]
        assert all(np.array_equal(one, other) for other in others)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("options", [{}, {"softcap": 5}, {"score": "general"}])
    @pytest.mark.parametrize("sizes", [(16, 130, 64), (1, 1000, 64), (600, 900, 8)])
    def test_whatever_blas_was_told_before(self, sizes, options, dtype):
        queries, keys, width = sizes
        random = np.random.default_rng(0)
        shapes = (4, queries, width), (1, keys, width), (1, keys, width)
        qkv = [random.standard_normal(shape).astype(dtype) for shape in shapes]
        if "score" in options:
            options = {**options, "score_weight": random.standard_normal((width, width))}
        answers = []
        for limit in (1, 2, 4):
            with threadpool_limits(limit):
                answers.append(attention(*qkv, layout="hsd", outputs=("context",), **options))
        one, *others = [answer.context for answer in answers]
        assert all(np.array_equal(one, other) for other in others)

    def test_in_several_calls_at_once(self):
        qkv = large()
        expected = attention(*qkv, layout="hsd", outputs=("context",)).context
        found = []

        def call():
            found.append(attention(*qkv, layout="hsd", outputs=("context",), threads=2).context)

        with threadpool_limits(2, user_api="blas"):
            callers = [threading.Thread(target=call) for _ in range(5)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            assert blas_threads() == [2] * len(blas_threads())
        assert len(found) == 5
        assert all(np.array_equal(expected, each) for each in found)


class TestBlasGetsItsThreadsBack:
    @pytest.mark.parametrize("count", [1, 2])
    def test_after_an_answer(self, count):
        with threadpool_limits(count, user_api="blas"):
            attention(*large(), layout="hsd", outputs=("context",))
            assert blas_threads() == [count] * len(blas_threads())

    def test_after_an_error(self):
        query, key, value = large()
        with threadpool_limits(2, user_api="blas"):
            with pytest.raises(DataError, match="exceed the range"):
                attention(query * 1e30, key * 1e30, value, layout="hsd", threads=2)
            assert blas_threads() == [2] * len(blas_threads())

    def test_in_whatever_thread(self):
        with ThreadPoolExecutor(1) as other:
            for _ in range(2):
                other.submit(attention, *large(), layout="hsd", outputs=("context",)).result()
                attention(*large(), layout="hsd", outputs=("context",))
            for count in (1, 2):
                with threadpool_limits(count, user_api="blas"):
                    other.submit(attention, *large(), layout="hsd").result()
                    assert blas_threads() == [count] * len(blas_threads())

    def test_and_has_one_meanwhile(self):
        seen = []
        problem = pose(*large(), layout="hsd")
        with threadpool_limits(2, user_api="blas"):
            solve(problem, ("context",), progress=lambda *_: seen.extend(blas_threads()))
        assert set(seen) == {1}


class TestSpread:
    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_raises_the_error_of_any_thread_and_ends_the_others(self, threads):
        begun, done = [], []

        def work(queue, check_stopped):
            for item in queue:
                begun.append(item)
                if item == 0:
                    while len(begun) < threads:
                        time.sleep(0.001)
                    raise DataError("zero")
                for _ in range(1000):
                    check_stopped()
                    time.sleep(0.001)
                done.append(item)
            return 0

        with pytest.raises(DataError, match="zero"):
            pool.spread(work, range(100), threads)
        assert not done

    def test_an_error_of_the_progress_callback_comes_out(self):
        def progress(done, total):
            if done:
                raise DataError(f"{done} of {total}")

        with pytest.raises(DataError, match="1 of"):
            solve(pose(*large(), layout="hsd"), ("context",), threads=2, progress=progress)


# Ctrl-C at any moment of calls that follow each other: afterwards all is as it was.
STRUCK = """
import os, random, signal, sys, threading, time
import numpy as np
from attncli import attention
from threadpoolctl import threadpool_info
def pressed(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, pressed)
q = np.random.default_rng(0).standard_normal((4, 400, 64), np.float32)
call = lambda: attention(q, q, q, layout="hsd", threads=2).context
state = lambda: (
    os.sched_getaffinity(0), [entry["num_threads"] for entry in threadpool_info()], np.getbufsize()
)
expected, before = call(), state()
def timed():
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
# The least of a few: on a machine with other work the timer would ring after most calls.
long = min(timed() for _ in range(9))
chance = random.Random(int(sys.argv[1]))
struck = 0
for _ in range(int(sys.argv[2])):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1.3 * long))
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        struck += 1
    assert state() == before, (state(), before)
assert np.array_equal(call(), expected)
print(struck, len(os.listdir("/proc/self/task")))
"""


FORKED = """
import os, numpy as np, sys
from attncli import attention
q = np.random.default_rng(0).standard_normal((2, 900, 32))
call = lambda: attention(q, q, q, layout="hsd", outputs=("context",), threads=2).context
before = call()
child = os.fork()
if not child:
    os._exit(0 if np.array_equal(call(), before) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def all_gone(kept):
    """Wait a little: a helper is told of its end before it has forgotten everything."""
    end = time.monotonic() + 5
    while any(one() is not None for one in kept) and time.monotonic() < end:
        time.sleep(0.01)
    return all(one() is None for one in kept)


class TestHelpers:
    def test_let_go_of_arrays_without_garbage_collection(self):
        """An error holds the frames it went through: none of them may hold the error."""
        qkv = large(queries=600, keys=600, width=64)
        kept = []
        gc.disable()
        try:
            for _ in range(5):
                key = qkv[1] * 1e30
                kept.append(weakref.ref(key))
                with contextlib.suppress(DataError):
                    attention(qkv[0] * 1e30, key, qkv[2], layout="hsd", threads=2)
                del key
            assert all_gone(kept)
        finally:
            gc.enable()

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
    @pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux tells its threads")
    @pytest.mark.parametrize("calls", long_but(["140", "400"], "140"))
    def test_calls_interrupted_at_any_moment_leave_everything_as_it_was(self, calls):
        done = subprocess.run(
            [sys.executable, "-c", STRUCK, "1", calls],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        struck, threads = map(int, done.stdout.split())
        assert struck > int(calls) / 8
        # One may be lost between two steps, but not one a call.
        assert threads < 8

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
    def test_are_started_anew_in_a_forked_process(self):
        subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


# Longer than a test may take.
LONG = """
import sys, numpy as np
from attncli import attention
q = np.ones((8, 200000, 64), np.float32)
print("ready", flush=True)
try:
    attention(q, q, q, layout="hsd", outputs=("context",), threads=2)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no Ctrl-C to send")
def test_ctrl_c_stops_the_work_and_its_threads():
    command = [sys.executable, "-c", LONG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(10) == 0


def test_threads_are_at_most_as_many_as_asked_for():
    program = LONG.replace("200000", "3000").replace("threads=2", "threads=1")
    program += "import threading; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert done.stdout.split() == [b"ready", b"finished", b"1"]


class TestCores:
    @pytest.mark.parametrize(
        ("files", "group", "expected"),
        [
            ({}, "/", None),
            ({"cpu.max": "max 100000\n"}, "/", None),
            ({"cpu.max": "150000 100000\n"}, "/", 2),
            ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, "/a/b", 3),
            ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, "/a/b", 2),
            ({"cpu.max": "nonsense"}, "/", None),
        ],
    )
    def test_that_a_control_group_grants(self, tmp_path, files, group, expected):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert cores.quota(tmp_path, group) == expected

    @pytest.mark.skipif(not hasattr(cores.os, "sched_setaffinity"), reason="Linux sets affinities")
    def test_by_affinity(self):
        script = (
            "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
            "from attncli.numerics.threads.cores import available_cores; print(available_cores())"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True, text=True
        )
        assert done.stdout == "1\n"
