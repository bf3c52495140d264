"""argv to exit code: the one place where errors become messages."""

from __future__ import annotations

import gc
import os
import sys
import warnings

from attncli.cli.ending import (
    READER_GONE,
    WRONG,
    SignalError,
    leave,
    open_closed_streams,
    stop_at_once,
    stop_cleanly,
)
from attncli.cli.terminal import say_defect, say_error, say_system
from attncli.errors import AttnError, OutputError

__all__ = ["main"]


def main() -> None:
    """Run the program and exit."""
    stopper = stop_cleanly()
    try:
        code = _prepared(sys.argv[1:])
        stop_at_once()
    except SignalError as stopped:
        code = stopped.code
        stop_at_once()
    except Exception as defect:  # noqa: BLE001 - Python's exit code 1 would mean a mismatch
        if stopper.code is None:
            say_defect(defect)
        code = stopper.code or WRONG
    leave(code)


def _prepared(argv: list[str]) -> int:
    open_closed_streams()
    # A run of seconds leaves too little garbage to collect. This saves 15 ms of start-up.
    gc.disable()
    # The engine gives each of its threads one BLAS thread. Threads that OpenBLAS starts when NumPy
    # is imported would only spin, and cost 10 ms of start-up.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The user's -W error must not stop on warnings of other packages; `advice` shows ours.
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # A character that the terminal's encoding lacks is shown as its code.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return _run(argv)


def _run(argv: list[str]) -> int:
    # `attncli help compute` is `attncli compute --help`.
    argv = [*argv[1:2], "--help"] if argv[:1] == ["help"] else argv
    try:
        return _call(argv)
    except AttnError as error:
        say_error(error, argv)
        return WRONG
    except BrokenPipeError:
        return READER_GONE
    except (OSError, MemoryError) as error:
        say_system(error)
        return WRONG


def _call(argv: list[str]) -> int:
    import typer

    from attncli.cli.commands import build, usage_error

    try:
        code = build(argv)(argv, prog_name="attncli", standalone_mode=False)
    except typer.TyperException as error:
        raise usage_error(error, argv) from None
    except SystemExit as end:
        # Typer exits here after installing completion, and when the reader of stdout is gone.
        gone = isinstance(end.__context__, BrokenPipeError)
        return READER_GONE if gone else WRONG if end.code else 0
    if sys.stdout is not None:
        sys.stdout.flush()
    elif code == 0:  # from help and version; a command returns None
        raise OutputError("standard output is closed")
    return code if isinstance(code, int) else 0
