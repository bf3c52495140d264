"""Pinning threads to cores of their own for a moment.

To save power, some systems wake a thread on the core of its waker and only move it milliseconds
later; virtual machines, whose cores are slow to wake up, do so. Threads that wait for each
other, as for the interpreter's lock, are then repeatedly packed onto one core.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.threads.idle import PooledThread

__all__ = ["Pinning"]

# Seconds. Short work is done by then; for long work the scheduler may know better.
_MOMENT = 0.1


class Pinning:
    """The calling thread and its helpers, each pinned to a core for a moment.

    Threads are only pinned if there are as many as the cores that the caller may use. With
    fewer, the scheduler knows better which cores are free, and which are halves of one.

    Parameters
    ----------
    helpers : list of PooledThread
        May be filled until `begin`, which in any case lets them use the cores of the caller.
    """

    def __init__(self, helpers: list[PooledThread]) -> None:
        self._helpers = helpers
        self._threads: list[int] = []
        self._allowed: set[int] = set()
        self._until = math.inf

    def begin(self, *, pinned: bool = True) -> None:
        """Pin the threads, if ``pinned`` and if the system supports it."""
        if not hasattr(os, "sched_setaffinity"):
            return
        self._threads = [threading.get_native_id(), *(helper.thread for helper in self._helpers)]
        self._allowed = os.sched_getaffinity(0)
        self._until = time.monotonic() + _MOMENT
        as_many = len(self._allowed) == len(self._threads)
        cores = _own_first(self._allowed) if pinned and as_many else []
        if not (cores and self._set([{core} for core in cores])):
            self.end()

    def end_if_due(self) -> None:
        """Unpin the threads once the moment is over; any of them may call this."""
        if time.monotonic() > self._until:
            self.end()

    def end(self) -> None:
        """Let all threads use all cores again."""
        if self._until < math.inf:
            # In this order, so that the next call completes one interrupted by Ctrl-C.
            self._set([self._allowed] * len(self._threads))
            self._until = math.inf

    def _set(self, cores: Sequence[set[int]]) -> bool:
        """Restrict each thread to its set of cores; return whether the system allowed it."""
        try:
            for thread, own in zip(self._threads, cores, strict=True):
                os.sched_setaffinity(thread, own)
        except OSError:
            return False
        return True


def _own_first(cores: set[int]) -> list[int]:
    """Return the cores, that of the calling thread first; none if that is not among them."""
    own = _current_core()
    return [own, *sorted(cores - {own})] if own in cores else []


def _current_core() -> int:
    """Return the core of the calling thread, or −1 if the system does not report it."""
    sched_getcpu = _sched_getcpu()
    return -1 if sched_getcpu is None else int(sched_getcpu())


@cache
def _sched_getcpu() -> ctypes._NamedFuncPointer | None:
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)
