"""How many threads BLAS uses: one while the engine runs, and its previous number afterwards.

The products of tiles are too small for more, and their last bits depend on the number. Most
builds of BLAS have one setting for the whole process; OpenBLAS with OpenMP has one for each
thread.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, and restore its setting at the end, even after an error.

    If several threads are in such blocks at once, the last one to leave restores the setting.
    """
    own = [library for library in libraries() if _is_per_thread(library)]
    before = [library.get_num_threads() for library in own]
    user = object()

    def restore() -> None:
        _PROCESS.leave(user)
        for library, count in zip(own, before, strict=True):
            library.set_num_threads(count)

    try:
        for library in own:
            library.set_num_threads(1)
        _PROCESS.enter(user)
        yield
    finally:
        try:
            restore()
        except BaseException:  # Ctrl-C: restoring twice does no harm
            restore()
            raise


def use_one_thread() -> None:
    """Limit BLAS to one thread in the calling thread, if it has a setting for each thread."""
    for library in libraries():
        if _is_per_thread(library):
            library.set_num_threads(1)


class _ProcessWide:
    """The process-wide settings: the first user saves them, the last one restores them.

    Ctrl-C may come between any two steps, so saved settings are only forgotten after they have
    been restored, and leaving without having entered does no harm.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, int]] = []
        self.forget_users()

    def forget_users(self) -> None:
        """Reset a forked process, which has none of its parent's other threads."""
        self._lock = threading.Lock()
        self._users: set[object] = set()

    def enter(self, user: object) -> None:
        with self._lock:
            if not self._before:
                shared = [library for library in libraries() if not _is_per_thread(library)]
                self._before = [(library, library.get_num_threads()) for library in shared]
            first = not self._users
            self._users.add(user)
            if first:
                for library, _ in self._before:
                    _set(library, 1)

    def leave(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                for library, count in self._before:
                    _set(library, count)
                self._before = []


_PROCESS = _ProcessWide()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.forget_users)


@cache
def libraries() -> list[Any]:
    """Return threadpoolctl's controllers of the BLAS libraries in this process."""
    # Searching the loaded libraries takes a millisecond, changing a setting a microsecond.
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415

    found: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found


def _is_per_thread(library: Any) -> bool:
    return bool(library.internal_api == "openblas" and library.threading_layer == "openmp")


def _set(library: Any, count: int) -> None:
    # Since 3.8 threadpoolctl lets one thread at a time control OpenBLAS and ignores all others.
    # One thread may set the limit and another restore it, so neither keeps control.
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    library.set_num_threads(count)
    if release is not None:
        release(force=True)
