"""Work spread over threads, each with one BLAS thread.

NumPy releases the interpreter's lock in its loops and in BLAS, so threads over
blocks scale; two BLAS threads on one small tile do not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["available_cores", "single_blas_thread", "spread"]

Item = TypeVar("Item")


def available_cores() -> int:
    """Return how many cores this process may use, by affinity and by cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _cgroup_quota() or cores))


def _cgroup_quota() -> int | None:
    """Return the cores that the cgroup grants, rounded up, or None where it does not say."""
    folder = Path("/sys/fs/cgroup")
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (folder / "cpu/cpu.cfs_period_us").read_text(encoding="ascii")
        except OSError:
            return None
    if not quota.strip().isdigit() or not int(period):
        return None
    return -(-int(quota) // int(period))


def spread(work: Callable[[Iterator[Item]], int], items: Iterable[Item], threads: int) -> int:
    """Let each of some threads call ``work`` with one shared iterator, and add up what they return.

    The first error stops the others at their next item and is raised here; so does
    Ctrl-C.

    Parameters
    ----------
    work : callable
        Takes items until there are none and returns a count.
    items : iterable
    threads : int
        With 1 the work is done in the calling thread.
    """
    if threads == 1:
        return work(iter(items))
    # Made here, not at the top: a small problem never pays for the import.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    queue = _Shared(items)
    with ThreadPoolExecutor(threads) as pool:
        try:
            futures = [pool.submit(_watched, work, queue) for _ in range(threads)]
            return sum(future.result() for future in futures)
        finally:
            queue.stop()


def _watched(work: Callable[[Iterator[Item]], int], queue: _Shared[Item]) -> int:
    try:
        return work(queue)
    finally:
        # Reached in order when all is done, or early by an error: then the others stop too.
        queue.stop()


class _Shared(Generic[Item]):
    """An iterator that several threads may draw from, and that can be stopped."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()
        self._stopped = False

    def __iter__(self) -> _Shared[Item]:
        return self

    def __next__(self) -> Item:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._items)

    def stop(self) -> None:
        self._stopped = True


class _Blas:
    """The process-wide number of BLAS threads: the first caller in saves it, the last restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._controller: Any = None
        self._limit: Any = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            if self._controller is None:
                from threadpoolctl import ThreadpoolController  # noqa: PLC0415

                self._controller = ThreadpoolController()
            self._limit = self._controller.limit(limits=1, user_api="blas")

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._limit.restore_original_limits()


_BLAS = _Blas()


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Give BLAS one thread, and back what it had, also when an error ends the block."""
    _BLAS.enter()
    try:
        yield
    finally:
        _BLAS.leave()
