"""argv to exit code: the one place where errors become messages.

=====  =====================================================
code   meaning
=====  =====================================================
0      fine
1      ``check`` found a mismatch
2      wrong usage or wrong input
130    interrupted
141    the reader of the output went away
=====  =====================================================
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys

from attncli.errors import AttnError

__all__ = ["main"]

WRONG, INTERRUPTED, READER_GONE = 2, 130, 141


def main() -> None:
    """Run the program and exit."""
    # What a run of seconds leaves behind is not worth looking for: 15 ms of start-up.
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # What a terminal's encoding has no letter for is shown as its code.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = _run(sys.argv[1:])
    _close()
    # All is written and closed; taking every module apart again costs 25 ms.
    os._exit(code)


def _run(argv: list[str]) -> int:
    try:
        return _call(argv)
    except AttnError as error:
        from attncli.cli.terminal import say_error  # noqa: PLC0415

        say_error(error)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return READER_GONE
    except (OSError, MemoryError) as error:
        from attncli.cli.terminal import say_system  # noqa: PLC0415

        say_system(error)
        return WRONG


def _call(argv: list[str]) -> int:
    import typer  # noqa: PLC0415

    from attncli.cli.app import build  # noqa: PLC0415
    from attncli.cli.groups import ReaderGoneError  # noqa: PLC0415

    try:
        code = build(argv)(argv, prog_name="attncli", standalone_mode=False)
    except typer.TyperException as error:
        from attncli.cli.terminal import say_usage  # noqa: PLC0415

        context = getattr(error, "ctx", None)
        say_usage(error.format_message(), context and context.command_path)
        return WRONG
    except typer.Abort:
        return INTERRUPTED
    except ReaderGoneError:
        return READER_GONE
    return code if isinstance(code, int) else 0


def _close() -> None:
    """Write out what is buffered; nobody is left to hear of a failure."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
