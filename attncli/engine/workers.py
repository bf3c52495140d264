"""Work spread over threads, each with one BLAS thread (`attncli.engine.blas`).

NumPy releases the interpreter's lock in its loops and in BLAS, so threads over
blocks scale; two BLAS threads on one small tile do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from attncli.engine.apart import Apart
from attncli.engine.blas import use_one_thread
from attncli.engine.helpers import Helper, give_back, take

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Queue", "StoppedError", "Work", "spread"]

Item = TypeVar("Item")


Work = Callable[[Iterable[Item], Callable[[], None]], int]


class StoppedError(Exception):
    """Another thread failed, or Ctrl-C was pressed: there is no use in going on."""


class Queue(Generic[Item]):
    """An iterator that several threads draw from, and that can be stopped."""

    def __init__(self, items: Iterable[Item], apart: Apart) -> None:
        self._items = iter(items)
        self._apart = apart
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
        self._apart.look()


def spread(work: Work[Item], items: Iterable[Item], threads: int, *, pinned: bool = True) -> int:
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
    pinned : bool
        Whether threads may be kept to cores for a moment. What ``items`` start meanwhile,
        threads or processes, would be kept there for ever.
    """
    helpers: list[Helper] = []
    apart = Apart(helpers)
    queue = Queue(items, apart)
    shares: list[_Share[Item]] = []
    try:
        take(threads - 1, helpers)
        if helpers:
            apart.begin(pinned=pinned)
        for helper in helpers:
            shares.append(_Share(work, queue))
            helper.begin(shares[-1].take)
        own = _stopping(work, queue)
        _finish(helpers, apart)
    except BaseException:
        queue.stop()
        try:
            _finish(helpers, apart)
        except BaseException:  # Ctrl-C, a second time: what is left is done in no time
            _finish(helpers, apart)
            raise
        raise
    return own + sum([share.result() for share in shares])


def _finish(helpers: list[Helper], apart: Apart) -> None:
    """Wait for the helpers, and leave everything as it was: what is done is not done again."""
    for helper in helpers:
        helper.wait()
    apart.end()
    give_back(helpers)


class _Share(Generic[Item]):
    """What a helper does of the work."""

    def __init__(self, work: Work[Item], queue: Queue[Item]) -> None:
        self._work, self._queue = work, queue
        self._count = 0
        self._error: BaseException | None = None

    def take(self) -> None:
        try:
            use_one_thread()
            self._count = _stopping(self._work, self._queue)
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            self._error = error
            # An error holds the frames that it went through. If one of them held the error, both
            # would stay until the next garbage collection, with all their arrays.
            del self

    def result(self) -> int:
        """Return what the work returned, or raise its error."""
        error, self._error = self._error, None
        if error is None:
            return self._count
        try:
            raise error
        finally:
            del error  # as in `take`


def _stopping(work: Work[Item], queue: Queue[Item]) -> int:
    """Work; an error stops the others. Who is stopped returns: the error is another's to raise."""
    try:
        return work(queue, queue.pause)
    except StoppedError:
        return 0
    except BaseException:
        queue.stop()
        raise
