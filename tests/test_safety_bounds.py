"""What grows with a file has a bound: names, labels, members, axes, rows that need care."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from process import Run, long_but, measured

from attncli.errors import InputError
from attncli.loading import read

if TYPE_CHECKING:
    from collections.abc import Callable

MILLION = 1_000_000


def tensors(header: dict[str, object] | bytes, size: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def tensor(shape: list[int], start: int = 0) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, start + 4]}


def many_tensors(count: int) -> bytes:
    return tensors({f"t{at}": tensor([1], 4 * at) for at in range(count)}, 4 * count)


def long_integers() -> bytes:
    sizes = b",".join([b"9" * 4000] * 1900)
    return tensors(b'{"q":{"dtype":"F32","shape":[' + sizes + b'],"data_offsets":[0,4]}}', 4)


# Each of these took from five seconds to minutes, or gigabytes, or ended in a traceback.
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "axes.safetensors": (lambda: tensors({"q": tensor([2] * MILLION)}, 4), "at most 64 axes"),
    "sizes.safetensors": (long_integers, "is beyond the range"),
    "many.safetensors": (lambda: many_tensors(20_000), "query is missing (found t0, t1"),
    "name.safetensors": (lambda: tensors({"q" * 7 * MILLION: tensor([1, 1])}, 4), "is missing"),
    "tags.yaml": (
        lambda: b"".join(b"%%TAG !a%d! x\n" % at for at in range(60_000)) + b"---\n[1]\n",
        "line 1, column 1: tags",
    ),
    "rows.yaml": (
        lambda: b"- [1]\n" * 250_000 + b"- [x]\n",
        "at most 300,000 numbers, words and lists in YAML",
    ),
    "long.yaml": (lambda: b"q: " + b"x" * (33 * MILLION), "is not a file name"),
    "too_long.yaml": (lambda: b"q: " + b"x" * (34 * MILLION), "is longer than 32 MiB"),
    "blank.json": (lambda: b"[1" + b" " * (33 * MILLION) + b"x", "column 33000003: this is not"),
    "key.json": (lambda: b'{"' + b"x" * (20 * MILLION) + b'":1}', "unknown entry 'xxxx"),
    "keys.json": (
        lambda: b'{"q":[[1]],"x":{' + b",".join(b'"%d" : 1' % n for n in range(1_500_000)) + b"}}",
        "at most 2,000,000 cells; found about 6,000,0",
    ),
    "scale.json": (
        lambda: b'{"q":[[1]],"k":[[1]],"scale":' + b"9" * 4000 + b"}",
        "line 1, column 30: '9999",
    ),
    "label.json": (
        lambda: b'{"q":[[1]],"k":[[1]],"tokens":["' + b"x" * (12 * MILLION) + b'"]}',
        "found 12,000,000 in label 0",
    ),
    "blank.csv": (lambda: b"\n" * 1_900_000 + b"x", "line 1900001, column 1"),
    "more.csv": (lambda: b"1\n" * (5 * MILLION) + b"x", "at most 5,000,000 cells"),
    "holes.csv": (lambda: b",\n" * (25 * MILLION) + b",1", "found about 50,000,001"),
    "ends.csv": (lambda: b"1,\n" * 990_000 + b"1,2\n", "line 1, column 2"),
    "long.csv": (lambda: b"1,2\n" * (40 * MILLION), "is longer than 64 MiB"),
    "comments.csv": (lambda: b"#\n" * (10 * MILLION) + b"x\n", "column 1: expected a number"),
    "cell.csv": (lambda: b'1,"' + b"2" * (33 * MILLION), "line 1, column 2"),
    "decimal.csv": (lambda: b"1;1,x" + b"1," * (4 * MILLION), "more than plain numbers"),
}


@pytest.mark.parametrize(
    "name",
    long_but(
        FILES,
        *("axes.safetensors", "tags.yaml", "label.json", "holes.csv"),
    ),
)
def test_what_grows_with_a_file_has_a_bound(name: str, folder: Path) -> None:
    make, words = FILES[name]
    Path(name).write_bytes(make())
    ran = measured("compute", name)
    assert ran.code == 2, ran.err[:1000]
    assert words in ran.err.decode()
    assert len(ran.messages) <= 2
    # A line of millions of letters is no message.
    assert len(ran.err) < 25_000


def test_thousands_of_members_are_read_through_one_directory(folder: Path) -> None:
    array = np.ones((1, 1))
    np.savez("m.npz", query=array, key=array, **{f"m{at}": array for at in range(1800)})
    measured("info", "m.npz").good()
    measured("compute", "m.npz", "-q").good()


# --- archives -----------------------------------------------------------------------------


def header(count: int) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": "|u1", "fortran_order": False, "shape": (count // 8, 8)}
    )
    return out.getvalue()


def zeros(count: int) -> bytes:
    return header(count) + bytes(count)


def test_a_bomb_behind_what_does_not_compress_is_refused(folder: Path) -> None:
    with zipfile.ZipFile("b.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("query.npy", "w") as member:
            member.write(header(300 * 2**20))
            for _ in range(300):
                member.write(bytes(2**20))
        noise = np.random.default_rng(0).integers(0, 256, (8 * 2**20, 1), np.uint8)
        archive.writestr("key.npy", header(8) + noise.tobytes())
    assert Path("b.npz").stat().st_size > 8 * 2**20
    ran = measured("compute", "b.npz")
    assert ran.code == 2
    assert "that would unpack to 3145" in ran.err.decode()


def test_members_that_lie_on_each_other_are_refused(folder: Path) -> None:
    """One packed member, listed a thousand times: each would unpack to itself again."""
    with zipfile.ZipFile("o.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m.npy", zeros(2**20))
        info = archive.getinfo("m.npy")
        for at in range(1000):
            copy = zipfile.ZipInfo(f"m{at}.npy")
            for name in ("compress_type", "CRC", "compress_size", "file_size", "header_offset"):
                setattr(copy, name, getattr(info, name))
            archive.filelist.append(copy)
    with pytest.raises(InputError, match="packed bytes; the file has"):
        read("o.npz")


# --- labels and titles --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a\n" * (9 * MILLION), "is longer than 16 MiB"),
        (b"a" * 1001 + b"\nb\nc\n", "at most 1,000 characters; found 1,001 in label 0"),
        ("a\nb\nc".encode("utf-16-le"), "line 1: expected text; found a NUL byte"),
        (b"a\n\xe9\nc", "line 2: expected UTF-8 text; found the byte 0xe9"),
    ],
)
def test_a_file_of_labels_has_bounds(data: bytes, words: str, tutorial: Path, attncli: Run) -> None:
    Path("labels.txt").write_bytes(data)
    ran = attncli("compute", "q.csv", "k.csv", "v.csv", "--key-labels", "labels.txt")
    assert ran.code == 2
    assert words in ran.messages[0]


def test_a_device_is_no_file_of_labels(tutorial: Path, attncli: Run) -> None:
    Path("zero.txt").symlink_to("/dev/zero")
    ran = attncli("compute", "q.csv", "k.csv", "v.csv", "--key-labels", "zero.txt")
    assert (ran.code, ran.messages) == (
        2,
        ["error: --key-labels: zero.txt: expected a file; found a device"],
    )


def test_labels_in_a_table_and_of_finished_weights_have_bounds(folder: Path, attncli: Run) -> None:
    Path("k.csv").write_text(f",a\n{'x' * 1001},1\ny,2\n")
    Path("q.csv").write_text("1\n")
    for line in ("compute q.csv k.csv", "heatmap k.csv", "explain q.csv k.csv"):
        ran = attncli(*line.split())
        assert ran.code == 2
        assert "found 1,001 in label 0" in ran.messages[0]


def test_a_title_has_a_bound(tutorial: Path, attncli: Run) -> None:
    ran = attncli("heatmap", "q.csv", "k.csv", "--out", "w.png", "--title", "x" * 2001)
    assert ran.code == 2
    assert ran.messages == ["error: --title: expected at most 2,000 characters"]
    assert attncli("heatmap", "q.csv", "k.csv", "--title", "x" * 2000).code == 0


def test_a_file_of_labels_expands_no_aliases_beyond_the_limit(tutorial: Path) -> None:
    """263 bytes took 3.4 s and 328 MB, and 331 bytes a minute and 4 GB."""
    rows = [f"- &{n} [{', '.join([f'*{p}'] * 9)}]" for p, n in zip("abcdef", "bcdefg", strict=True)]
    Path("labels.yaml").write_text("\n".join(["- &a [x, x, x, x, x, x, x, x, x]", *rows]))
    line = ("compute", "q.csv", "k.csv", "v.csv", "--query-labels", "labels.yaml")
    ran = measured(*line, most_seconds=2, most_megabytes=150)
    assert ran.code == 2
    assert "with aliases expanded" in ran.messages[0]
