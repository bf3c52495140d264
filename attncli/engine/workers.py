"""Work spread over threads, each with one BLAS thread.

NumPy releases the interpreter's lock in its loops and in BLAS, so threads over
blocks scale; two BLAS threads on one small tile do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Queue", "StoppedError", "single_blas_thread", "spread"]

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
    # Made here, not at the top: a small problem never pays for the import.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(threads - 1, thread_name_prefix="attncli") as pool:
        try:
            others = [pool.submit(_stopping, work, queue) for _ in range(threads - 1)]
            own = _stopping(work, queue)
            return own + sum(other.result() for other in others)
        finally:
            queue.stop()


def _stopping(work: Work[Item], queue: Queue[Item]) -> int:
    """Work; an error stops the others. Who is stopped returns: the error is another's to raise."""
    try:
        return work(queue, queue.pause)
    except StoppedError:
        return 0
    except BaseException:
        queue.stop()
        raise


class _Blas:
    """The process-wide number of BLAS threads: the first caller in saves it, the last restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._libraries: list[Any] | None = None
        self._before: list[int] = []

    def enter(self) -> None:
        with self._lock:
            if not self._users:
                self._before = [library.get_num_threads() for library in self._found()]
                self._set([1] * len(self._before))
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._set(self._before)

    def _set(self, counts: list[int]) -> None:
        for library, count in zip(self._found(), counts, strict=True):
            library.set_num_threads(count)

    def _found(self) -> list[Any]:
        # Looking through the loaded libraries takes a millisecond, setting a microsecond.
        if self._libraries is None:
            from threadpoolctl import ThreadpoolController  # noqa: PLC0415

            found = ThreadpoolController().select(user_api="blas")
            self._libraries = found.lib_controllers
        return self._libraries


_BLAS = _Blas()


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Give BLAS one thread, and back what it had, also when an error ends the block.

    Where several threads are in such blocks at once, the last to leave gives back.
    """
    _BLAS.enter()
    try:
        yield
    finally:
        _BLAS.leave()
