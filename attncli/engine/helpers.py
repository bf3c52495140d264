"""Threads that work beside the calling one, kept from one call to the next.

To start one takes a tenth of the time of a short work, and the system may put it on the core
of its starter, where it waits for milliseconds. One that is kept can be told beforehand
where to wake up (`attncli.engine.apart`).
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Helper", "give_back", "take"]


class Helper:
    """A thread that does one job after another, and waits in between.

    Ctrl-C may come between any two steps of the caller. So what is said by a lock is said a
    second time by what it stands for: a lock that was missed, or released once too often,
    costs a look and no more.

    Attributes
    ----------
    thread : int
        The number that the system knows it by.
    """

    def __init__(self) -> None:
        self.thread = 0
        self._job: Callable[[], None] | None = None
        self._called, self._finished = _thread.allocate_lock(), _thread.allocate_lock()
        self._called.acquire()
        self._finished.acquire()
        # The threads of `threading` would let the program wait for their end.
        _thread.start_new_thread(self._live, ())
        while not self.thread:
            self._finished.acquire(timeout=_LOOK)

    def begin(self, job: Callable[[], None]) -> None:
        """Let the thread, which is idle, do a job, which must not raise."""
        self._job = job
        _open(self._called)

    def wait(self) -> None:
        """Wait until the thread is idle."""
        while self._job is not None:
            # Ctrl-C just before a wait does not end it: Python looks for it when it is over.
            if not self._finished.acquire(timeout=_LOOK):
                _open(self._called)

    def _live(self) -> None:
        self.thread = threading.get_native_id()
        _open(self._finished)
        while self._called.acquire():
            if self._job is not None:
                self._job()
                # Nothing may hold the job, and its arrays, until the next one comes.
                self._job = None
                _open(self._finished)


# Seconds after which a thread that waits looks whether it was not heard.
_LOOK = 0.1


def _open(lock: _thread.LockType) -> None:
    """Let who waits for a lock go on, or the next who comes."""
    with suppress(RuntimeError):  # it is open
        lock.release()


# As many as ever worked at once.
_idle: list[Helper] = []
if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_idle.clear)


def take(count: int, taken: list[Helper]) -> None:
    """Add helpers that nobody else uses: so many, or as many as the system grants."""
    # When Python ends, other threads do not run any more.
    while len(taken) < count and not sys.is_finalizing():
        try:
            taken.append(_idle.pop() if _idle else Helper())
        except IndexError:  # another thread was quicker
            continue
        except RuntimeError:  # the system grants no more threads: the work is done with these
            break


def give_back(helpers: list[Helper]) -> None:
    """Leave helpers that are idle to the next caller."""
    while helpers:
        _idle.append(helpers.pop())
