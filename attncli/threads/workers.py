"""Work spread over threads, each with one BLAS thread (`attncli.threads.blas`).

NumPy releases the interpreter's lock in its loops and in BLAS, so threads over blocks scale;
several BLAS threads on one small tile do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from attncli.threads.blas import use_one_thread
from attncli.threads.idle import PooledThread, borrow, give_back
from attncli.threads.pinning import Pinning

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Queue", "StoppedError", "Work", "spread"]

Item = TypeVar("Item")


Work = Callable[[Iterable[Item], Callable[[], None]], int]


class StoppedError(Exception):
    """Another thread failed, or Ctrl-C was pressed, so the rest of the work is pointless."""


class Queue(Generic[Item]):
    """An iterator that several threads draw from, and that can be stopped."""

    def __init__(self, items: Iterable[Item], pinning: Pinning) -> None:
        self._items = iter(items)
        self._pinning = pinning
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
        """Yield no more items, and make `check_stopped` raise in every thread."""
        self._stopped = True

    def check_stopped(self) -> None:
        """Raise `StoppedError` if the work was stopped; every thread calls this often."""
        if self._stopped:
            raise StoppedError
        self._pinning.end_if_due()


def spread(work: Work[Item], items: Iterable[Item], threads: int, *, pinned: bool = True) -> int:
    """Call ``work`` in several threads with one shared queue, and return the sum of the results.

    The first error makes the other threads stop soon, and is raised here; so is Ctrl-C, because
    the calling thread works too.

    Parameters
    ----------
    work : callable
        Takes items from an iterator until there are none, often calls its second argument
        (`Queue.check_stopped`), and returns a count.
    items : iterable
    threads : int
        The calling one included.
    pinned : bool
        Whether threads may be pinned to cores for a moment. Threads and processes that ``items``
        starts meanwhile would stay pinned.
    """
    helpers: list[PooledThread] = []
    pinning = Pinning(helpers)
    queue = Queue(items, pinning)
    shares: list[_Share[Item]] = []
    try:
        borrow(threads - 1, helpers)
        if helpers:
            pinning.begin(pinned=pinned)
        for helper in helpers:
            shares.append(_Share(work, queue))
            helper.begin(shares[-1].run)
        own = _work_or_stop(work, queue)
        _finish(helpers, pinning)
    except BaseException:
        queue.stop()
        try:
            _finish(helpers, pinning)
        except BaseException:  # a second Ctrl-C: what is left takes no time
            _finish(helpers, pinning)
            raise
        raise
    return own + sum([share.result() for share in shares])


def _finish(helpers: list[PooledThread], pinning: Pinning) -> None:
    """Wait for the helpers and clean up; calling it again completes an interrupted call."""
    for helper in helpers:
        helper.wait()
    pinning.end()
    give_back(helpers)


class _Share(Generic[Item]):
    """The part of the work that one helper does."""

    def __init__(self, work: Work[Item], queue: Queue[Item]) -> None:
        self._work, self._queue = work, queue
        self._count = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            use_one_thread()
            self._count = _work_or_stop(self._work, self._queue)
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            self._error = error
            # The error refers to this frame. If the frame referred back to it through self, both
            # and all their arrays would stay alive until the next garbage collection.
            del self

    def result(self) -> int:
        """Return what the work returned, or raise its error."""
        error, self._error = self._error, None
        if error is None:
            return self._count
        try:
            raise error
        finally:
            del error  # as in `run`


def _work_or_stop(work: Work[Item], queue: Queue[Item]) -> int:
    """Return the result of the work; an error in it stops the other threads.

    A thread that was stopped returns 0, because the thread that failed raises the error.
    """
    try:
        return work(queue, queue.check_stopped)
    except StoppedError:
        return 0
    except BaseException:
        queue.stop()
        raise
