"""Progress on stderr, where that is a terminal and the work is long."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, ProgressColumn

__all__ = ["progress_bar", "waiting"]

_PATIENCE = 1.0


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function that takes blocks done and blocks in all, from any thread.

    None is given where stderr is no terminal. Nothing is drawn in the first second.
    """
    if not _is_watched(quiet=quiet):
        yield None
        return
    bar = _Bar()
    try:
        yield bar.update
    finally:
        bar.close()


@contextmanager
def waiting(words: str, *, quiet: bool) -> Iterator[None]:
    """Show what work is done, from its first second on, that cannot tell how far it is."""
    if not _is_watched(quiet=quiet):
        yield
        return
    shown: list[Progress] = []
    timer = threading.Timer(_PATIENCE, lambda: shown.append(_open_sign(words)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for progress in shown:
            progress.stop()


def _is_watched(*, quiet: bool) -> bool:
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


class _Bar:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._progress: Progress | None = None

    def update(self, done: int, total: int) -> None:
        """Show how much is done."""
        if time.monotonic() - self._start < _PATIENCE:
            return
        with self._lock:
            if self._progress is None:
                self._progress = _open_bar()
                self._progress.add_task("computing", total=total)
            self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        """Take the bar away."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()


def _open_sign(words: str) -> Progress:
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = _open(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress.add_task(words, total=None)
    return progress


def _open_bar() -> Progress:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.description}")
    return _open(words, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())


def _open(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    progress.start()
    return progress
