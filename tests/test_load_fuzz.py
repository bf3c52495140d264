"""For any bytes, reading ends with an array or an `AttnError`."""

import io
import json
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from process import long_but

from attncli.errors import AttnError
from attncli.loading import LoadedArray, LoadedMapping, describe, read
from attncli.numerics.dtypes import BFLOAT16

pytestmark = pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")
MATRIX = np.array([[1.5, -2.0, 3e-5], [4.0, 5.0, 6.0]])


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(compression):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        file.writestr("q.npy", npy(MATRIX))
        file.writestr("heads.npy", npy(np.int64(3)))
    return out.getvalue()


def safetensors():
    header = {
        "q": {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]},
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [48, 52]},
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + MATRIX.tobytes() + b"\x80\x3f\x80\xbf"


PROBLEM = {"q": MATRIX.tolist(), "mask": [[True, None]], "tokens": ["a", "b"], "heads": 2}
YAML = b"# p\nq: [[1, 2.5], [3, 4e-1]]\nk:\n  - [1, .inf]\n  - ['2', ~]\ntokens: [a, 2]\nh: true\n"
CSV = b'\xef\xbb\xbf,"a ""b""",c\r\nr,1.5,-2\r\n\r\ns,inf,3e-5\r\n'
SEEDS = {
    ".csv": [CSV, b"1,2\n3,4\n", b"a;b\n1;2\n"],
    ".tsv": [CSV.replace(b",", b"\t")],
    ".json": [json.dumps(PROBLEM).encode(), b"[[1, NaN], [3, -Infinity]]"],
    ".yaml": [YAML, b"- [1, 2]\n- [3, 4]\n"],
    ".npy": [npy(MATRIX), npy(MATRIX.astype(">f2").T), npy(np.array([True, False]))],
    ".npz": [npz(zipfile.ZIP_DEFLATED), npz(zipfile.ZIP_STORED)],
    ".safetensors": [safetensors()],
}
ALPHABET = [b"\0", b"\xff", b"\n", b"\r", b'"', b"[", b"{", b"]", b"}", b":", b",", b"- ", b"#"]
ALPHABET += [b"&a", b"*a", b"!", b"|", b"?", b"1e400", b"nan", b"\\", b"'", b"9" * 20, b"\x93NUMPY"]

edits = st.tuples(
    st.floats(0, 1, exclude_max=True),  # the place, as a fraction of the file
    st.integers(0, 4),  # the number of bytes that are replaced
    st.sampled_from(ALPHABET) | st.binary(max_size=4),
)


def mutated(seed, changes):
    data = bytearray(seed)
    for where, gone, new in changes:
        at = int(where * (len(data) + 1))
        data[at : at + gone] = new
    return bytes(data)


def check_array(found):
    values = found.values
    assert 1 <= values.ndim <= 4
    assert values.size > 0
    assert values.dtype.kind in "fiub" or values.dtype == BFLOAT16
    assert values.dtype.isnative
    for labels, size in zip((found.row_labels, found.column_labels), values.shape, strict=False):
        assert labels is None or len(labels) == size


def check_error(text):
    assert text
    assert "\n" not in text
    assert "\x1b" not in text


def check_reading(load):
    """Read every entry; the only errors are `AttnError` with a message of one clean line."""
    try:
        found = load()
    except AttnError as error:
        check_error(str(error))
        return
    if isinstance(found, LoadedArray):
        check_array(found)
    elif isinstance(found, LoadedMapping):
        for name in found.entries:
            check_reading(lambda name=name: found.entries[name])


def check_bytes(path, data):
    path.write_bytes(data)
    check_reading(lambda: read(str(path)))
    check_reading(lambda: read(f"{path}#q", dtype="bfloat16"))
    check_reading(lambda: read("-", stdin=io.BytesIO(data)))
    check_reading(lambda: describe(str(path)))


relaxed = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
patient = settings(relaxed, max_examples=5000)


@pytest.mark.parametrize("suffix", SEEDS)
@relaxed
@given(data=st.data())
def test_mutations_of_good_files(tmp_path, suffix, data):
    seed = data.draw(st.sampled_from(SEEDS[suffix]))
    changes = data.draw(st.lists(edits, max_size=6))
    check_bytes(tmp_path / f"x{suffix}", mutated(seed, changes))


@pytest.mark.parametrize("suffix", [*SEEDS, ""])
@relaxed
@given(data=st.binary(max_size=200))
@example(b"")
@example(b"\xef\xbb\xbf")
def test_any_bytes(tmp_path, suffix, data):
    check_bytes(tmp_path / f"x{suffix}", data)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".yaml", ""])
@relaxed
@given(words=st.lists(st.sampled_from(ALPHABET) | st.sampled_from([b"1", b"a", b" "]), max_size=40))
def test_any_soup_of_signs(tmp_path, suffix, words):
    check_bytes(tmp_path / f"x{suffix}", b"".join(words))


# The rest is the same bytes as in the test below.
@pytest.mark.parametrize("suffix", long_but(SEEDS, *set(SEEDS) - {".npy", ".npz"}))
def test_every_truncation(tmp_path, suffix):
    for seed in SEEDS[suffix]:
        for length in range(len(seed)):
            path = tmp_path / f"x{suffix}"
            path.write_bytes(seed[:length])
            check_reading(lambda path=path: read(str(path)))


@pytest.mark.parametrize("seed", SEEDS[".npy"] + SEEDS[".npz"] + SEEDS[".safetensors"])
def test_every_truncation_of_binary_data_is_refused(tmp_path, seed):
    path = tmp_path / "x.bin"
    for length in range(9, len(seed)):
        path.write_bytes(seed[:length])
        with pytest.raises(AttnError):
            list(read(str(path)).entries.values())


@pytest.mark.long
@pytest.mark.parametrize("suffix", SEEDS)
@patient
@given(data=st.data())
def test_many_mutations_of_good_files(tmp_path, suffix, data):
    seed = data.draw(st.sampled_from(SEEDS[suffix]))
    changes = data.draw(st.lists(edits, max_size=12))
    check_bytes(tmp_path / f"x{suffix}", mutated(seed, changes))


@pytest.mark.long
@pytest.mark.parametrize("suffix", [*SEEDS, ""])
@patient
@given(words=st.lists(st.sampled_from(ALPHABET) | st.binary(max_size=3), max_size=60))
def test_many_soups_of_signs(tmp_path, suffix, words):
    check_bytes(tmp_path / f"x{suffix}", b"".join(words))
