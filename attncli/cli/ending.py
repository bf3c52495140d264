"""How the program ends: exit codes, signals, closed streams, and tidying up.

=====  =====================================================
code   meaning
=====  =====================================================
0      fine
1      ``check`` found a mismatch
2      wrong usage or wrong input
130    interrupted; 143 and 129 where SIGTERM or SIGHUP did it
141    the reader of the output went away
=====  =====================================================
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import NoReturn

MISMATCH, WRONG, READER_GONE = 1, 2, 141

# Windows has no SIGHUP.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_PATIENCE = 1.0  # seconds in which a second signal counts as part of the first
# Seconds after which a signal that Python swallowed is raised again. Windows has no timers.
_SOON = 0.01
_TIMERS = hasattr(signal, "setitimer")


class SignalError(BaseException):
    """A signal asks the program to end; ``except Exception`` does not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        # The exit code of shells.
        self.code = 128 + number


def stop_cleanly() -> Stopper:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a `SignalError`, so that files are tidied up."""
    stopper = Stopper()
    for number in _SIGNALS:
        # A signal that the parent ignores stays ignored: nohup, and jobs in the background.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stopper)
    if _TIMERS:
        sys.unraisablehook = stopper.again
    sys.excepthook = _printed
    return stopper


def stop_at_once() -> None:
    """Let signals end the process themselves: nothing is left to be tidied up."""
    if _TIMERS:
        signal.setitimer(signal.ITIMER_REAL, 0)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _printed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error, but no `SignalError`: NumPy's import would print it."""
    if not isinstance(error, SignalError):
        sys.__excepthook__(kind, error, trace)


class Stopper:
    """The handler of signals; it keeps the exit code of the last one."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._last = float("-inf")

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Raise a `SignalError`, unless another signal came just before."""
        # A closing session sends SIGTERM and SIGHUP at once: the second must not
        # interrupt the tidying up after the first. One that comes later is meant.
        if time.monotonic() - self._last > _PATIENCE:
            self._last = time.monotonic()
            stopped = SignalError(number)
            self.code = stopped.code
            raise stopped

    def again(self, ignored: sys.UnraisableHookArgs) -> None:
        """Raise a signal again that Python swallowed in a destructor or weak reference."""
        if not isinstance(ignored.exc_value, SignalError):
            sys.__unraisablehook__(ignored)
            return
        number, self._last = ignored.exc_value.code - 128, float("-inf")
        signal.signal(signal.SIGALRM, lambda _number, frame: self(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _SOON)


def open_closed_streams() -> None:
    """Open a null device for each closed stream, or the next file would become that stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number: this one. Stdout is opened for reading only, so
            # that writing to it still fails.
            os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY)


def leave(code: int) -> NoReturn:
    """Flush stdout and stderr, and end the process."""
    for stream in (sys.stdout, sys.stderr):
        # Nobody is left to hear of a failure.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # Here packages remove their temporary folders.
    atexit._run_exitfuncs()  # noqa: SLF001 - os._exit leaves them out
    # All is written and closed; Python's own clean-up of the modules would take 25 ms.
    os._exit(code)
