"""Every format gives back exactly the numbers that were saved."""

import csv
import io
import json
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from attncli.errors import OutputError
from attncli.save.formats import FORMATS, Results, format_of, save, write
from attncli.save.tables import number_lines

DTYPES = [np.float16, np.float32, np.float64]
LABELS = st.text(max_size=6) | st.sampled_from(
    [
        "",
        "[pad]",
        "\x1b[31m",
        '"',
        "\\",
        "\x7f\x85\u2028\ufeff\ufffe",
        "é猫😀",
        "\U000e0001",
        "null",
    ]
)


def numbers(dtype, *, infinite):
    """Floats of every kind: subnormal, huge, tiny, −0 and, if allowed, −inf."""
    width = np.dtype(dtype).itemsize * 8
    finite = st.floats(width=width, allow_nan=False, allow_infinity=False)
    bits = st.integers(0, 2**width - 1).map(
        lambda n: np.array(n, f"u{width // 8}").view(dtype).item()
    )
    numbers = finite | bits.filter(np.isfinite)
    return numbers | st.just(-np.inf) if infinite else numbers


def matrices(dtype, *, infinite=True, dimensions=2):
    shapes = arrays_of.array_shapes(min_dims=dimensions, max_dims=dimensions, max_side=4)
    return arrays_of.arrays(dtype, shapes, elements=numbers(dtype, infinite=infinite))


every_matrix = st.sampled_from(DTYPES).flatmap(matrices)
every_array = st.tuples(st.sampled_from(DTYPES), st.integers(1, 4)).flatmap(
    lambda kind: matrices(kind[0], dimensions=kind[1])
)


def encoded(results, name):
    stream = io.BytesIO()
    write(stream, results, name)
    return stream.getvalue()


def same_bits(found, expected):
    found = np.asarray(found, np.float64)
    assert found.shape == expected.shape
    assert found.astype(expected.dtype).tobytes() == expected.tobytes()


def cells(text, separator):
    return [[float(cell) for cell in line.split(separator)] for line in text.splitlines()]


@pytest.mark.parametrize(("name", "separator"), [("csv", ","), ("tsv", "\t")])
@settings(max_examples=25, deadline=None)
@given(matrix=every_matrix)
def test_csv_and_tsv_read_back_exactly(name, separator, matrix):
    text = encoded(Results({"weights": matrix}), name).decode("ascii")
    assert text.endswith("\n")
    same_bits(cells(text, separator), matrix)


@settings(max_examples=25, deadline=None)
@given(array=every_array)
def test_json_reads_back_exactly_with_null_for_minus_infinity(array):
    text = encoded(Results({"scores": array}), "json").decode()

    def lists(value):
        if isinstance(value, list):
            return [lists(item) for item in value]
        return -np.inf if value is None else value

    # Python's reader also takes words such as NaN, which are not JSON: they must fail.
    def refuse(word):
        raise AssertionError(word)

    found = json.loads(text, parse_constant=refuse)
    assert found["schema"] == 1
    same_bits(lists(found["scores"]), array)


@settings(max_examples=25, deadline=None)
@given(array=every_array)
def test_yaml_reads_back_exactly(array):
    found = yaml.safe_load(encoded(Results({"scores": array}), "yaml"))
    same_bits(found["scores"], array)


@settings(max_examples=30, deadline=None)
@given(array=every_array)
def test_npy_and_npz_read_back_exactly_whatever_the_order_in_memory(array):
    for each in (array, array.T, array[::-1]):
        found = np.load(io.BytesIO(encoded(Results({"w": each}), "npy")), allow_pickle=False)
        assert (found.dtype, found.shape) == (each.dtype, each.shape)
        assert found.tobytes() == each.tobytes()
        with np.load(io.BytesIO(encoded(Results({"w": each}), "npz"))) as members:
            assert members["w"].tobytes() == each.tobytes()


def number_texts(row):
    (line,) = number_lines(row[None], ",")
    return line.split(",")


@pytest.mark.parametrize(
    ("dtype", "number", "text"),
    [
        (np.float64, 0.1, "0.1"),
        (np.float64, 1.0, "1.0"),
        (np.float64, -0.0, "-0.0"),
        (np.float32, 1 / 3, "0.33333334"),
        (np.float64, 5e-324, "5e-324"),
        (np.float64, 1.7976931348623157e308, "1.7976931348623157e+308"),
        (np.float32, np.finfo(np.float32).max, "3.4028235e+38"),
        (np.float64, -np.inf, "-inf"),
    ],
)
def test_what_numbers_look_like(dtype, number, text):
    assert number_texts(np.array([number], dtype)) == [text]


def test_every_float16_there_is_reads_back_exactly_and_is_short():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[~np.isnan(every)]
    texts = number_texts(every)
    same_bits([float(text) for text in texts], every)
    for text, number in zip(texts, every, strict=True):
        assert text == repr(float(str(number)))  # NumPy finds the same digits, but writes 1e+03


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_a_large_matrix_are_as_short_and_as_exact(dtype):
    width = np.dtype(dtype).itemsize
    bits = np.random.default_rng(3).integers(0, 2 ** (8 * width), 5000, f"u{width}")
    special = [0.0, -0.0, 1e-5, 1e-7, 3e4, -np.inf]
    large = np.append(bits.view(dtype), np.array(special, dtype))
    large = large[np.isfinite(large) | (large == -np.inf)].reshape(1, -1).repeat(2, axis=0)
    lines = [line.split("; ") for line in number_lines(large, "; ")]
    same_bits([[float(text) for text in texts] for texts in lines], large)
    small = [texts for at in range(0, large.shape[1], 100) for texts in large[:1, at : at + 100]]
    for text, short in zip(lines[0], (t for row in small for t in number_texts(row)), strict=True):
        assert Decimal(text).is_infinite() or digits_of(text) == digits_of(short)


