"""NPZ: members are read one at a time, and hostile archives are refused."""

import io
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from attncli.errors import InputError
from attncli.loading import LoadedMapping, Member, describe, read, read_array
from attncli.numerics.dtypes import widen

RNG = np.random.default_rng(3)
Q, K = RNG.standard_normal((2, 3)), RNG.standard_normal((4, 3)).astype(np.float32)


def member(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def archive(members, compression=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return out.getvalue()


def test_one_array_without_a_name_needs_none(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, Q)
    np.testing.assert_array_equal(read_array(path).values, Q)
    np.testing.assert_array_equal(read_array(path, entry="context").values, Q)
    np.savez(path, Q, K)
    with pytest.raises(InputError, match="expected one array; found 2 entries"):
        read_array(path)
    np.savez(path, q=Q)
    with pytest.raises(InputError, match="found an entry with a name, q"):
        read_array(path)


@pytest.fixture
def file(tmp_path):
    def file(data):
        path = tmp_path / "x.npz"
        path.write_bytes(data)
        return str(path)

    return file


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves_is_read(tmp_path, save):
    path = str(tmp_path / "x.npz")
    save(path, q=Q, k=np.asfortranarray(K), big=Q.astype(">f8"), heads=12, causal=True)
    found = read(path)
    assert isinstance(found, LoadedMapping)
    assert set(found.entries) == {"q", "k", "big", "heads", "causal"}
    for name, expected in {"q": Q, "k": K, "big": Q}.items():
        entry = found.entries[name]
        np.testing.assert_array_equal(entry.values, expected)
        assert entry.values.dtype == expected.dtype
        assert entry.name == f"{path}#{name}"
    assert found.entries["heads"] == 12
    assert found.entries["causal"] is True
    np.testing.assert_array_equal(read_array(f"{path}#k").values, K)
    assert describe(path)[:2] == [Member("q", (2, 3), "float64"), Member("k", (4, 3), "float32")]
    assert describe(f"{path}#k") == [Member("k", (4, 3), "float32")]


@pytest.mark.parametrize("order", "<>")
def test_a_list_of_words_is_read_without_unpickling(file, order):
    words = ["Ich", "ja", "", "[MASK]", "größer 中"]
    path = file(archive({"tokens.npy": member(np.array(words, f"{order}U12"))}))
    assert read(path).entries["tokens"] == words
    assert describe(path) == [Member("tokens", (5,), "text")]


def test_bfloat16_members(file):
    bits = (K.view(np.uint32) >> 16).astype("<u2")
    path = file(archive({"k.npy": member(bits.view("V2"))}))
    found = read_array(f"{path}#k", dtype="bfloat16").values
    np.testing.assert_array_equal(widen(found, np.float32).view(np.uint32) >> 16, bits)


def test_only_the_member_asked_for_is_read(file):
    path = file(archive({"bad.npy": b"not an array", "q.npy": member(Q)}, zipfile.ZIP_STORED))
    found = read(path)
    assert "bad" in found.entries
    assert "worse" not in found.entries
    np.testing.assert_array_equal(read_array(f"{path}#q").values, Q)
    with pytest.raises(InputError, match="#bad does not begin like an NPY"):
        found.entries["bad"]


def test_a_missing_member_is_answered_with_those_there(file):
    path = file(archive({f"layer{at}.npy": member(Q) for at in range(40)}))
    with pytest.raises(InputError, match="no member 'layr12'") as caught:
        read(f"{path}#layr12")
    assert "layer12" in caught.value.hint
    with pytest.raises(InputError, match="expected one array; found 40 entries") as caught:
        read_array(path)
    assert f"{path}#layer0, {path}#layer1" in caught.value.hint


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wrong_checksum_is_noticed(file, compression):
    data = archive({"q.npy": member(np.zeros((300, 300)))}, compression)
    with pytest.raises(InputError, match="damaged"):
        read(file(patched(data, offset=16, code="<I", value=7)) + "#q")


def patched(data, *, offset, code, value):
    """Return an archive with other values in the first entry of its directory."""
    at = data.index(b"PK\1\2") + offset
    return data[:at] + struct.pack(code, value) + data[at + struct.calcsize(code) :]


GOOD = archive({"q.npy": member(Q)})
STORED = archive({"q.npy": member(Q)}, zipfile.ZIP_STORED)
NESTED = archive({"inner.npz": GOOD})
DISGUISED = archive({"inner.npy": GOOD})
OBJECTS = archive({"q.npy": b"\x93NUMPY\1\0" + member(np.zeros(1))[8:].replace(b"<f8", b"|O ")})
WILD, HALF = np.array([0x110000], "<u4"), np.array([0xD800], "<u4")
WIDE = b"9999999999, 9999999999), }".ljust(45)
BROKEN = {
    "truncated": (GOOD[:-10], "damaged"),
    "empty": (archive({}), "no arrays"),
    "nested": (NESTED, "'inner.npz' .* is not an NPY array"),
    "nested and disguised": (DISGUISED, "does not begin like an NPY file"),
    "objects": (OBJECTS, "objects, which only unpickling"),
    "control characters": (archive({"\x1b[31m.txt": b""}), r"\\x1b"),
    "encrypted": (patched(GOOD, offset=8, code="<H", value=1), "is encrypted"),
    "unknown method": (patched(GOOD, offset=10, code="<H", value=99), "in a way that NumPy"),
    "stored lie": (patched(STORED, offset=24, code="<I", value=2**31), "claims 2147483648"),
    "small lie": (patched(GOOD, offset=24, code="<I", value=100), "damaged"),
    "huge lie": (patched(GOOD, offset=24, code="<I", value=2**31), "would unpack"),
    "text array": (archive({"q.npy": member(np.array([["a"]]))}), "<U1"),
    "beyond Unicode": (archive({"t.npy": member(WILD.view("<U1"))}), "not Unicode"),
    "text that is cut off": (archive({"t.npy": member(np.array(["abc"]))[:-4]}), "truncated"),
    "axes beside one of length zero": (
        archive({"q.npy": member(np.zeros((0, 7))).replace(b"7), }" + b" " * 40, WIDE)}),
        "no array has",
    ),
    "members": (archive({f"{at}.npy": b"" for at in range(10_001)}, 0), "more than 10000"),
    "directory": (archive({f"{'n' * 9999}{at}.npy": b"" for at in range(300)}, 0), "more than"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_and_hostile_archives_are_refused(file, case):
    data, what = BROKEN[case]
    path = file(data)
    began = time.process_time()
    with pytest.raises(InputError, match=what) as caught:
        list(read(path).entries.values())
    assert time.process_time() - began < 2
    assert "\x1b" not in caught.value.message


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(file):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("q.npy", member(Q))
        made.writestr("q.npy", member(K))
    with pytest.raises(InputError, match="two members of the same name"):
        read(file(out.getvalue()))


def test_a_bomb_is_refused_before_it_goes_off(tmp_path):
    """300 MiB of zeros in 300 kB are refused after reading the directory alone."""
    path, chunk = tmp_path / "x.npz", bytes(2**20)
    made = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with made, made.open("q.npy", "w") as stream:
        for _ in range(300):
            stream.write(chunk)
    tracemalloc.start()
    with pytest.raises(InputError, match="would unpack to 314572800"):
        read(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20
