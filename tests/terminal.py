"""Runs of the program in a pseudo-terminal, and the lines, colours and inks that it showed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from process import COMMAND, environment

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Cell", "Shown", "columns", "drained", "show"]

SGR = re.compile(r"\x1b\[([\d;]*)m")


@dataclass(frozen=True)
class Cell:
    """A stretch of text with one look; colours are (red, green, blue) or a number of 256."""

    text: str
    ink: tuple[int, ...] | None
    background: tuple[int, ...] | None


@dataclass(frozen=True)
class Shown:
    """What a run showed in a terminal."""

    code: int
    text: str
    messages: str

    @property
    def lines(self) -> list[str]:
        return SGR.sub("", self.text).splitlines()

    @property
    def widest(self) -> int:
        return max(columns(line) for line in self.lines)

    def cells(self) -> list[Cell]:
        """Return every stretch of text that has a background."""
        found, ink, background, end = [], None, None, 0
        for match in SGR.finditer(self.text):
            found.append(Cell(self.text[end : match.start()], ink, background))
            ink, background = changed(match[1], ink, background)
            end = match.end()
        return [cell for cell in found if cell.background is not None]


def changed(codes: str, ink: object, background: object) -> tuple[object, object]:
    """Return ink and background after an escape sequence."""
    numbers = [int(code or 0) for code in codes.split(";")]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            ink = background = None
        elif code in {38, 48}:
            count = 3 if numbers.pop(0) == 2 else 1
            color, numbers = tuple(numbers[:count]), numbers[count:]
            ink, background = (color, background) if code == 38 else (ink, color)
    return ink, background


def columns(line: str) -> int:
    """Return how many columns a line takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in line)
    return len(line) + wide - sum(unicodedata.combining(letter) > 0 for letter in line)


def show(
    *arguments: str, width: int = 80, height: int = 40, cwd: Path | None = None, **environ: str
) -> Shown:
    """Run the program with stdout on a terminal of some size, and stdin and stderr elsewhere."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=environment(**environ),
    ) as process:
        os.close(theirs)
        data = drained(ours)
        os.close(ours)
        messages = process.communicate(timeout=60)[1]
    return Shown(process.returncode, data.decode().replace("\r\n", "\n"), messages.decode())


def drained(descriptor: int) -> bytes:
    """Read to the end, which Linux tells as an error where the other side is closed."""
    data = b""
    while True:
        try:
            part = os.read(descriptor, 2**16)
        except OSError:
            return data
        if not part:
            return data
        data += part
