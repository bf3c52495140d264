"""Labels, names and words are data: in every command, in tables, errors, pictures and JSON."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from process import Run, environment, long_but
from terminal import SGR, show
from together import run_together

# What a terminal, Rich, LaTeX, HTML, YAML or a spreadsheet might obey.
EVIL = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "a\rb",
    "a\x08b\x7f",
    "\u202eabc\u202c",
    "\u2066x\u2069",
    "[bold]x[/bold]",
    "[/INST]",
    ":smile:",
    "<script>alert(1)</script>",
    "$\\input{/etc/passwd}$",
    "`code` | cell",
    "&lt;b&gt;",
]
QKV = ["q.npy", "k.npy", "v.npy"]
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def evil(folder: Path) -> Path:
    """A problem with as many queries and keys as there are evil labels."""
    count = len(EVIL)
    for name in "qkv":
        np.save(f"{name}.npy", np.random.default_rng(ord(name)).normal(size=(count, 4)))
    problem = {name: np.load(f"{name}.npy").tolist() for name in "qkv"}
    Path("p.json").write_text(json.dumps(problem | {"tokens": EVIL}))
    words = "\n".join(f"{name}: {np.load(f'{name}.npy').tolist()}" for name in "qkv")
    Path("p.yaml").write_text(f"{words}\ntokens: {json.dumps(EVIL)}\n")
    return folder


LINES = [
    "compute p.json",
    "compute p.yaml --show weights,top,stats,lse",
    "compute p.json --format csv --show weights",
    "compute p.json --format json",
    "compute p.json --format yaml",
    "heatmap p.json",
    "heatmap p.json --title \x1b]0;x\x07",
    *(f"explain p.json --keys 0 --query {at} --format {kind}"
      for at, kind in ((0, "text"), (5, "markdown"), (6, "json"), (12, "text"))),
    "check p.json --expect v.npy",
    "check p.json --expect v.npy --format json",
    "info p.json",
    "info p.json --format json",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_nothing_that_is_obeyed_comes_out_of_a_pipe(line: str, evil: Path, attncli: Run) -> None:
    ran = attncli(*line.split(" "))
    assert ran.code in {0, 1}, ran
    assert OBEYED.findall(ran.text) == []
    assert OBEYED.findall(ran.err.decode()) == []


COLOURED = [line for line in LINES if "--format" not in line]


@pytest.mark.parametrize("line", long_but(COLOURED, COLOURED[0], COLOURED[3], COLOURED[4]))
def test_a_terminal_gets_colours_and_nothing_else(line: str, evil: Path) -> None:
    shown = show(*line.split(" "), width=200, cwd=evil)
    assert shown.code in {0, 1}
    assert OBEYED.findall(SGR.sub("", shown.text)) == []


def test_labels_come_back_whole_from_machine_formats(evil: Path, attncli: Run) -> None:
    assert attncli("compute", "p.json", "-f", "json").json["query_labels"] == EVIL
    explained = json.dumps(attncli("explain", "p.json", "-f", "json", "--keys", "0").json)
    for label in EVIL:
        assert json.dumps(label)[1:-1] in explained


def test_markup_is_shown_as_it_is_written(evil: Path, attncli: Run) -> None:
    text = attncli("compute", "p.json", "--max-cols", "0").text
    for label in EVIL[7:]:
        if len(label) < 16:  # others lose their middle
            assert label in text


def test_markdown_runs_no_markup(evil: Path, attncli: Run) -> None:
    text = attncli("explain", "p.json", "-f", "markdown", "--keys", "0").text
    assert "<script>" not in text
    assert "\\input" not in text.replace("\\\\input", "").replace("\\backslash input", "")


# --- pictures -----------------------------------------------------------------------------


def texts_of(path: Path) -> str:
    """Return everything in a picture that another program may show or obey."""
    data = path.read_bytes()
    if path.suffix == ".svg":
        return "".join(ET.fromstring(data.decode()).itertext())
    if path.suffix == ".png":
        return "".join(png_texts(data))
    streams = re.findall(rb"stream\r?\n(.*?)endstream", data, re.DOTALL)
    found = [data.decode("latin-1")]
    for stream in streams:
        try:
            found.append(zlib.decompress(stream).decode("latin-1"))
        except zlib.error:
            continue
    return "".join(found)


def png_texts(data: bytes) -> list[str]:
    place, found = 8, []
    while place < len(data):
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        if kind in {b"tEXt", b"iTXt", b"zTXt"}:
            found.append(data[place + 8 : place + 8 + length].decode("utf-8", "replace"))
        place += length + 12
    return found


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_hold_evil_words_as_words(suffix: str, evil: Path, attncli: Run) -> None:
    name = f"w\x1b[31m<b>.{suffix}"
    title = "".join(EVIL)
    ran = attncli("heatmap", "p.json", "--out", name, "--title", title, "--no-annotate")
    assert ran.code == 0, ran
    assert OBEYED.findall(ran.err.decode()) == []
    data = Path(name).read_bytes()
    if suffix == "svg":
        # Well formed, and markup only as text.
        assert b"<script" not in data
        assert b"\x1b" not in data
        # The bar of colours is a picture inside; nothing is fetched.
        assert all(
            link.startswith((b"#", b"data:")) for link in re.findall(rb'href="([^"]*)"', data)
        )
        assert {
            element.tag.rpartition("}")[2] for element in ET.fromstring(data).iter()
        }.isdisjoint({"script", "foreignObject", "iframe", "a"})
    if suffix == "pdf":
        assert not re.search(r"/(JavaScript|JS|Launch|OpenAction|URI)\b", texts_of(Path(name)))
    shown = attncli("info", name)
    assert shown.code == 0
    assert OBEYED.findall(shown.text) == []
    told = attncli("info", name, "-f", "json").json["files"][0]["metadata"]
    assert OBEYED.findall(attncli("info", name, "-f", "json").text) == []
    assert html.unescape(told["title"]) == title or told["title"] == title


def test_a_difference_has_plain_words_too(evil: Path, attncli: Run) -> None:
    ran = attncli("check", "p.json", "--expect", "v.npy", "--diff", "\x1b[2Jd.svg")
    assert ran.code == 1, ran
    assert b"\x1b" not in Path("\x1b[2Jd.svg").read_bytes()


# --- names of files and members -----------------------------------------------------------

# All at once, and each of them in the long run.
EVERY = "\x1b[31m\r\n\u202e[bold]$x$.csv"
NAMES = [
    EVERY,
    "\x1b[31mred.csv",
    "a\rb.csv",
    "\u202efdp.csv",
    "[bold]x.csv",
    "$x$.csv",
    "a\nb.csv",
]


@pytest.mark.parametrize("name", long_but(NAMES, EVERY))
def test_names_of_files_are_words_in_every_command(name: str, tutorial: Path, attncli: Run) -> None:
    Path(name).write_text("1,0,1\n0,1,1\n")
    Path("words" + name).write_text("1,x\n")
    lines = [
        ["compute", name, "k.csv", "v.csv"],
        ["compute", "words" + name, "k.csv"],
        ["compute", "q.csv", "k.csv", "v.csv", "--save", "missing/" + name],
        ["compute", "q.csv", "k.csv", "v.csv", "--save", name, "--save", "./" + name],
        ["compute", name, "k.csv", "v.csv", "--save", name],
        ["compute", "q.csv", "k.csv", "--mask", "words" + name],
        ["compute", "q.csv", "k.csv", "--show", name],
        ["compute", "q.csv", "k.csv", "--save", f"x{name}=y.csv"],
        ["compute", name + "#m", "k.csv"],
        ["compute", "q.csv", "k.csv", "--kv-lengths", name],
        ["compute", "q.csv", "--checkpoint", name],
        ["heatmap", name],
        ["heatmap", "q.csv", "k.csv", "--out", name],
        ["heatmap", "q.csv", "k.csv", "--minus", "words" + name],
        ["heatmap", "q.csv", "k.csv", "--cmap", name, "--out", "x.png"],
        ["explain", "q.csv", "k.csv", "--query", name],
        ["check", "q.csv", "k.csv", "v.csv", "--expect", "words" + name],
        ["check", "q.csv", "k.csv", "v.csv", "--expect", "v.csv", "--diff", name],
        ["check", "q.csv", "k.csv", "v.csv", "--expect", name, "--expect", "./" + name],
        ["info", name],
        ["info", "words" + name, "no" + name],
        [name],
        ["--" + name],
    ]
    for line in lines:
        ran = attncli(*line)
        assert ran.code in {0, 1, 2}, line
        assert OBEYED.findall(ran.text) == [], line
        assert OBEYED.findall(ran.err.decode()) == [], line
        # One message a line: a name cannot make a line of its own.
        assert all(
            message.startswith(("error: ", "hint: ", "note: ", "warning: "))
            for message in ran.messages
        ), line


@pytest.mark.parametrize("turn", long_but(range(3), 0))
def test_names_of_members_are_words(turn: int, folder: Path, attncli: Run) -> None:
    members = {f"{label}{at}".replace("/", ""): np.eye(2) for at, label in enumerate(EVIL)}
    np.savez("m.npz", **members)
    header, start = {}, 0
    for name in members:
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [start, start + 4]}
        start += 4
    text = json.dumps(header).encode()
    Path("m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(start))
    Path("m.json").write_text(json.dumps({name: [[1]] for name in members}))
    Path("m.yaml").write_text("".join(f"{json.dumps(name)}: [[1]]\n" for name in members))
    files = ["m.npz", "m.safetensors", "m.json", "m.yaml"]
    lines = [["info"], ["info", "-f", "json"], ["compute"], ["check", "--expect"]]
    names = ["", "#\x1b[31m", f"#{next(iter(members))}"]
    for (at, file), (place, line) in product(enumerate(files), enumerate(lines)):
        member = names[(at + place + turn) % 3]
        ran = attncli(*line, file + member)
        assert ran.code in {0, 1, 2}
        assert OBEYED.findall(ran.text + ran.err.decode()) == [], (line, file, member)


def test_an_evil_environment_is_no_way_in(tutorial: Path) -> None:
    env = environment(COLUMNS="x", LINES="\x1b[31m", COLORTERM="\x1b", TERM="\x1b[31m", NO_COLOR="")
    lines = "compute q.csv k.csv v.csv", "heatmap q.csv k.csv", "--help"
    for ran in run_together(lines, env=env).values():
        assert b"\x1b" not in ran.good().out
