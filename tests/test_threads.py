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
from types import SimpleNamespace

import numpy as np
import pytest
from process import long_but
from threadpoolctl import threadpool_info, threadpool_limits

from attncli import attention, pose, solve
from attncli.engine import attend, block, plan, result_shapes, size
from attncli.engine.decoding import few_parts
from attncli.engine.operands import prepare
from attncli.engine.scratch import Scratch
from attncli.errors import DataError
from attncli.threads import blas, cores, idle, pinning, workers

OUTPUTS = ("weights", "context", "lse")
# Before any call.
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


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
    monkeypatch.setattr(size, "_WAKING", 0)


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

    def test_where_threads_take_several_heads_at_once(self):
        qkv = large(heads=8, queries=1, keys=5003, width=24)
        one, *others = [
            attention(*qkv, layout="hsd", outputs=OUTPUTS, threads=threads)
            for threads in (1, 2, 3, 7)
        ]
        for other in others:
            for name in OUTPUTS:
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
    @pytest.mark.parametrize("sizes", [(16, 130, 64), (170, 170, 64), (1, 1000, 64), (600, 900, 8)])
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

    def test_is_restored_where_that_is_interrupted(self, library, monkeypatch):
        interrupted = []
        set_ = library.set_num_threads

        def pressed(count):
            if count == 8 and not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            set_(count)

        monkeypatch.setattr(library, "set_num_threads", pressed)
        with pytest.raises(KeyboardInterrupt), blas.single_blas_thread():
            assert library.get_num_threads() == 1
        assert library.get_num_threads() == 8

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
    def test_has_its_threads_in_a_process_forked_during_a_call(self):
        # Python 3.12 and later warn of every fork beside threads.
        quiet = ["-W", "ignore::DeprecationWarning"]
        done = subprocess.run(
            [sys.executable, *quiet, "-c", FORKED_INSIDE],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")


class TestSpread:
    def test_adds_up_what_the_threads_return(self):
        assert workers.spread(lambda queue, _: sum(queue), range(100), 3) == 4950

    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_raises_the_error_of_any_thread_and_ends_the_others(self, threads):
        done = []

        def work(queue, check_stopped):
            for item in queue:
                if item == 3:
                    raise DataError("three")
                for _ in range(1000):
                    check_stopped()
                    time.sleep(0.001)
                done.append(item)
            return 0

        running = threading.active_count()
        items = iter(range(3, 100)) if threads == 1 else range(100)
        with pytest.raises(DataError, match="three"):
            workers.spread(work, items, threads)
        assert threading.active_count() == running
        # The three before take a second each; of what others do meanwhile, nothing is finished.
        assert set(done) <= {0, 1, 2}

    def test_makes_do_with_the_threads_that_the_system_grants(self, monkeypatch):
        def refused(*_):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(idle, "_idle", [])
        monkeypatch.setattr(idle._thread, "start_new_thread", refused)
        assert workers.spread(lambda queue, _: sum(queue), range(100), 3) == 4950

    def test_waits_for_the_others_when_interrupted_while_it_waits(self):
        ended = []

        def work(queue, check_stopped):
            list(queue)
            if threading.current_thread() is threading.main_thread():
                return 0
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            try:
                while True:
                    time.sleep(0.001)
                    check_stopped()
            finally:
                ended.append(True)

        with pytest.raises(KeyboardInterrupt):
            workers.spread(work, range(100), 2)
        assert ended == [True]

    def test_a_thread_that_finds_nothing_left_does_not_disturb_the_others(self):
        def work(queue, check_stopped):
            done = 0
            for _ in queue:
                for _ in range(20):
                    check_stopped()
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


class Struck:
    """A lock, and Ctrl-C is pressed just before it is acquired or released, or just after."""

    def __init__(self, lock, when):
        self._lock = lock
        self._when = when

    def acquire(self, *words, **options):
        self._strike("before")
        result = self._lock.acquire(*words, **options)
        self._strike("after")
        return result

    def release(self):
        self._strike("before")
        self._lock.release()
        self._strike("after")

    def _strike(self, when):
        if threading.current_thread() is threading.main_thread() and self._when == when:
            self._when = None
            raise KeyboardInterrupt


# Ctrl-C at any moment of calls that follow each other: afterwards all is as it was.
STRUCK = """
import os, random, signal, sys, threading, time
import numpy as np
from attncli import attention
from attncli.threads import idle
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
print(struck, len(idle._idle), len(os.listdir("/proc/self/task")))
"""

FORKED_INSIDE = """
import os, sys, threading
import numpy as np
from attncli import attention
from attncli.threads.blas import single_blas_thread
from threadpoolctl import threadpool_info, threadpool_limits
threadpool_limits(2)
state = lambda: [entry["num_threads"] for entry in threadpool_info()]
q = np.ones((2, 900, 32))
before, inside, leave = state(), threading.Event(), threading.Event()
def work():
    with single_blas_thread():
        inside.set()
        leave.wait()
other = threading.Thread(target=work)
other.start()
inside.wait()
child = os.fork()
if not child:
    attention(q, q, q, layout="hsd", outputs=("context",), threads=2)
    os._exit(0 if state() == before else 1)
leave.set()
other.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

AT_THE_END = """
import numpy as np
from attncli import attention
q = np.random.default_rng(0).standard_normal((4, 400, 64), np.float32)
call = lambda: attention(q, q, q, layout="hsd", outputs=("context",), threads=2).context
class Late:
    def __init__(self):
        self.call = call
        call()
    def __del__(self):
        self.call()
late = Late()
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


class TestHelpers:
    def test_are_the_same_threads_in_the_next_call(self, monkeypatch):
        monkeypatch.setattr(idle, "_idle", [])
        seen = []

        def work(queue, _):
            for _ in queue:
                seen.append(threading.get_native_id())
                time.sleep(0.01)
            return 0

        for _ in range(3):
            workers.spread(work, range(9), 3)
        assert len(set(seen)) == 3
        assert len(idle._idle) == 2

    def test_are_nobody_elses_while_they_work(self, monkeypatch):
        monkeypatch.setattr(idle, "_idle", [])
        inside = threading.Barrier(4, timeout=20)

        def work(_queue, _):
            inside.wait()
            return 1

        counts = []
        callers = [
            threading.Thread(target=lambda: counts.append(workers.spread(work, range(9), 2)))
            for _ in range(2)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert counts == [2, 2]

    @pytest.mark.parametrize("fails", [False, True])
    def test_hold_nothing_of_what_they_did(self, fails):
        array = np.zeros(3)
        kept = weakref.ref(array)

        def work(queue, _, array=array):
            for _ in queue:
                time.sleep(0.01)
                if fails:
                    raise DataError(str(array))
            return 0

        with pytest.raises(DataError) if fails else contextlib.nullcontext():
            workers.spread(work, range(4), 2)
        del work, array
        if fails:  # pytest holds the error in a circle of its own
            gc.collect()
        assert kept() is None

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
            assert [array() for array in kept] == [None] * 5
        finally:
            gc.enable()

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("lock", ["_finished", "_called"])
    def test_do_not_mind_an_interrupted_caller(self, lock, when):
        helper, done = idle.PooledThread(), []
        setattr(helper, lock, Struck(getattr(helper, lock), when))
        interrupted = 0
        for step in (
            lambda: helper.begin(lambda: (time.sleep(0.05), done.append(1))),
            helper.wait,
            helper.wait,
            lambda: helper.begin(lambda: done.append(2)),
            helper.wait,
        ):
            try:
                step()
            except KeyboardInterrupt:
                interrupted += 1
        assert interrupted == 1
        assert done == [1, 2]

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
        struck, kept, threads = map(int, done.stdout.split())
        assert struck > int(calls) / 8
        assert kept >= 1
        # One may be lost between two steps, but not one a call.
        assert threads < 8

    def test_are_not_called_when_python_ends(self, monkeypatch):
        """They do not run any more: who waited for one would wait for ever."""
        workers.spread(lambda queue, _: sum(queue), range(100), 2)
        begun = []
        monkeypatch.setattr(idle.PooledThread, "begin", lambda *_: begun.append(1))
        monkeypatch.setattr(sys, "is_finalizing", lambda: True)
        assert workers.spread(lambda queue, _: sum(queue), range(100), 2) == 4950
        assert begun == []

    def test_a_call_when_python_ends_ends(self):
        done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, timeout=60)
        assert done.returncode == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
    def test_are_started_anew_in_a_forked_process(self):
        subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux sets affinities")
class TestApart:
    """Threads are on cores of their own at first, and free afterwards."""

    @pytest.fixture
    def masks(self, monkeypatch):
        """The cores that each thread was allowed in turn, on a system of three."""
        masks = {}
        monkeypatch.setattr(pinning.os, "sched_getaffinity", lambda _: {1, 2, 5})
        monkeypatch.setattr(pinning, "_current_core", lambda: 2)

        def allow(thread, cores):
            masks.setdefault(thread, []).append(cores)

        monkeypatch.setattr(pinning.os, "sched_setaffinity", allow)
        return masks

    @staticmethod
    def of(*numbers):
        return pinning.Pinning([SimpleNamespace(thread=number) for number in numbers])

    def test_until_the_end(self, masks):
        threads = self.of(11, 12)
        threads.begin()
        threads.end_if_due()
        own = threading.get_native_id()
        assert masks == {own: [{2}], 11: [{1}], 12: [{5}]}
        threads.end()
        assert [all_[1:] for all_ in masks.values()] == [[{1, 2, 5}]] * 3
        threads.end()
        assert {len(all_) for all_ in masks.values()} == {2}

    def test_for_a_moment(self, masks, monkeypatch):
        threads = self.of(11, 12)
        threads.begin()
        now = time.monotonic()
        monkeypatch.setattr(pinning.time, "monotonic", lambda: now + 1)
        threads.end_if_due()
        assert [all_[-1] for all_ in masks.values()] == [{1, 2, 5}] * 3

    @pytest.mark.parametrize("numbers", [[11], [11, 12, 13]])
    def test_not_where_there_are_more_cores_or_fewer(self, masks, numbers):
        self.of(*numbers).begin()
        # A helper may have been kept to a core that the caller has left since.
        assert set(masks) == {threading.get_native_id(), *numbers}
        assert all(all_ == [{1, 2, 5}] for all_ in masks.values())

    def test_not_where_others_would_be_kept_there_for_ever(self, masks):
        self.of(11, 12).begin(pinned=False)
        assert all(all_ == [{1, 2, 5}] for all_ in masks.values())

    def test_not_where_the_core_is_unknown(self, masks, monkeypatch):
        monkeypatch.setattr(pinning, "_current_core", lambda: -1)
        self.of(11, 12).begin()
        assert all(all_ == [{1, 2, 5}] for all_ in masks.values())

    def test_not_where_the_system_refuses(self, masks, monkeypatch):
        def refused(*_):
            raise OSError

        monkeypatch.setattr(pinning.os, "sched_setaffinity", refused)
        assert workers.spread(lambda queue, _: sum(queue), range(100), 3) == 4950

    def test_ends_the_second_time_when_interrupted_the_first(self, masks, monkeypatch):
        threads = self.of(11, 12)
        threads.begin()
        allow = pinning.os.sched_setaffinity

        def interrupted(*_):
            monkeypatch.setattr(pinning.os, "sched_setaffinity", allow)
            raise KeyboardInterrupt

        monkeypatch.setattr(pinning.os, "sched_setaffinity", interrupted)
        with pytest.raises(KeyboardInterrupt):
            threads.end()
        threads.end()
        assert [all_[-1] for all_ in masks.values()] == [{1, 2, 5}] * 3

    def test_progress_may_start_what_uses_all_cores(self):
        seen = []
        problem = pose(*large(), layout="hsd")
        progress = lambda *_: seen.append(os.sched_getaffinity(0))  # noqa: E731
        solve(problem, ("context",), threads=len(CORES), progress=progress)
        assert seen
        assert all(cores == CORES for cores in seen)

    @pytest.mark.parametrize("fails", [False, True])
    def test_in_a_real_call(self, fails):
        before = CORES
        inside = threading.Barrier(len(before), timeout=20)
        masks = []

        def work(_queue, _):
            inside.wait()
            masks.append(frozenset(os.sched_getaffinity(0)))
            inside.wait()
            if fails:
                raise DataError("no")
            return 0

        if len(before) == 1:
            pytest.skip("one core")
        with pytest.raises(DataError) if fails else contextlib.nullcontext():
            workers.spread(work, range(9), len(before))
        assert sorted(map(len, masks)) == [1] * len(before)
        assert frozenset().union(*masks) == before
        assert os.sched_getaffinity(0) == before
        for helper in idle._idle:
            assert os.sched_getaffinity(helper.thread) == before


class TestThreadsThatDoNotPay:
    @pytest.fixture
    def spreads(self, monkeypatch):
        monkeypatch.undo()
        counts = []
        spread = workers.spread

        def counted(work, items, threads, **options):
            counts.append(threads)
            return spread(work, items, threads, **options)

        monkeypatch.setattr(workers, "spread", counted)
        return counts

    @pytest.mark.parametrize(
        ("sizes", "pay"),
        [
            ({"heads": 16, "queries": 77, "keys": 77}, False),
            ({"heads": 8, "queries": 512, "keys": 512}, True),
            ({"heads": 1, "queries": 1, "keys": 2000}, False),
            ({"heads": 8, "queries": 1, "keys": 16384}, True),
        ],
        ids=str,
    )
    def test_are_not_woken(self, spreads, sizes, pay):
        qkv = large(width=64, **sizes)
        attention(*qkv, layout="hsd", outputs=("context",), threads=2)
        assert spreads == ([2] if pay else [])

    def test_pay_for_reading_keys_and_values(self, spreads):
        attention(*large(heads=8, queries=1, keys=8192, width=64), layout="hsd", threads=2)
        assert spreads == [2]

    def test_pay_sooner_if_there_are_more(self, spreads):
        qkv = large(heads=8, queries=215, keys=215, width=64)
        for threads in (2, 8):
            attention(*qkv, layout="hsd", outputs=("context",), threads=threads)
        assert len(spreads) == 1


class TestThreadsOfADecodingStep:
    @pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 11])
    @pytest.mark.parametrize(("batch", "heads"), [(1, 8), (1, 32), (3, 8), (2, 5)])
    def test_compute_every_head_once(self, batch, heads, threads):
        key = np.zeros((batch, heads, 16384, 16), np.float32)
        problem = pose(key[:, :, :1], key, key, layout="bhsd")
        done = np.zeros((batch, heads), int)
        for part in few_parts(problem, threads):
            done[part] += 1
        assert (done == 1).all()

    @pytest.mark.parametrize(("heads", "threads"), [(4, 2), (8, 2), (32, 4), (12, 3)])
    def test_begin_with_different_numbers_of_heads(self, heads, threads):
        key = np.zeros((heads, 16384, 32), np.float32)
        parts = few_parts(pose(key[:, :1], key, key, layout="hsd"), threads)
        sizes = [groups.stop - groups.start for _, groups in parts]
        assert len(set(sizes[:threads])) > 1
        # As soon as they are done they draw the others, the largest first.
        ends = sizes[:threads]
        for size_ in sizes[threads:]:
            ends[ends.index(min(ends))] += size_
        assert set(ends) == {heads // threads}


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
    monkeypatch.setattr(workers.Queue, "check_stopped", lambda _: pauses.append(1))
    attention(*large(heads=1, keys=20_000), layout="hsd", outputs=("context",), threads=2)
    # A tile has at most 2**18 scores.
    assert len(pauses) >= 600 * 20_000 / 2**18


def test_a_block_is_left_when_the_work_is_stopped():
    def stopped():
        raise workers.StoppedError

    problem = pose(*large(heads=1, queries=300, keys=5000), layout="hsd")
    results = {"context": np.full((1, 1, 300, 32), np.nan, "float32")}
    (part, *_), columns = plan.plan_blocks(problem, results, small=False)
    with pytest.raises(workers.StoppedError):
        block.attend_part(prepare(problem), part, Scratch(problem.dtype, columns, stopped))
    assert np.isnan(results["context"]).all()


# Longer than a test may take.
LONG = """
import sys, numpy as np, threading
from attncli import attention
q = np.ones((8, 200000, 64), np.float32)
print("ready", flush=True)
try:
    attention(q, q, q, layout="hsd", outputs=("context",), threads=2)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("stopped", threading.active_count(), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no Ctrl-C to send")
def test_ctrl_c_stops_the_work_and_its_threads():
    command = [sys.executable, "-c", LONG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped 1\n"


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

    @pytest.mark.parametrize(("group", "expected"), [("/a/b", 1), ("/a", 2), ("/", None)])
    def test_that_a_control_group_of_version_1_grants(self, tmp_path, group, expected):
        for name, quota in (("a", "200000"), ("a/b", "50000")):
            folder = tmp_path / "cpu" / name
            folder.mkdir(parents=True)
            (folder / "cpu.cfs_quota_us").write_text(quota)
            (folder / "cpu.cfs_period_us").write_text("100000")
        assert cores.quota(tmp_path, "/", group) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("0::/user.slice/a:b\n", ("/user.slice/a:b", "/")),
            ("9:name=systemd:/s\n4:cpu,cpuacct:/limited\n0::/s\n", ("/s", "/limited")),
            ("nonsense\n", ("/", "/")),
            ("", ("/", "/")),
        ],
    )
    def test_of_groups_that_the_system_names(self, text, expected, monkeypatch):
        monkeypatch.setattr(cores, "_text", lambda _: text)
        assert cores._own_groups.__wrapped__() == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("2048K\n", 2**21), ("512K", 2**19), ("", 0), ("nonsense", 0), ("K", 0), ("2M", 0)],
    )
    def test_have_a_cache(self, tmp_path, text, expected):
        file = tmp_path / "size"
        assert cores.core_cache(file) == 0
        cores.core_cache.cache_clear()
        file.write_text(text)
        assert cores.core_cache(file) == expected
        cores.core_cache.cache_clear()

    @pytest.mark.skipif(not hasattr(cores.os, "sched_setaffinity"), reason="Linux sets affinities")
    def test_by_affinity(self):
        script = (
            "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
            "from attncli.threads.cores import available_cores; print(available_cores())"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True, text=True
        )
        assert done.stdout == "1\n"


def test_the_keys_of_a_single_block_are_cut_for_several_threads():
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((1, 16)), rng.standard_normal((70_000, 16))
    problem = pose(query, key, key, softcap=5.0)
    results = {"context": np.empty((1, 1, 1, 16))}
    parts, _ = plan.plan_blocks(problem, results, small=False)
    spans = [block.spans[number] for block, number in parts]
    assert len(spans) == 4
    assert [first for first, _ in spans] == [0, *(last for _, last in spans[:-1])]
    assert spans[-1][1] == 70_000


@pytest.mark.parametrize("outputs", [("context",), ("weights", "lse", "context")], ids="-".join)
def test_a_head_whose_products_leave_the_range_does_not_round_those_of_others(outputs):
    """Before they are scaled: other heads of the same part were scaled first, too."""
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, 1, 16, 1, 64), np.float32)
    query, key = query * np.float32(1e5), np.repeat(key, 4096, axis=2)
    key += random.standard_normal(key.shape, np.float32)
    query[0, 0] *= np.float32(1e14)
    key[0, 0] *= np.float32(1e19)
    answers = [
        attention(query, key, key, scale=1e-6, threads=threads, outputs=outputs)
        for threads in (1, 2, 4)
    ]
    for name in outputs:
        one, *others = (getattr(answer, name) for answer in answers)
        assert np.isfinite(one).all()
        for other in others:
            np.testing.assert_array_equal(one, other)
