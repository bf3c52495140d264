"""NPY: mapped, compared with the size of the file, never unpickled."""

import io
import mmap
import pickle
import struct
import time
import tracemalloc

import numpy as np
import pytest

from attncli.errors import AttnWarning, InputError, UsageError
from attncli.loading import LoadedArray, read, read_array
from attncli.numerics.dtypes import BFLOAT16, widen


def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), version=version)
    return out.getvalue()


def forged(header, data=b"", version=(1, 0)):
    text = header.encode()
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


@pytest.fixture
def load(tmp_path):
    def load(data, dtype=None):
        path = tmp_path / "x.npy"
        path.write_bytes(data)
        return read(str(path), dtype=dtype)

    return load


def is_mapped(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


REAL = [f"{order}{kind}" for order in "<>" for kind in ("f2", "f4", "f8", "i2", "i8", "u4")]


@pytest.mark.parametrize("dtype", [*REAL, "i1", "u1", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_values_dtype_and_order_survive(load, dtype, order):
    stored = np.array([[0, 1, 2], [3, 100, 5]], dtype=dtype, order=order)
    found = load(npy(stored))
    assert isinstance(found, LoadedArray)
    np.testing.assert_array_equal(found.values, stored)
    assert found.values.dtype == stored.dtype.newbyteorder("=")
    assert found.values.dtype.isnative


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_one_to_three(load, version):
    np.testing.assert_array_equal(load(npy(np.eye(3), version)).values, np.eye(3))


def test_a_structured_array_of_numbers_is_read_as_columns(tmp_path):
    # As pandas' df.to_records() makes it: a row number, and fields of several types.
    records = np.array([(0, 1.5, 2), (1, -3.0, 4)], [("index", "i8"), ("a", "f4"), ("b", "i2")])
    np.save(tmp_path / "r.npy", records)
    with pytest.warns(AttnWarning, match="index"):
        found = read_array(str(tmp_path / "r.npy"))
    assert found.column_labels == ("a", "b")
    assert np.array_equal(found.values, [[1.5, 2], [-3, 4]])


def test_a_file_is_mapped_and_not_read(load):
    assert is_mapped(load(npy(np.eye(3))).values)
    assert is_mapped(load(npy(np.asfortranarray(np.ones((2, 3))))).values)


def test_two_byte_elements_are_bfloat16_when_asked(load):
    expected = [1.0, -2.0, 0.5, 3.140625]
    bits = (np.array(expected, np.float32).view(np.uint32) >> 16).astype("<u2")
    for stored in (bits, bits.astype(">u2"), bits.view("V2"), bits.view("<i2")):
        found = load(npy(stored), dtype="bfloat16").values
        assert found.dtype == BFLOAT16
        assert widen(found, np.float64).tolist() == expected
    assert load(npy(np.eye(2)), dtype="bfloat16").values.dtype == np.float64
    with pytest.warns(AttnWarning, match="--dtype bfloat16"):
        assert load(npy(bits)).values.dtype == np.uint16


def test_two_bytes_without_a_type_ask_for_one(load):
    with pytest.raises(InputError, match=r"\|V2") as caught:
        load(npy(np.zeros(3, "V2")))
    assert "--dtype bfloat16" in caught.value.hint
    with pytest.raises(UsageError, match="'float99'"):
        load(npy(np.eye(2)), dtype="float99")


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array([[1j, 2]]), "complex numbers (dtype '<c16', shape (1, 2))"),
        (np.array([1j], np.complex64), "<c8"),
        (np.array([None]), "Python objects"),
        (np.array(["a"]), "<U1"),
        (np.array([b"a"]), "|S1"),
        (np.zeros(2, "M8[s]"), "M8[s]"),
        (np.zeros(2, "m8[D]"), "m8[D]"),
        (np.zeros(2, "f4,U3"), "structures with fields that are not"),
        (np.zeros((2, 2), "f4,f4"), "structures with fields that are not"),
        (np.zeros(2, [("a", "f4", 3)]), "structures with fields that are not"),
        (np.zeros(2, [("a", "O"), ("b", "f4")]), "structures with fields that are not"),
        (np.zeros(2, np.longdouble), np.dtype(np.longdouble).str),
        (np.zeros(2, "V3"), "|V3"),
    ],
)
def test_elements_that_are_no_real_numbers_are_named(load, array, what):
    with pytest.raises(InputError) as caught:
        load(npy(array))
    assert what in caught.value.message


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3, 0), (1, 1, 1, 1, 2), (1,) * 64])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<u2", "?"])
def test_any_shape_is_read(load, shape, dtype):
    array = np.ones(shape, dtype)
    found = load(npy(array)).values
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array, strict=found.dtype == array.dtype)


GOOD = npy(np.arange(12.0).reshape(3, 4))
TERABYTES = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"
HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999999999,) , }"
FORGED = {
    "65 axes": (
        forged(TERABYTES.replace("1000000, 1000000", "1, " * 65), bytes(8)),
        "no array has",
    ),
    "axes beside one of length zero": (
        forged(TERABYTES.replace("(", "(0, ").replace("0)", "0" * 12 + ")")),
        r"no array has the shape \(0, 1000000, 1",
    ),
    "truncated data": (GOOD[:-1], r"truncated: .*shape \(3, 4\)"),
    "longer than it says": (GOOD + b"\0", r"longer .* \(3, 4\)"),
    "truncated header": (GOOD[:50], "ends within"),
    "truncated length": (GOOD[:9], "ends within"),
    "truncated magic": (GOOD[:7], "does not begin"),
    "terabytes": (forged(TERABYTES, bytes(80)), r"\(1000000, 1000000\)"),
    "exabytes": (forged(HUGE, bytes(80)), "999999999999999999"),
    "too many digits": (forged(HUGE.replace("99,", "99" * 9 + ",")), "shape"),
    "negative": (forged(HUGE.replace("9" * 18, "-1")), r"as the shape; found \(-1,\)"),
    "no number": (forged(HUGE.replace("9" * 18, "L")), "shape"),
    "unknown version": (GOOD[:6] + b"\x04" + GOOD[7:], "found 4"),
    "no keys": (forged("{}"), "without dtype, order"),
    "not a literal": (forged("__import__('os').system('true')"), "without dtype, order"),
    "deep literal": (forged("(" * 9000), "without dtype, order"),
    "deep minus": (forged("-" * 9000 + "1"), "without dtype, order"),
    "long header": (forged(" " * 60_000), "found 60000"),
    "length of gigabytes": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "found 4294967295"),
    "control characters": (forged(HUGE.replace("<f8", "<\x1b[31m")), r"\\x1b"),
    "text": (b"1,2\n3,4\n", "does not begin"),
    "wild booleans": (npy(np.frombuffer(b"\0\1\7", np.bool_)), "neither 0 nor 1"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_and_broken_files_are_refused_soon_and_small(load, case):
    data, what = FORGED[case]
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(InputError, match=what) as caught:
        load(data)
    spent, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\x1b" not in caught.value.message
    assert spent < 1
    assert peak < 20 * 2**20


class Explosive:
    exploded = False

    def __reduce__(self):
        return (setattr, (Explosive, "exploded", True))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".csv", ".json", ".yaml", ""])
def test_nothing_is_ever_unpickled(tmp_path, suffix):
    objects = io.BytesIO()
    np.save(objects, np.array([Explosive()], dtype=object), allow_pickle=True)
    pickles = [pickle.dumps(Explosive(), protocol) for protocol in range(6)]
    for data in [*pickles, objects.getvalue()]:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(data)
        with pytest.raises(InputError):
            read(str(path))
    assert not Explosive.exploded
