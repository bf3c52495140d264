"""Any number of threads gives the same bits, and none is left behind, whatever happens."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from attncli import attention, pose, solve
from attncli.engine import attend, blas, block, cores, plan, result_shapes, workers
from attncli.engine.operands import prepare
from attncli.engine.scratch import Scratch
from attncli.errors import DataError

OUTPUTS = ("weights", "context", "lse")


def blas_threads():
    return [
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    ]


def large(*, heads=2, queries=600, keys=900, width=32, dtype="float32"):
    random = np.random.default_rng(0)
    query = random.standard_normal((heads, queries, width)).astype(dtype)
    key, value = random.standard_normal((2, heads, keys, width)).astype(dtype)
    return query, key, value


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

    def test_whatever_blas_was_told_before(self):
        qkv = large()
        answers = []
        for limit in (1, 2):
            with threadpool_limits(limit):
                answers.append(attention(*qkv, layout="hsd", outputs=("context",)).context)
        assert np.array_equal(*answers)

    def test_in_several_calls_at_once(self):
        qkv = large()
        expected = attention(*qkv, layout="hsd", outputs=("context",)).context
        found = []

        def call():
            found.append(attention(*qkv, layout="hsd", outputs=("context",), threads=2).context)

        before = blas_threads()
        callers = [threading.Thread(target=call) for _ in range(5)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert len(found) == 5
        assert all(np.array_equal(expected, each) for each in found)
        assert blas_threads() == before


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
        with ThreadPoolExecutor(1) as pool:
            for _ in range(2):
                pool.submit(attention, *large(), layout="hsd", outputs=("context",)).result()
                attention(*large(), layout="hsd", outputs=("context",))
            for count in (1, 2):
                with threadpool_limits(count, user_api="blas"):
                    pool.submit(attention, *large(), layout="hsd").result()
                    assert blas_threads() == [count] * len(blas_threads())

    def test_and_has_one_meanwhile(self):
        seen = []
        problem = pose(*large(), layout="hsd")
        with threadpool_limits(2, user_api="blas"):
            solve(problem, ("context",), progress=lambda *_: seen.extend(blas_threads()))
        assert set(seen) == {1}


class Library:
    """A BLAS as threadpoolctl shows it; on OpenMP every thread has a count of its own."""

    internal_api = "openblas"

    def __init__(self, threading_layer):
        self.threading_layer = threading_layer
        self.counts = {}

    def get_num_threads(self):
        return self.counts.get(self._key(), 8)

    def set_num_threads(self, count):
        self.counts[self._key()] = count

    def _key(self):
        return threading.get_ident() if self.threading_layer == "openmp" else "process"


class TestBlasOfEitherKind:
    @pytest.fixture(params=["openmp", "pthreads"])
    def library(self, request, monkeypatch):
        library = Library(request.param)
        monkeypatch.setattr(blas, "_libraries", lambda: [library])
        return library

    def test_has_one_thread_in_every_thread_and_eight_afterwards(self, library):
        def work(queue, _):
            return sum(library.get_num_threads() for _ in queue)

        with blas.single_blas_thread():
            assert workers.spread(work, range(50), 4) == 50
        assert library.get_num_threads() == 8

    def test_gets_its_threads_back_from_the_last_of_several_callers(self, library):
        inside, leave = threading.Event(), threading.Event()

        def call():
            with blas.single_blas_thread():
                inside.set()
                leave.wait(10)
                counts.append(library.get_num_threads())
            counts.append(library.get_num_threads())

        counts = []
        other = threading.Thread(target=call)
        with blas.single_blas_thread():
            other.start()
            assert inside.wait(10)
        leave.set()
        other.join()
        assert counts == [1, 8]
        assert library.get_num_threads() == 8


class TestSpread:
    def test_adds_up_what_the_threads_return(self):
        assert workers.spread(lambda queue, _: sum(queue), range(100), 3) == 4950

    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_raises_the_error_of_any_thread_and_ends_the_others(self, threads):
        def work(queue, pause):
            for item in queue:
                if item == 3:
                    raise DataError("three")
                for _ in range(1000):
                    pause()
                    time.sleep(0.001)
            return 0

        start, running = time.perf_counter(), threading.active_count()
        items = iter(range(3, 100)) if threads == 1 else range(100)
        with pytest.raises(DataError, match="three"):
            workers.spread(work, items, threads)
        assert threading.active_count() == running
        # Three items of a second each come before: one must not wait for the end of them.
        assert time.perf_counter() - start < (60 if threads == 1 else 4)

    def test_makes_do_with_the_threads_that_the_system_grants(self, monkeypatch):
        def refused(*_):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(workers._thread, "start_new_thread", refused)
        assert workers.spread(lambda queue, _: sum(queue), range(100), 3) == 4950

    def test_waits_for_the_others_when_interrupted_while_it_waits(self):
        ended = []

        def work(queue, pause):
            list(queue)
            if threading.current_thread() is threading.main_thread():
                return 0
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            try:
                while True:
                    time.sleep(0.001)
                    pause()
            finally:
                ended.append(True)

        with pytest.raises(KeyboardInterrupt):
            workers.spread(work, range(100), 2)
        assert ended == [True]

    def test_a_thread_that_finds_nothing_left_does_not_disturb_the_others(self):
        def work(queue, pause):
            done = 0
            for _ in queue:
                for _ in range(20):
                    pause()
                    time.sleep(0.001)
                done += 1
            return done

        assert workers.spread(work, range(3), 7) == 3

    def test_an_error_of_the_progress_callback_comes_out(self):
        def progress(done, total):
            if done:
                raise DataError(f"{done} of {total}")

        with pytest.raises(DataError, match="1 of"):
            solve(pose(*large(), layout="hsd"), ("context",), threads=2, progress=progress)


def test_progress_counts_every_part_in_order():
    calls = []
    problem = pose(*large(), layout="hsd")
    solve(problem, ("context",), threads=2, progress=lambda *call: calls.append(call))
    total = calls[0][1]
    assert [done for done, _ in calls] == list(range(total + 1))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (30, 40)}], ids=str)
def test_results_may_be_given(options):
    problem = pose(*large(heads=8, keys=600), layout="hsd", **options)
    expected = solve(problem, OUTPUTS)
    given = {
        name: np.full(shape, np.nan, "float32")
        for name, shape in result_shapes(problem, OUTPUTS).items()
    }
    answer, _ = attend(problem, OUTPUTS, into=given)
    for name in OUTPUTS:
        assert np.shares_memory(getattr(answer, name), given[name])
        assert np.array_equal(getattr(answer, name), getattr(expected, name))
    unseen = answer.weights == 0
    assert np.array_equal(unseen[0], [problem_hides(problem, row) for row in range(600)])


def problem_hides(problem, row):
    """Return which keys a query does not see."""
    first, last = problem.visible.span(0, row, row + 1)
    return (np.arange(600) < first) | (np.arange(600) >= last)


def test_the_work_can_be_stopped_at_every_tile(monkeypatch):
    pauses = []
    monkeypatch.setattr(workers.Queue, "pause", lambda _: pauses.append(1))
    attention(*large(heads=1, keys=20_000), layout="hsd", outputs=("context",), threads=2)
    # A tile has at most 2**18 scores.
    assert len(pauses) >= 600 * 20_000 / 2**18


def test_a_block_is_left_when_the_work_is_stopped():
    def stopped():
        raise workers.StoppedError

    problem = pose(*large(heads=1, queries=300, keys=5000), layout="hsd")
    results = {"context": np.full((1, 1, 300, 32), np.nan, "float32")}
    part = plan.cut_up(problem, results)[0]
    with pytest.raises(workers.StoppedError):
        block.attend_part(prepare(problem), part, Scratch(problem.dtype, 500, stopped))
    assert np.isnan(results["context"]).all()


LONG = """
import sys, numpy as np, threading
from attncli import attention
q = np.ones((1, 60000, 64), np.float32)
print("ready", flush=True)
try:
    attention(q, q, q, layout="hsd", outputs=("context",), threads=2)
except KeyboardInterrupt:
    print("stopped", threading.active_count(), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no Ctrl-C to send")
def test_ctrl_c_stops_the_work_and_its_threads():
    command = [sys.executable, "-c", LONG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.7)
        start = time.perf_counter()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped 1\n"
        assert time.perf_counter() - start < 0.5


class TestCores:
    @pytest.mark.parametrize(
        ("files", "group", "expected"),
        [
            ({}, "/", None),
            ({"cpu.max": "max 100000\n"}, "/", None),
            ({"cpu.max": "150000 100000\n"}, "/", 2),
            ({"cpu.max": "50000 100000\n"}, "/", 1),
            ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, "/a/b", 3),
            ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, "/a/b", 2),
            ({"a/cpu.max": "100000 100000"}, "/elsewhere", None),
            ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, "/", 3),
            ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "/", None),
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
            "from attncli.engine.cores import available_cores; print(available_cores())"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True, text=True
        )
        assert done.stdout == "1\n"
