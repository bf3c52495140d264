"""Threads that start on cores of their own.

Systems that save cores wake a thread where its waker runs, and move it milliseconds later:
virtual machines do, whose cores take long to wake up. Threads that wait for each other, as
they do for the interpreter's lock, are packed together so again and again.
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

    from attncli.engine.helpers import Helper

__all__ = ["Apart"]

# Seconds. A short work is done by then; in a long one the system may know better.
_MOMENT = 0.1


class Apart:
    """The calling thread and its helpers, kept to a core each for a moment.

    Only where there are as many as the cores that the caller may use: with fewer, the
    system knows better which cores are free, and which are halves of one.

    Parameters
    ----------
    helpers : list of Helper
        Those that there are when it begins. They are given the cores of the caller in any case.
    """

    def __init__(self, helpers: list[Helper]) -> None:
        self._helpers = helpers
        self._threads: list[int] = []
        self._allowed: set[int] = set()
        self._until = math.inf

    def begin(self, *, pinned: bool = True) -> None:
        """Keep the threads apart, where the system can and if they may be `pinned`."""
        if not hasattr(os, "sched_setaffinity"):
            return
        self._threads = [threading.get_native_id(), *(helper.thread for helper in self._helpers)]
        self._allowed = os.sched_getaffinity(0)
        self._until = time.monotonic() + _MOMENT
        as_many = len(self._allowed) == len(self._threads)
        cores = _own_first(self._allowed) if pinned and as_many else []
        if not (cores and self._keep([{core} for core in cores])):
            self.end()

    def look(self) -> None:
        """End it when the moment is over; any of the threads may call this."""
        if time.monotonic() > self._until:
            self.end()

    def end(self) -> None:
        """Let all threads use all cores again."""
        if self._until < math.inf:
            # In this order: if Ctrl-C comes between, the next call does it again.
            self._keep([self._allowed] * len(self._threads))
            self._until = math.inf

    def _keep(self, cores: Sequence[set[int]]) -> bool:
        """Keep each thread to some cores; return whether the system let us."""
        try:
            for thread, own in zip(self._threads, cores, strict=True):
                os.sched_setaffinity(thread, own)
        except OSError:
            return False
        return True


def _own_first(cores: set[int]) -> list[int]:
    """Return some cores, that of the calling thread first; nothing where it is not among them."""
    own = _current_core()
    return [own, *sorted(cores - {own})] if own in cores else []


def _current_core() -> int:
    ask = _core_teller()
    return -1 if ask is None else int(ask())


@cache
def _core_teller() -> ctypes._NamedFuncPointer | None:
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)
