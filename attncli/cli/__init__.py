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
    except Exception:  # noqa: BLE001 - a defect; but Python's exit code 1 would say mismatch
        if stopper.code is None:
            sys.excepthook(*sys.exc_info())
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
    try:
        return _call(argv)
    except AttnError as error:
        from attncli.cli.terminal import say_error

        say_error(error)
        return WRONG
    except BrokenPipeError:
        return READER_GONE
    except (OSError, MemoryError) as error:
        from attncli.cli.terminal import say_system

        say_system(error)
        return WRONG


def _call(argv: list[str]) -> int:
    import typer

    from attncli.cli.app import build
    from attncli.cli.groups import ReaderGoneError

    try:
        code = build(argv)(argv, prog_name="attncli", standalone_mode=False)
    except typer.TyperException as error:
        from attncli.cli.terminal import say_error
        from attncli.cli.usage import usage_error

        context = getattr(error, "ctx", None)
        # Of an option without its value Typer does not say where it stands.
        named = f"attncli {argv[0]}" if argv and argv[0].isalpha() else None
        command = context.command_path if context else named
        params = context.command.params if context else ()
        options = {option for each in params for option in each.opts}
        say_error(usage_error(error.format_message(), command, options))
        return WRONG
    except ReaderGoneError:
        return READER_GONE
    except SystemExit as end:
        # Typer leaves so after installing completion, and where nobody reads its help.
        gone = isinstance(end.__context__, BrokenPipeError)
        return READER_GONE if gone else WRONG if end.code else 0
    if code == 0:  # help and version end so; a command with None
        _flush()
    return code if isinstance(code, int) else 0


def _flush() -> None:
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    sys.stdout.flush()
