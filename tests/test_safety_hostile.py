"""Large hostile files end soon and small; reading in parts gives what reading at once gives."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from process import Ran, long_but, measured

from attncli.errors import AttnError
from attncli.loading import delimited as attncli_delimited
from attncli.loading import json_rows, plain, read

Run = Callable[..., Ran]
relaxed = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def outcome(path: Path) -> object:
    """Return the numbers of a file, or the words of its error."""
    try:
        found = read(str(path))
    except AttnError as error:
        return str(error)
    return found.values.dtype.name, found.values.shape, found.values.tobytes()


# --- in parts as at once ------------------------------------------------------------------

NUMBERS = st.sampled_from(
    ["1", "-2.5", "3e-5", "0", "null", "1e400", "-Infinity", "NaN", "01", "+1"]
)
ITEMS = NUMBERS | st.sampled_from(["true", "x", "", "1 2", "9" * 5000, "9" * 400, "[]", "[1]", ","])


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    """Nested lists of one shape, with at most a few items that spoil them."""
    shape = draw(
        st.sampled_from([(3,), (2, 2), (5, 2), (9, 1), (4, 2, 2), (3, 1, 2, 1), (1, 1, 1, 1, 1)])
    )
    array = np.arange(np.prod(shape)).reshape(shape).tolist()
    text = json.dumps(array, separators=draw(st.sampled_from([(",", ":"), (" ,\n ", ":")])))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        gone = draw(st.integers(0, 3))
        text = text[:at] + draw(ITEMS | st.sampled_from('[]{} \n"')) + text[at + gone :]
    return text


@relaxed
@given(text=json_texts())
@example(text="[[1],[2],[3]]]")
@example(text="[[1],[2]")
@example(text="[[1],[2] [3]]")
@example(text="[[1],[2],]")
@example(text="[[[1]],[[2]],[3]]")
@example(text="[[1],[2],[3,4]]")
@example(text="[[true],[false],[1]]")
@example(text="[[1],[null],[1e400]]")
@example(text="[[[[[1e400]]]]]")
def test_json_in_parts_is_json_at_once(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    at_once = outcome(path)
    with monkeypatch.context() as patch:
        patch.setattr(json_rows, "_LONG", 0)
        for size in (1, 8, 2**20):
            patch.setattr(json_rows, "_PART", size)
            in_parts = outcome(path)
            # Of two mistakes, a parser of the whole tells of JSON's first; these go in order.
            # What is wrong with the whole has no place.
            if in_parts != at_once and "axes; found 5" not in str(at_once):
                assert "is not JSON" in str(at_once)
                assert place(in_parts) < place(at_once)


def place(error: object) -> tuple[int, ...]:
    """Return the line and column that an error names."""
    return tuple(map(int, re.search(r"line (\d+), column (\d+)", str(error)).groups()))


CELLS = st.sampled_from(
    ["1", "-2.5", "3e-5", "inf", "nan", " 4 "] * 3 + ["1e400", "", "x", '"5"', "1_0", "٣"]
)


@relaxed
@given(
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=12),
    heading=st.sampled_from(["", "a,b\n", "\n\n"]),
    ends=st.sampled_from(["\n", "\n\n", "\r\n", "\r"]),
    last=st.sampled_from(["", "1", "1,2,3", "1,2\n"]),
)
def test_csv_in_blocks_is_csv_line_by_line(
    rows: list[list[str]],
    heading: str,
    ends: str,
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "x.csv"
    text = heading + ends.join(",".join(row) for row in rows) + ends + last
    path.write_text(text, encoding="utf-8", newline="")
    found = []
    for size in (0, 6, 20, 2**20):
        with monkeypatch.context() as patch:
            patch.setattr(attncli_delimited, "_LONG", size)
            patch.setattr(plain, "_BLOCK", size)
            found.append(outcome(path))
    assert found == found[:1] * 4


# --- in time and memory -------------------------------------------------------------------

MILLION = 1_000_000


def table_of(line: bytes, last: bytes, count: int = MILLION) -> bytes:
    return line * count + last


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "short.json": (
        lambda: b"[" + table_of(b"[1],", b"[1,2]]", 2 * MILLION),
        "expected 1 item, as in the first list; found 2",
    ),
    "word.json": (lambda: b"[" + table_of(b"[1],", b"[x]]"), "this is not JSON"),
    "huge.json": (lambda: b"[" + table_of(b"[1],", b"[1e400]]"), "beyond the range"),
    "deep.json": (lambda: b"[" * 100_000, "nested deeper than 32 levels"),
    "keys.json": (
        lambda: json.dumps(dict.fromkeys(map(str, range(100_000)), 1)).encode(),
        "at most 10,000 entries",
    ),
    "keys.yaml": (
        lambda: b"".join(b"k%d: 1\n" % index for index in range(100_000)),
        "at most 10,000 entries",
    ),
    "deep.yaml": (lambda: b"[" * 100_000, "nested deeper than 32 levels"),
    "short.csv": (
        lambda: table_of(b"1,2\n", b"1\n", 3 * MILLION),
        "2 cells, as in the first row; found 1",
    ),
    "word.csv": (lambda: table_of(b"1,2\n", b"1,x\n", 3 * MILLION), "found 'x'"),
    "wide.csv": (lambda: b"," * (20 * MILLION), "cells; found 20,000,001"),
    "later.csv": (lambda: b"1,2\n" + b"1," * (9 * MILLION), "line 2, column 1000001"),
}


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    parts = [len(body).to_bytes(4, "big") + kind + body + b"crc!" for kind, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + b"\0\0\0\0IENDcrc!"


# Pictures are told of, whatever is in them: so these are no errors, but must not cost more.
PICTURES: dict[str, Callable[[], bytes]] = {
    "long.pdf": lambda: b"%PDF-1.4 /Subject (" + b"a" * (50 * MILLION),
    "many.pdf": lambda: b"%PDF-1.4 " + b"/Subject (a" * (3 * MILLION),
    "long.svg": lambda: b"<svg><dc:description>" + b"&amp;" * (6 * MILLION) + b"</dc:description>",
    "many.svg": lambda: b"<svg>" + b"<dc:description>" * (2 * MILLION),
    "long.png": lambda: png(*[(b"zTXt", b"a\0\0" + zlib.compress(bytes(50 * MILLION)))] * 30),
    "many.png": lambda: png(*((b"tEXt", b"k%d\0v" % at) for at in range(300_000))),
    "long.yaml": lambda: b"text: >\n" + b"  word\n" * MILLION,
}

# Commands read in the same way, so each takes another file.
COMMANDS = {f"info {name}": name for name in HOSTILE}
COMMANDS |= {"compute short.json short.json": "short.json", "heatmap later.csv": "later.csv"}
COMMANDS |= {"check --expect wide.csv": "wide.csv", "explain keys.yaml": "keys.yaml"}


@pytest.mark.parametrize(
    "command",
    long_but(
        COMMANDS,
        *("info word.json", "info deep.yaml"),
        *("check --expect wide.csv", "heatmap later.csv", "explain keys.yaml"),
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


@pytest.mark.parametrize("name", long_but(PICTURES, "many.pdf", "long.svg", "many.png"))
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


def test_a_broken_text_is_read_once_by_info(
    folder: Path, attncli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("x.csv").write_text("1,2\n3,x\n")
    reads = []
    careful = attncli_delimited._careful
    monkeypatch.setattr(
        attncli_delimited, "_careful", lambda *words: (reads.append(1), careful(*words))[1]
    )
    assert attncli("info", "x.csv").code == 2
    assert reads == [1]
