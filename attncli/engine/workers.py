"""Work spread over threads, each with one BLAS thread (`attncli.engine.blas`).

NumPy releases the interpreter's lock in its loops and in BLAS, so threads over
blocks scale; two BLAS threads on one small tile do not.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from attncli.engine.blas import use_one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Queue", "StoppedError", "spread"]

Item = TypeVar("Item")


Work = Callable[[Iterable[Item], Callable[[], None]], int]


class StoppedError(Exception):
    """Another thread failed, or Ctrl-C was pressed: there is no use in going on."""


class Queue(Generic[Item]):
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
        """Hand out nothing more, and let those who work on something leave it."""
        self._stopped = True

    def pause(self) -> None:
        """Raise `StoppedError` if the work was stopped: to be called often."""
        if self._stopped:
            raise StoppedError


def spread(work: Work[Item], items: Iterable[Item], threads: int) -> int:
    """Let each of some threads call ``work``, all with the same queue, and add up their returns.

    The first error stops the others at their next pause and is raised here; so does
    Ctrl-C, because the calling thread works too.

    Parameters
    ----------
    work : callable
        Takes items from an iterator until there are none, calls a second argument
        (`Queue.pause`) often, and returns a count.
    items : iterable
    threads : int
        The calling one included.
    """
    queue = Queue(items)
    if threads == 1:
        return work(queue, queue.pause)
    helpers = _helpers(work, queue, threads - 1)
    try:
        own = _stopping(work, queue)
        _wait(helpers)
    except BaseException:
        queue.stop()
        _wait(helpers)
        raise
    return own + sum(helper.result() for helper in helpers)


class _Helper(Generic[Item]):
    """A thread that works beside the calling one.

    The threads of `threading` let their starter wait until they run: a tenth of the time
    that a short work takes.
    """

    def __init__(self, work: Work[Item], queue: Queue[Item]) -> None:
        self._work, self._queue = work, queue
        self._count = 0
        self._error: BaseException | None = None
        self._busy = _thread.allocate_lock()
        self._busy.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            use_one_thread()
            self._count = _stopping(self._work, self._queue)
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            self._error = error
        finally:
            self._busy.release()

    def wait(self) -> None:
        """Wait until the thread is done."""
        # Ctrl-C just before a wait does not end it: Python looks for it when the wait is over.
        while not self._busy.acquire(timeout=0.1):
            pass
        self._busy.release()

    def result(self) -> int:
        """Return what the work returned, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._count


def _helpers(work: Work[Item], queue: Queue[Item], count: int) -> list[_Helper[Item]]:
    helpers: list[_Helper[Item]] = []
    for _ in range(count):
        try:
            helpers.append(_Helper(work, queue))
        except RuntimeError:  # the system grants no more threads: the work is done with these
            break
    return helpers


def _wait(helpers: list[_Helper[Item]]) -> None:
    for helper in helpers:
        helper.wait()


def _stopping(work: Work[Item], queue: Queue[Item]) -> int:
    """Work; an error stops the others. Who is stopped returns: the error is another's to raise."""
    try:
        return work(queue, queue.pause)
    except StoppedError:
        return 0
    except BaseException:
        queue.stop()
        raise
