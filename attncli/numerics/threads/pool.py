"""Work spread over threads, each with one BLAS thread (`attncli.numerics.threads.blas`).

NumPy releases the interpreter's lock in its loops and in BLAS, so threads over blocks scale;
several BLAS threads on one small tile do not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from attncli.numerics.threads.blas import use_one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = TypeVar("Item")
Work = Callable[[Iterable[Item], Callable[[], None]], int]


class _StoppedError(Exception):
    """Another thread failed, or Ctrl-C was pressed, so the rest of the work is pointless."""


class _Queue(Generic[Item]):
    """An iterator that several threads draw from, and that can be stopped."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()
        self._stopped = False

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._items)

    def stop(self) -> None:
        self._stopped = True

    def check_stopped(self) -> None:
        if self._stopped:
            raise _StoppedError


def spread(work: Work[Item], items: Iterable[Item], threads: int) -> int:
    """Call ``work`` in several threads with one shared queue, and return the sum of the results.

    ``work`` takes items from an iterator until there are none, and often calls its second argument,
    which raises to stop the work. The first error makes the other threads stop soon, and is raised
    here; so is Ctrl-C, because the calling thread works too. If the system grants fewer threads,
    these do all the work.
    """
    queue = _Queue(items)
    tasks: list[_Task] = []
    try:
        with suppress(RuntimeError):  # the system grants no more threads, or Python is about to end
            for _ in range(threads - 1):
                # The context also holds NumPy's error state.
                context = copy_context()
                tasks.append(_Task(partial(context.run, _help, work, queue)))
                _POOL.give(tasks[-1])
        own = _work_or_stop(work, queue)
        return own + sum(task.result() for task in tasks)
    finally:
        queue.stop()
        for task in tasks:
            task.wait()
            task.error = None
        # The error refers to this frame. If the frame also referred to the error, both and their
        # arrays would stay until the next garbage collection.
        tasks.clear()


class _Task:
    """A call for another thread, which waits for no lock that Ctrl-C could leave locked."""

    def __init__(self, call: Callable[[], int]) -> None:
        self._call = call
        self._claims: list[str] = []  # the first decides; adding to a list is one step
        self._running = threading.Lock()
        self._running.acquire()
        self._count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call, unless it was taken back."""
        self._claims.append("helper")
        if self._claims[0] == "helper":
            try:
                self._count = self._call()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self.error = error
            finally:
                self._running.release()

    def wait(self) -> None:
        """Take the call back if it has not begun, or wait for its end."""
        self._claims.append("caller")
        if self._claims[0] == "helper":
            with self._running:
                pass

    def result(self) -> int:
        """Return the result, 0 for a call that was taken back, or raise its error."""
        self.wait()
        if self.error is not None:
            raise self.error
        return self._count


class _Pool:
    """Threads that wait for tasks, because starting one takes a tenth of the time of a short call.

    `concurrent.futures` is not used: Ctrl-C within its Python locks can leave them locked.
    """

    def __init__(self) -> None:
        self.forget_threads()

    def forget_threads(self) -> None:
        """Reset a forked process, which has none of its parent's threads."""
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._idle: list[None] = []

    def give(self, task: _Task) -> None:
        try:
            self._idle.pop()
        except IndexError:
            threading.Thread(target=self._work, name="attncli", daemon=True).start()
        self._tasks.put(task)

    def _work(self) -> None:
        while True:
            self._tasks.get().run()
            self._idle.append(None)


_POOL = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.forget_threads)


def _help(work: Work[Item], queue: _Queue[Item]) -> int:
    use_one_thread()
    return _work_or_stop(work, queue)


def _work_or_stop(work: Work[Item], queue: _Queue[Item]) -> int:
    """Return the result of the work; an error in it stops the other threads.

    A thread that was stopped returns 0, because the thread that failed raises the error.
    """
    try:
        return work(queue, queue.check_stopped)
    except _StoppedError:
        return 0
    except BaseException:
        queue.stop()
        raise