def digits_of(text):
    return Decimal(text).normalize().as_tuple()


def test_json_as_a_reader_sees_it():
    results = Results(
        {"weights": np.array([[0.5, 0.5]]), "scores": np.array([[[1e-5, -np.inf]]], np.float32)},
        ("q",),
        ("a", "b"),
        {"stats": {"max": np.float32(0.1), "rows": np.int64(2), "empty": [], "none": None}},
    )
    assert encoded(results, "json").decode() == (
        '{\n  "schema": 1,\n  "weights": [\n    [0.5, 0.5]\n  ],\n'
        '  "scores": [\n    [\n      [1e-05, null]\n    ]\n  ],\n'
        '  "query_labels": ["q"],\n  "key_labels": ["a", "b"],\n'
        '  "stats": {"max": 0.1, "rows": 2, "empty": [], "none": null}\n}\n'
    )


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(LABELS, max_size=4).map(tuple))
@pytest.mark.parametrize(("name", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_labels_come_back_and_never_reach_the_terminal_raw(name, read, labels):
    text = encoded(Results({}, labels, labels, {"of": {"k": labels}}), name).decode()
    assert text.replace("\n", "").isprintable()
    found = read(text)
    assert found["query_labels"] == found["key_labels"] == found["of"]["k"] == list(labels)


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_json_refuses_what_it_cannot_say(number):
    with pytest.raises(OutputError, match="JSON cannot write"):
        encoded(Results({"raw": np.array([[0.0, number]])}), "json")


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "zarr"])
def test_the_bytes_depend_on_the_values_alone(name, monkeypatch):
    weights = np.arange(6.0).reshape(2, 3)
    first = encoded(Results({"weights": weights}, ("a", "b")), name)
    localtime = time.localtime
    monkeypatch.setattr(time, "localtime", lambda *_: localtime(2_000_000_000))
    second = encoded(Results({"weights": np.asfortranarray(weights)}, ("a", "b")), name)
    assert first == second


@pytest.mark.parametrize(
    ("path", "name"),
    [("w.csv", "csv"), ("a.b/W.TSV", "tsv"), ("w.npy", "npy"), ("w.npz", "npz"), ("w.json", "json"),
     ("w.yaml", "yaml"), ("w.yml", "yaml")],
)  # fmt: skip
def test_the_suffix_tells_the_format(path, name, tmp_path):
    assert format_of(path) == name
    target = tmp_path / path.replace("a.b/", "")
    save([(str(target), Results({"w": np.eye(2)}), name)])
    with target.open("rb") as stream:
        assert stream.read() == encoded(Results({"w": np.eye(2)}), name)


@pytest.mark.parametrize("path", ["w.xlsx", "w", "csv", ".npy.bak"])
def test_an_unknown_suffix_is_refused(path):
    with pytest.raises(OutputError, match=r"expected one of \.csv, \.tsv, \.npy"):
        format_of(path)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "zarr"])
def test_a_refused_result_leaves_the_old_file(name, tmp_path):
    target = tmp_path / f"w.{name}"
    target.write_bytes(b"old")
    bad = Results({"a": np.zeros((1, 1)), "b": np.full((1, 1), np.nan)}, extra={"x": object()})
    with pytest.raises((OutputError, TypeError)):
        save([(str(target), bad, name)])
    assert target.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("last", ["/dev/full", "no/folder.npy", "bad.csv"])
def test_of_several_files_all_appear_or_none(last, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("w.npy").write_bytes(b"old")
    matrix, cube = Results({"w": np.eye(9)}), Results({"w": np.ones((2, 2, 2))})
    failing = (last, cube if last == "bad.csv" else matrix, "csv")
    for files in ([("w.npy", matrix, "npy"), failing], [failing, ("w.npy", matrix, "npy")]):
        with pytest.raises(OutputError):
            save(files)
        assert Path("w.npy").read_bytes() == b"old"
        assert [path.name for path in tmp_path.iterdir()] == ["w.npy"]
    save([("w.npy", matrix, "npy"), ("w.csv", matrix, "csv")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.csv", "w.npy"]


# --- lists of figures -----------------------------------------------------------------------


def test_figures_are_a_table_with_a_header():
    figures = [
        {"batch": None, "head": 0, "entropy": 0.1 + 0.2, "distance": None},
        {"batch": None, "head": 1, "entropy": None, "distance": 1e-300},
    ]
    text = encoded(Results({}, extra={"stats": figures}), "csv").decode()
    assert text == "head,entropy,distance\n0,0.30000000000000004,\n1,,1e-300\n"


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(DTYPES).flatmap(matrices),
    st.data(),
    st.sampled_from([("csv", ","), ("tsv", "\t")]),
)
def test_a_table_with_labels_has_them_above_and_in_front(matrix, data, kind):
    count, width = matrix.shape
    rows, columns = (
        tuple(data.draw(st.lists(LABELS.map(repr), min_size=size, max_size=size)))
        for size in (count, width)
    )
    stream = io.BytesIO()
    write(stream, Results({"weights": matrix}, rows, columns, labelled=True), kind[0])
    text = io.StringIO(stream.getvalue().decode("utf-8"), newline="")
    head, *body = csv.reader(text, delimiter=kind[1])
    assert head == ["", *columns]
    assert tuple(row[0] for row in body) == rows
    np.testing.assert_array_equal(np.array(body)[:, 1:].astype(matrix.dtype), matrix)
