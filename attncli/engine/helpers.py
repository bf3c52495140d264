"""Threads that work beside the calling one, kept from one call to the next.

To start one takes a tenth of the time of a short work, and the system may put it on the core
of its starter, where it waits for milliseconds. One that is kept can be told beforehand
where to wake up (`attncli.engine.apart`).
"""

from __future__ import annotations

import _thread
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Helper", "give_back", "take"]


class Helper:
    """A thread that does one job after another, and waits in between.

    The threads of `threading` let the program wait for their end.

    Attributes
    ----------
    thread : int
        The number that the system knows it by.
    """

    def __init__(self) -> None:
        self.thread = 0
        self._job: Callable[[], None] | None = None
        self._call, self._busy = _thread.allocate_lock(), _thread.allocate_lock()
        self._call.acquire()
        self._busy.acquire()
        _thread.start_new_thread(self._live, ())
        self.wait()

    def begin(self, job: Callable[[], None]) -> None:
        """Let the thread do a job, which must not raise."""
        self._busy.acquire()
        self._job = job
        self._call.release()

    def wait(self) -> None:
        """Wait until the thread is done."""
        # Ctrl-C just before a wait does not end it: Python looks for it when the wait is over.
        while not self._busy.acquire(timeout=0.1):
            pass
        self._busy.release()

    def _live(self) -> None:
        self.thread = threading.get_native_id()
        self._busy.release()
        while self._call.acquire():
            # Nothing may hold the job, and its arrays, until the next one comes.
            job, self._job = self._job, None
            if job is not None:
                job()
            del job
            self._busy.release()


# As many as ever worked at once.
_idle: list[Helper] = []
if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_idle.clear)


def take(count: int) -> list[Helper]:
    """Return helpers that nobody else uses: so many, or as many as the system grants."""
    taken: list[Helper] = []
    while len(taken) < count:
        try:
            taken.append(_idle.pop() if _idle else Helper())
        except IndexError:  # another thread was quicker
            continue
        except RuntimeError:  # the system grants no more threads: the work is done with these
            break
    return taken


def give_back(helpers: list[Helper]) -> None:
    """Leave helpers that are done to the next caller."""
    _idle.extend(helpers)
