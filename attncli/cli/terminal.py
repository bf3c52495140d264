"""What the program says on stderr, what stdout can show, and the progress of long work."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from attncli import ISSUES
from attncli.errors import AttnError, AttnWarning, OutputError, UsageError
from attncli.errors.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import BinaryIO, TextIO

    from rich.console import RenderableType
    from rich.progress import Progress

    from attncli.view.limits import Depth, Limits

# Columns of a pipe: Rich folds lines at the console's width, and a pipe has no edge.
_NO_WIDTH = 1_000_000
# Most characters of a message: a name in a file may have millions.
_LONGEST = 10_000
# Columns: a terminal with fewer does not know its size, or has no room for words.
_NARROWEST = 20
# Seconds before progress is shown.
_PATIENCE = 1.0
_OUT_OF_MEMORY = AttnError(
    "there is not enough memory for this problem",
    hint="a part of it needs less: fewer queries, one batch entry or one head; weights that go "
    "straight into a file need next to none: --show context --save weights=w.npy",
)


def say(kind: str, message: str) -> None:
    """Write one line to stderr, wrapped in a terminal; a closed stderr is no error."""
    # Without a file, print writes to stdout, where a message would be taken for a result.
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            if len(message) > _LONGEST:
                message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
            line = f"{kind}: {printable(message)}"
            print(_wrapped(line) if sys.stderr.isatty() else line, file=sys.stderr)  # noqa: T201


def _wrapped(line: str) -> str:
    import textwrap

    columns = 0
    with suppress(OSError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    if columns < _NARROWEST:
        return line
    return textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False)


def note(message: str, *, quiet: bool) -> None:
    """Write a note to stderr unless silenced."""
    if not quiet:
        say("note", message)


def say_error(error: AttnError, argv: Sequence[str] = ()) -> None:
    """Write an error and its hint to stderr, with the option that it is about."""
    # Other errors may begin with a file whose name looks like an option.
    named = isinstance(error, UsageError) and error.message.startswith("--")
    say("error", error.message if named else _by_option(error.message, argv))
    if error.hint is not None:
        say("hint", error.hint)


def _by_option(message: str, argv: Sequence[str]) -> str:
    """Put the option that a message is about in front of it."""
    given = dict(zip(argv, [*argv[1:], ""], strict=False))
    given |= dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    given.pop("--query", None)  # in messages, query is the matrix Q
    argument, also, source = re.match(r"(\w*)( \((?:--)?([\w-]+)\))?", message).groups("")  # type: ignore[union-attr]
    for name, length in ((source, len(argument + also)), (argument, len(argument))):
        if name and (option := f"--{name.replace('_', '-')}") in given:
            return option + message[length:]
    for option, value in given.items():
        if option.startswith("--") and value and re.match(re.escape(value) + r"[\s:#]", message):
            return f"{option}: {message}"
    return message


def say_system(error: OSError | MemoryError) -> None:
    """Write an error of the system: a full disk behind stdout, or no memory."""
    if isinstance(error, OSError):
        say("error", f"{error.filename or 'standard output'}: {error.strerror or error}")
    else:
        say_error(_OUT_OF_MEMORY)


def say_defect(error: Exception) -> None:
    """Say that attncli has a defect, and where to report it; ATTNCLI_DEBUG shows the traceback."""
    if os.environ.get("ATTNCLI_DEBUG"):
        sys.excepthook(type(error), error, error.__traceback__)
    words = " ".join(str(error).split())
    say(
        "error",
        f"attncli itself failed with {type(error).__name__}{': ' if words else ''}{words}; please "
        f"report it at {ISSUES}, with what ATTNCLI_DEBUG=1 shows",
    )


@contextmanager
def advice(*, quiet: bool) -> Iterator[None]:
    """Show the warnings of a block on stderr, each once, even before an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AttnWarning)
        try:
            yield
        finally:
            for message in dict.fromkeys(str(warning.message) for warning in caught):
                if not quiet:
                    say("warning", message)


@contextmanager
def progress_bar(
    words: str = "computing", *, counted: bool = True, quiet: bool
) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on a terminal after a second; yield the function that moves it, or None."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    shown: list[Progress] = []
    timer = threading.Timer(_PATIENCE, lambda: shown.append(_started(words, counted=counted)))
    timer.daemon = True
    timer.start()

    def update(done: int, total: int) -> None:
        for bar in shown:
            bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield update
    finally:
        timer.cancel()
        timer.join()
        for bar in shown:
            bar.stop()


def _started(words: str, *, counted: bool) -> Progress:
    from rich import progress as rich
    from rich.console import Console

    bar = rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeRemainingColumn()
    columns = bar if counted else (rich.SpinnerColumn(), rich.TimeElapsedColumn())
    told, screen = rich.TextColumn("{task.description}"), Console(file=sys.stderr)
    progress = rich.Progress(told, *columns, console=screen, transient=True)
    progress.add_task(words, total=None)
    progress.start()
    return progress


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def limits(color: str) -> Limits:
    """Return what stdout can show: characters and colours, and its size if it is a terminal."""
    from attncli.view.limits import Limits

    plain = Limits(unicode=_shows_unicode(), depth=color_depth(color))
    if not is_terminal():
        return plain
    size = shutil.get_terminal_size()
    return plain._replace(width=size.columns, height=size.lines)


def piped_in() -> bool:
    """Return whether something is piped in: stdin is a pipe, a socket or a regular file."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def print_parts(parts: Iterable[RenderableType], color: str) -> None:
    """Print what Rich renders; a pipe gets everything, however wide."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            # Rich would leave with exit code 1.
            raise BrokenPipeError

    depth = color_depth(color)
    screen = Piped(
        file=_stdout(),
        width=shutil.get_terminal_size().columns if is_terminal() else _NO_WIDTH,
        force_terminal=depth != "none",
        color_system=None if depth == "none" else depth,
        no_color=depth == "none",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        screen.print(part, crop=False)


def color_depth(color: str) -> Depth:
    """Return the colours to use. Rich's own guess takes FORCE_COLOR=0 for a terminal."""
    term = os.environ.get("TERM", "")
    plain = bool(os.environ.get("NO_COLOR")) or term in ("", "dumb", "unknown")
    if color == "never" or (color == "auto" and (plain or not is_terminal())):
        return "none"
    deep = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    return "truecolor" if deep else "256"


def _shows_unicode() -> bool:
    encoding = (_stdout().encoding or "ascii").lower()
    return encoding.replace("-", "") in ("utf8", "utf16", "utf32", "gb18030")


def print_text(text: str) -> None:
    """Write text and a line break to stdout."""
    _stdout().write(text + "\n")


def print_document(text: str) -> None:
    """Write JSON or Markdown and a line break to stdout, always in UTF-8."""
    stream = binary_stdout()
    stream.write(f"{text}\n".encode("utf-8", "backslashreplace"))
    stream.flush()


class _Onward:
    """A stream that cannot seek: /dev/null and ``>>`` would give wrong positions."""

    def __init__(self, stream: BinaryIO) -> None:
        self.write = stream.write
        self.writelines = stream.writelines
        self.flush = stream.flush


def binary_stdout() -> BinaryIO:
    """Return stdout as a stream of bytes that cannot seek."""
    stream = _stdout().buffer
    if isinstance(stream, io.RawIOBase):
        # PYTHONUNBUFFERED: a raw stream may write only a part, and return its length.
        return cast("BinaryIO", _Onward(open(stream.fileno(), "wb", closefd=False)))
    return cast("BinaryIO", _Onward(stream))


def _stdout() -> TextIO:
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    return sys.stdout
