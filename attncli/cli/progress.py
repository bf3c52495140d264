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
    sign = _Sign(words)
    timer = threading.Timer(_PATIENCE, sign.open)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        sign.close()


def _is_watched(*, quiet: bool) -> bool:
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


class _Sign:
    def __init__(self, words: str) -> None:
        self._lock = threading.Lock()
        self._words = words
        self._progress: Progress | None = None
        self._closed = False

    def open(self) -> None:
        """Show the words, unless the work has ended."""
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if not self._closed:
                self._progress = _open(
                    SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
                )
                self._progress.add_task(self._words, total=None)

    def close(self) -> None:
        """Take the words away."""
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()


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
