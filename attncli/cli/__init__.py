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
    except Exception as defect:  # noqa: BLE001 - a defect; but Python's exit code 1 would say mismatch
        if stopper.code is None:
            say_defect(defect)
        code = stopper.code or WRONG
    leave(code)


def _prepared(argv: list[str]) -> int:
    open_closed_streams()
    # What a run of seconds leaves behind is not worth looking for: 15 ms of start-up.
    gc.disable()
    # The engine gives each of its threads one BLAS thread. OpenBLAS would start its own as
    # NumPy is imported, and they spin beside it: 10 ms of start-up.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The user's -W error is not for what packages warn each other about; `advice` shows ours.
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # What a terminal's encoding has no letter for is shown as its code.
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
        # Typer leaves so after installing completion, and where nobody reads on.
        gone = isinstance(end.__context__, BrokenPipeError)
        return READER_GONE if gone else WRONG if end.code else 0
    if sys.stdout is not None:
        sys.stdout.flush()
    elif code == 0:  # help and version end so; a command with None
        raise OutputError("standard output is closed")
    return code if isinstance(code, int) else 0
