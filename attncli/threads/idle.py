"""Threads that work beside the calling one, and stay idle in a pool between calls.

Starting a thread takes a tenth of the time of a short call, and the system may put it on the
core of its starter, where it waits for milliseconds. A pooled thread can be pinned to another
core before it is woken (`attncli.threads.pinning`).
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

__all__ = ["PooledThread", "borrow", "give_back"]


class PooledThread:
    """A thread that does one job after another, and waits in between.

    Ctrl-C may come between any two steps of the caller. So every signal is sent twice: by a lock,
    and by the state that the lock announces. A lock that was missed, or released once too often,
    only costs another look at the state.

    Attributes
    ----------
    thread : int
        The thread's number in the operating system.
    """

    def __init__(self) -> None:
        self.thread = 0
        self._job: Callable[[], None] | None = None
        self._called, self._finished = _thread.allocate_lock(), _thread.allocate_lock()
        self._called.acquire()
        self._finished.acquire()
        # A thread of `threading` would keep the program alive.
        _thread.start_new_thread(self._run, ())
        while not self.thread:
            self._finished.acquire(timeout=_POLL)

    def begin(self, job: Callable[[], None]) -> None:
        """Start a job, which must not raise, in this thread, which must be idle."""
        self._job = job
        _release(self._called)

    def wait(self) -> None:
        """Wait until the thread is idle."""
        while self._job is not None:
            # Ctrl-C just before a wait does not end it: Python only handles it afterwards.
            if not self._finished.acquire(timeout=_POLL):
                _release(self._called)

    def _run(self) -> None:
        self.thread = threading.get_native_id()
        _release(self._finished)
        while self._called.acquire():
            if self._job is not None:
                self._job()
                # An idle thread must not keep the job and its arrays alive.
                self._job = None
                _release(self._finished)


# Seconds after which a waiting thread checks the state, in case a signal was lost.
_POLL = 0.1


def _release(lock: _thread.LockType) -> None:
    """Release a lock, whether or not it is held."""
    with suppress(RuntimeError):  # it was not held
        lock.release()


# As many as ever worked at the same time.
_idle: list[PooledThread] = []
if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_idle.clear)


def borrow(count: int, borrowed: list[PooledThread]) -> None:
    """Fill a list with idle threads, up to ``count`` or as many as the system grants."""
    # Other threads no longer run while Python shuts down.
    while len(borrowed) < count and not sys.is_finalizing():
        try:
            borrowed.append(_idle.pop() if _idle else PooledThread())
        except IndexError:  # another caller took the last one
            continue
        except RuntimeError:  # the system grants no more threads: make do with these
            break


def give_back(threads: list[PooledThread]) -> None:
    """Return idle threads to the pool."""
    while threads:
        _idle.append(threads.pop())
