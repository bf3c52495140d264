"""What the program says on stderr, and what stdout can show."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, cast

from attncli.errors import AttnError, AttnWarning, OutputError
from attncli.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO, TextIO

    from rich.console import Console

__all__ = [
    "advice",
    "binary_stdout",
    "color_depth",
    "console",
    "height",
    "is_terminal",
    "note",
    "piped_in",
    "print_document",
    "print_text",
    "say",
    "say_error",
    "say_system",
    "shows_unicode",
    "width",
]

# Rich folds at the console's width; a pipe has none.
_NO_WIDTH = 1_000_000
# A name in a file may have millions of letters; two paths and a sentence have not.
_LONGEST = 10_000
# Narrower terminals say no size, or have no room for words.
_NARROWEST = 20


def say(kind: str, message: str) -> None:
    """Write one line to stderr, wrapped in a terminal; a closed stderr hears nothing."""
    # To print, no file means stdout: there a message would be taken for a result.
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            line = f"{kind}: {printable(_shortened(message))}"
            print(_wrapped(line) if sys.stderr.isatty() else line, file=sys.stderr)  # noqa: T201


def _wrapped(line: str) -> str:
    """Break a line between words where the terminal would break it within one."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return line
    if columns < _NARROWEST or len(line) <= columns // 2:
        return line
    from attncli.view.wrapping import wrapped

    return "\n".join(wrapped(line.split(" "), columns))


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST:
        return message
    return f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"


def note(message: str, *, quiet: bool) -> None:
    """Write a note to stderr unless silenced."""
    if not quiet:
        say("note", message)


def say_error(error: AttnError) -> None:
    """Write an error and its hint to stderr."""
    say("error", error.message)
    if error.hint is not None:
        say("hint", error.hint)


def say_system(error: OSError | MemoryError) -> None:
    """Write what the system refused: a full disk behind stdout, or memory."""
    if isinstance(error, OSError):
        say("error", f"{error.filename or 'standard output'}: {error.strerror or error}")
    else:
        say("error", "there is not enough memory for this problem")
        say(
            "hint",
            "a part of it needs less: fewer queries, one batch entry or one head; weights that go "
            "straight into a file need next to none: --show context --save weights=w.npy",
        )


@contextmanager
def advice(*, quiet: bool) -> Iterator[None]:
    """Show the warnings of a block on stderr, each once, unless silenced.

    Also before an error: what was doubtful in a file may be what is wrong in the end.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AttnWarning)
        try:
            yield
        except AttnError:
            _say_warnings(caught, quiet=quiet)
            raise
    _say_warnings(caught, quiet=quiet)


def _say_warnings(caught: Sequence[warnings.WarningMessage], *, quiet: bool) -> None:
    if not quiet:
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            say("warning", message)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def width() -> int | None:
    """Return the columns of the terminal, or None where stdout is none."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def piped_in() -> bool:
    """Return whether something is piped in: stdin is a pipe, a socket or a regular file."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def height() -> int | None:
    """Return the lines of the terminal, or None where stdout is none."""
    return shutil.get_terminal_size().lines if is_terminal() else None


def console(color: str) -> Console:
    """Return a Rich console on stdout that cuts nothing in a pipe."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            # Rich would leave with exit code 1.
            raise BrokenPipeError

    depth = color_depth(color)
    return Piped(
        file=_stdout() if shows_unicode() else cast("TextIO", _InAscii(_stdout())),
        width=width() or _NO_WIDTH,
        force_terminal=depth != "none",
        color_system=None if depth == "none" else depth,
        no_color=depth == "none",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def color_depth(color: str) -> Literal["none", "256", "truecolor"]:
    """Return the colours to use: what was asked for, and what the terminal has.

    Rich's own guess is not asked: it takes FORCE_COLOR=0 for a terminal.
    """
    term = os.environ.get("TERM", "")
    plain = bool(os.environ.get("NO_COLOR")) or term in ("", "dumb", "unknown")
    if color == "never" or (color == "auto" and (plain or not is_terminal())):
        return "none"
    deep = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    return "truecolor" if deep else "256"


def shows_unicode() -> bool:
    """Return whether stdout takes more than ASCII."""
    encoding = (_stdout().encoding or "ascii").lower()
    return encoding.replace("-", "") in ("utf8", "utf16", "utf32", "gb18030")


class _InAscii:
    """A stream for text whose signs are no part of its layout: they are written in ASCII."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        from attncli.view.signs import FORMULA_SIGNS, known

        return self._stream.write(known(text, unicode=False, signs=FORMULA_SIGNS))


def print_text(text: str) -> None:
    """Write text and a line break to stdout."""
    _stdout().write(text + "\n")


def print_document(text: str) -> None:
    """Write JSON or Markdown and a line break to stdout: in UTF-8, whatever the terminal has."""
    stream = binary_stdout()
    stream.write(f"{text}\n".encode("utf-8", "backslashreplace"))
    stream.flush()


class _Onward:
    """A stream that is written from here on, and knows no places.

    What does is not to be believed: /dev/null is always at its beginning, and ``>>`` writes
    at the end wherever one seeks.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.write = stream.write
        self.writelines = stream.writelines
        self.flush = stream.flush


def binary_stdout() -> BinaryIO:
    """Return stdout for bytes, one after the other.

    Raises
    ------
    OutputError
        Stdout is closed.
    """
    stream = _stdout().buffer
    if isinstance(stream, io.RawIOBase):
        # PYTHONUNBUFFERED: a raw stream may write a part only, and say so in a number.
        return cast("BinaryIO", _Onward(open(stream.fileno(), "wb", closefd=False)))
    return cast("BinaryIO", _Onward(stream))


def _stdout() -> TextIO:
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    return sys.stdout
