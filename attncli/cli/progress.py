"""A progress bar on stderr, where that is a terminal and the work is long."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

__all__ = ["progress_bar"]

_PATIENCE = 1.0


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function that takes blocks done and blocks in all, from any thread.

    None is given where stderr is no terminal. Nothing is drawn in the first second.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar.update
    finally:
        bar.close()


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
                self._progress = _open()
                self._progress.add_task("computing", total=total)
            self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        """Take the bar away."""
        with self._lock:
            if self._progress is not None:
                self._progress.stop()


def _open() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    progress.start()
    return progress
