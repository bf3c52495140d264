"""Work spread over threads, each with one BLAS thread (`attncli.numerics.threads.blas`).

NumPy releases the interpreter's lock in its loops and in BLAS, so threads over blocks scale;
several BLAS threads on one small tile do not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

from attncli.numerics.threads.blas import use_one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

__all__ = ["Work", "spread"]

Item = TypeVar("Item")
Work = Callable[[Iterable[Item], Callable[[], None]], int]

# Idle threads stay: to start one takes a tenth of the time of a short call. At most so many.
_MOST_THREADS = 1024
_pools: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pools.clear)


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
    helpers: list[Future[int]] = []
    try:
        with suppress(RuntimeError):  # the system grants no more threads, or Python is about to end
            while len(helpers) < threads - 1:
                # NumPy's error state, too, is that of the context.
                helpers.append(_pool().submit(copy_context().run, _help, work, queue))
        own = _work_or_stop(work, queue)
        # A helper that has not begun finds nothing left to do.
        return own + sum(0 if helper.cancel() else helper.result() for helper in helpers)
    finally:
        queue.stop()
        wait([helper for helper in helpers if not helper.cancel()])
        # An error holds this frame: in turn it must not hold the error, or both and all their
        # arrays would stay until the next garbage collection.
        helpers.clear()


def _pool() -> ThreadPoolExecutor:
    if not _pools:
        _pools.append(ThreadPoolExecutor(_MOST_THREADS, "attncli"))
    return _pools[0]


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
