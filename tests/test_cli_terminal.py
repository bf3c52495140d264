"""What a terminal shows: nothing beyond its edge, darker blue for more weight, readable ink."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import numpy as np
import pytest
from process import COMMAND, Run, environment, long_but
from terminal import Cell, columns, drained, show

DEEP = {"COLORTERM": "truecolor"}


def luminance(color: tuple[int, ...]) -> float:
    """Relative luminance of an sRGB colour (WCAG 2.2)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in color)
    ]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(cell: Cell) -> float:
    dark, light = sorted((luminance(cell.ink), luminance(cell.background)))
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture
def large(folder: Path) -> Path:
    """A problem of 512 queries and keys, with long labels of many kinds."""
    for name in "qk":
        np.save(f"{name}.npy", np.random.default_rng(ord(name)).normal(size=(512, 8)))
    kinds = ["[pad]", "[/INST]", "中文字符", "e\u0301te\u0301", "a\x1b[31m", "ordinary", "x" * 70]
    lines = [f"{kinds[index % len(kinds)]}{index}" for index in range(512)]
    Path("names.txt").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("width", long_but([60, 80, 200], 60, 200))
@pytest.mark.parametrize("command", ["compute", "heatmap"])
def test_no_line_is_longer_than_the_window(command: str, width: int, large: Path) -> None:
    shown = show(command, "q.npy", "k.npy", "--tokens", "names.txt", width=width, cwd=large)
    assert shown.code == 0
    assert width // 2 < shown.widest <= width


@pytest.mark.parametrize(("heads", "drawn", "more"), [(16, 16, ""), (19, 16, "… 3 more maps: ")])
def test_of_many_heads_a_terminal_shows_the_first_and_a_pipe_all(
    heads: int, drawn: int, more: str, folder: Path, attncli: Run
) -> None:
    for name in "qk":
        np.save(f"{name}.npy", np.random.default_rng(0).normal(size=(1, heads, 3, 4)))
    shown = show("heatmap", "q.npy", "k.npy", width=100, cwd=folder)
    assert len(re.findall(r"\bhead \d", shown.text)) == drawn
    assert more in shown.text
    assert ("more maps" in shown.text) is bool(more)
    whole = attncli("heatmap", "q.npy", "k.npy").good().text
    assert len(re.findall(r"\bhead \d", whole)) == heads


def test_darker_blue_is_more_weight_and_ink_is_readable(folder: Path) -> None:
    np.save("q.npy", np.array([[0.0, 1, 2, 3, 4, 6, 9]]).T)
    np.save("k.npy", np.array([[1.0], [0.7], [0.4], [0.2], [0.0], [-0.5], [-3]]))
    shown = show("compute", "q.npy", "k.npy", "--digits", "6", width=120, cwd=folder, **DEEP)
    cells = [cell for cell in shown.cells() if cell.text.strip()]
    assert len(cells) == 49
    ordered = sorted(cells, key=lambda cell: float(cell.text))
    shades = [luminance(cell.background) for cell in ordered]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) > 20
    assert shades[0] > 0.9
    assert shades[-1] < 0.1
    for cell in cells:
        red, _, blue = cell.background
        assert blue > red
        assert contrast(cell) >= 4.5


# Each command, and each wish.
@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("compute", {"NO_COLOR": "1"}),
        ("heatmap", {"TERM": "dumb"}),
        ("compute", {"TERM": ""}),
    ],
)
def test_colour_is_left_out_where_it_is_not_wanted(command: str, environ: dict[str, str]) -> None:
    assert "\x1b" not in show(command, **environ).text


@pytest.mark.parametrize("command", ["compute", "heatmap"])
def test_color_always_and_never_win(command: str, attncli: Run) -> None:
    assert "\x1b" not in show(command, "--color", "never").text
    assert "\x1b[" in show(command, "--color", "always", NO_COLOR="1").text
    assert b"\x1b[" in attncli(command, "--color", "always").good().out
    assert b"\x1b[" not in attncli(command).good().out


def test_labels_are_text_not_markup(folder: Path) -> None:
    labels = "[pad],[/INST],中文"
    shown = show("compute", "--key-labels", labels, "--query-labels", "[bold]a,:smile:")
    assert shown.lines[1].split() == ["[pad]", "[/INST]", "中文"]
    assert shown.lines[3].split()[0] == "[bold]a"
    assert shown.lines[4].split()[0] == ":smile:"
    # Every row of the table ends in the same column, wide characters included.
    assert len({columns(line.rstrip()) for line in shown.lines[1:5]}) == 1


@pytest.mark.parametrize("kind", long_but(["npy", "npz"], "npy"))
def test_binary_formats_are_not_written_to_a_terminal(kind: str, folder: Path) -> None:
    (folder / "p.yaml").write_text("q: [[1]]\nk: [[1]]\n")
    shown = show("compute", "p.yaml", "-f", kind)
    assert shown.code == 2
    assert shown.text == ""
    assert f"error: {kind} is binary and stdout is a terminal" in shown.messages
    assert f"hint: send it to a file: > out.{kind}" in shown.messages


def test_a_terminal_as_stdin_is_not_read(folder: Path) -> None:
    """With nothing piped in, the example is shown at once instead of waiting for typing."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "rb") as keyboard:
        done = subprocess.run(
            [*COMMAND, "compute"],
            stdin=keyboard,
            capture_output=True,
            env=environment(),
            timeout=20,
            check=False,
        )
    os.close(ours)
    assert done.returncode == 0
    assert b"built-in example" in done.stderr


@pytest.mark.parametrize("width", [40, 80])
def test_messages_are_broken_between_words(folder: Path, width: int, attncli: Run) -> None:
    np.save("q.npy", np.ones((2, 3)))
    np.save("k.npy", np.ones((5, 3)))
    command = [*COMMAND, "compute", "q.npy", "k.npy", "--causal", "-f", "csv"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment()
    ) as process:
        os.close(theirs)
        told = drained(ours).decode().replace("\r\n", "\n")
        os.close(ours)
    assert process.returncode == 0
    assert max(map(len, told.splitlines())) <= width
    piped = attncli("compute", "q.npy", "k.npy", "--causal", "-f", "csv").err.decode()
    assert piped.count("\n") == 1
    assert told.split() == piped.split()
