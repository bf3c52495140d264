"""Safetensors: every claim of the header is compared with the file."""

import io
import json
import mmap
import struct
from pathlib import Path

import numpy as np
import pytest

from attncli.errors import InputError
from attncli.loading import LoadedMapping, Member, describe, read, read_array
from attncli.numerics.dtypes import widen

Q = np.random.default_rng(4).standard_normal((2, 3))


def tensors(entries, data=b"", length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture
def file(tmp_path):
    def file(data, name="x.safetensors"):
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return file


STORED = {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}"
    for kind in "FIU"
    for size in (1, 2, 4, 8)
    if (kind, size) != ("F", 1)
} | {"BOOL": "?"}


@pytest.mark.parametrize("dtype", STORED)
def test_every_dtype_is_read_and_mapped(file, dtype):
    expected = np.array([[0, 1, 0], [1, 1, 0]], STORED[dtype])
    data = expected.tobytes()
    header = {"__metadata__": {"format": "pt"}, "a.q": entry(dtype, [2, 3], 0, len(data))}
    path = file(tensors(header, data))
    assert read(path).metadata == {"format": "pt"}
    found = read_array(f"{path}#a.q")
    np.testing.assert_array_equal(found.values, expected)
    assert found.values.dtype == expected.dtype.newbyteorder("=")
    assert found.name == f"{path}#a.q"
    base = found.values
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)
    assert describe(path) == [Member("a.q", (2, 3), expected.dtype.name)]


def test_bfloat16_without_another_package(file):
    expected = [[1.0, -2.0], [0.5, 3.140625]]
    bits = (np.array(expected, np.float32).view(np.uint32) >> 16).astype("<u2")
    path = file(tensors({"q": entry("BF16", [2, 2], 0, 8)}, bits.tobytes()))
    assert widen(read_array(f"{path}#q").values, np.float64).tolist() == expected
    assert describe(path) == [Member("q", (2, 2), "bfloat16")]


def test_only_the_tensor_asked_for_is_looked_at(file):
    header = {"q": entry("F64", [2, 3], 0, 48), "w": entry("F8_E4M3", [2], 48, 50)}
    header["n"] = entry("I64", [], 50, 58)
    data = Q.tobytes() + b"\1\2" + (7).to_bytes(8, "little")
    found = read(file(tensors(header, data)))
    assert isinstance(found, LoadedMapping)
    assert list(found.entries) == ["q", "w", "n"]
    np.testing.assert_array_equal(found.entries["q"].values, Q)
    assert found.entries["n"] == 7
    with pytest.raises(InputError, match="#w: expected a dtype of U8"):
        found.entries["w"]


def test_a_pipe_is_read_too(file):
    data = tensors({"q": entry("F64", [2, 3], 0, 48)}, Q.tobytes())
    found = read("-#q", stdin=io.BytesIO(data))
    np.testing.assert_array_equal(found.values, Q)
    # The first bytes decide, not the name.
    np.testing.assert_array_equal(read_array(file(data, "model.bin") + "#q").values, Q)


ONE = {"q": entry("F64", [2, 3], 0, 48)}
DATA = Q.tobytes()
LIES = {
    "truncated data": (tensors(ONE, DATA[:-1]), "truncated: expected"),
    "longer": (tensors(ONE, DATA + b"\0"), "longer than its header says"),
    "header beyond the file": (tensors(ONE, DATA, length=10**6), "truncated within its header"),
    "header of exabytes": (tensors(ONE, DATA, length=2**63), "truncated within its header"),
    "no header": (b"\1\0\0", "not a safetensors file"),
    "header of 9 MB": (tensors(b"{" + b" " * 9 * 2**20), "expected a header of at most"),
    "shape lies": (tensors({"q": entry("F64", [2, 4], 0, 48)}, DATA), "inconsistent header"),
    "offsets backwards": (tensors({"q": entry("F64", [2, 3], 48, 0)}, DATA), "inconsistent header"),
    "offsets beyond": (tensors({"q": entry("F64", [2, 3], 48, 96)}, DATA), "leave holes"),
    "unknown backwards": (tensors({"q": entry("X", [1], 48, 0)}, DATA), "overlap"),
    "negative shape": (tensors({"q": entry("F64", [-2, -3], 0, 48)}, DATA), "with dtype"),
    "true is no size": (tensors({"q": entry("U8", [True], 0, 1)}, b"1"), "with dtype"),
    "three offsets": (tensors({"q": {**ONE["q"], "data_offsets": [0, 1, 2]}}), "two data_"),
    "no mapping": (tensors({"q": 3}), "a header with dtype"),
    "a list": (tensors(b"[1, 2]"), "not a mapping"),
    "not JSON": (tensors(b"{nonsense}"), "not JSON"),
    "not UTF-8": (tensors(b'{"\xff": 1}'), "not UTF-8"),
    "twice": (tensors(b'{"q": 1, "q": 2}'), "'q' appears here a second time"),
    "nothing": (tensors({}), "holds no arrays"),
    "deep": (tensors(b"{" + b'"a":{' * 50_000), "nested deeper"),
    "65 axes": (tensors({"q": entry("U8", [1] * 65, 0, 1)}, b"1"), "at most 64 axes"),
    "axes beside one of length zero": (
        tensors({"q": entry("U8", [0, 2**62, 2**62], 0, 0)}),
        "no array has",
    ),
    "wild booleans": (tensors({"q": entry("BOOL", [2], 0, 2)}, b"\1\2"), "neither 0 nor 1"),
    "control characters": (tensors({"\x1b[31m": 3}), r"\\x1b"),
}


@pytest.mark.parametrize("case", LIES)
def test_lying_headers_are_refused(file, case):
    data, what = LIES[case]
    with pytest.raises(InputError, match=what) as caught:
        list(read(file(data)).entries.values())
    assert "\x1b" not in caught.value.message


@pytest.mark.peer
def test_what_the_safetensors_package_writes_is_read(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    path = str(tmp_path / "x.safetensors")
    numpy.save_file({"q": Q, "k": Q.astype(np.float16)}, path, metadata={"by": "test"})
    np.testing.assert_array_equal(read_array(f"{path}#q").values, Q)
    np.testing.assert_array_equal(read_array(f"{path}#k").values, Q.astype(np.float16))


def test_sinks_in_bfloat16_are_numbers(folder, attncli):
    """gpt-oss stores them so: one logit for each head."""
    header = {"s": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    words = json.dumps(header).encode()
    data = np.array([0x3F80, 0x4000], "<u2").tobytes()  # 1 and 2
    Path("s.safetensors").write_bytes(len(words).to_bytes(8, "little") + words + data)
    Path("q.csv").write_text("1,0,1,0\n0,1,1,0\n")
    line = ["compute", "q.csv", "q.csv", "q.csv", "--heads", "2", "--sinks", "s.safetensors#s"]
    lse = attncli(*line, "--show", "lse", "-f", "json").good().json["lse"]
    # Head 0 reads (1, 0) and (0, 1), head 1 twice (1, 0).
    one = np.exp(1 / np.sqrt(2))
    np.testing.assert_allclose(lse[0], np.log([one + 1 + np.e] * 2), atol=1e-12)
    np.testing.assert_allclose(lse[1], np.log([2 * one + np.e**2] * 2), atol=1e-12)
