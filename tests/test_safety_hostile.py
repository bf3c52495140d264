"""Large hostile files end soon and small."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from process import Run, long_but, measured

if TYPE_CHECKING:
    from collections.abc import Callable

# --- in time and memory -------------------------------------------------------------------

MILLION = 1_000_000


def table_of(line: bytes, last: bytes, count: int = MILLION) -> bytes:
    return line * count + last


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "short.json": (
        lambda: b"[" + table_of(b"[1],", b"[1,2]]", 990_000),
        "line 1, column 3960002: expected 1 item, as in the first list; found 2",
    ),
    "word.json": (lambda: b"[" + table_of(b"[1],", b"[x]]", 990_000), "this is not JSON"),
    "deep.json": (lambda: b"[" * 100_000, "nested deeper than 32 levels"),
    "keys.yaml": (
        lambda: b"".join(b"k%d: 1\n" % index for index in range(100_000)),
        "at most 10,000 entries",
    ),
    "bomb.png": (
        lambda: png((b"zTXt", b"a\0\0" + zlib.compress(bytes(50 * MILLION)))),
        "the PNG picture is damaged, or holds too much",
    ),
    "deep.yaml": (lambda: b"[" * 100_000, "nested deeper than 32 levels"),
    "last.yaml": (
        lambda: b"- [1]\n" * 140_000 + b"- [1, 2]\n",
        "line 140001, column 3: expected 1 item, as in the first list; found 2",
    ),
    "alias.yaml": (
        lambda: b"tokens: &a [" + b"x," * 9999 + b"x]\nb: [" + b"*a," * 9999 + b"*a]\n",
        "with aliases expanded",
    ),
    "short.csv": (
        lambda: table_of(b"1,2\n", b"1\n", 990_000),
        "2 cells, as in the first row; found 1",
    ),
    "word.csv": (lambda: table_of(b"1,2\n", b"1,x\n", 990_000), "found 'x'"),
    "comma.csv": (lambda: table_of(b"a;1,5\n", b"a;x\n", 990_000), "found 'x'"),
    "wide.csv": (lambda: b"," * (20 * MILLION), "cells; found about 20,000,000"),
    "later.csv": (lambda: b"1,2\n" + b"1," * (9 * MILLION), "cells; found about 9,000,002"),
}


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    head = (b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0]))
    parts = [
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
        for kind, body in (head, *chunks, (b"IDAT", zlib.compress(bytes(2))), (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# Pictures are told of, whatever is in them: so these are no errors, but must not cost more.
PICTURES: dict[str, Callable[[], bytes]] = {
    "long.pdf": lambda: b"%PDF-1.4 /Subject (" + b"a" * (50 * MILLION),
    "many.pdf": lambda: b"%PDF-1.4 " + b"/Subject (a" * (3 * MILLION),
    "many.svg": lambda: b"<svg>" + b"<dc:description>" * (2 * MILLION),
    "long.png": lambda: png(*[(b"zTXt", b"a\0\0" + zlib.compress(bytes(MILLION)))] * 30),
    "many.png": lambda: png(*((b"tEXt", b"k%d\0v" % at) for at in range(300_000))),
    "long.yaml": lambda: b"text: >\n" + b"  word\n" * MILLION,
}

# Commands read in the same way, so each takes another file.
COMMANDS = {f"info {name}": name for name in HOSTILE}
COMMANDS |= {"compute short.json short.json": "short.json", "heatmap later.csv": "later.csv"}
COMMANDS |= {"heatmap wide.csv": "wide.csv", "explain keys.yaml": "keys.yaml"}


@pytest.mark.parametrize(
    "command",
    long_but(
        COMMANDS,
        *("info word.json", "heatmap later.csv", "explain keys.yaml"),
    ),
)
def test_large_hostile_files_end_soon_and_small(command: str, folder: Path) -> None:
    """The promise is 2 s and 500 MB; of a processor, whatever else the machine does, 4."""
    name = COMMANDS[command]
    make, words = HOSTILE[name]
    Path(name).write_bytes(make())
    ran = measured(*command.split())
    assert ran.code == 2, ran
    assert words in ran.err.decode()


@pytest.mark.parametrize("name", long_but(PICTURES, "many.pdf", "many.svg"))
def test_large_hostile_pictures_and_texts_are_told_of_soon(name: str, folder: Path) -> None:
    Path(name).write_bytes(PICTURES[name]())
    ran = measured("info", name)
    assert ran.code == 0, ran
    assert len(ran.out) < 20 * MILLION


def test_info_shows_the_first_of_many_members(folder: Path, attncli: Run) -> None:
    document = dict.fromkeys((f"m{index}" for index in range(1200)), 1)
    Path("many.json").write_text(json.dumps(document))
    text = attncli("info", "many.json").good().text
    assert text.count("\n") < 1020
    assert "m999 " in text
    assert "… 200 more members (--format json has all)" in text
    members = attncli("info", "many.json", "-f", "json").good().json["files"][0]["members"]
    assert [member["name"] for member in members] == list(document)
