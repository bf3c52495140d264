"""Every format gives back the very numbers that were saved."""

import csv
import io
import json
import struct
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from process import environment, long_but

from attncli.errors import OutputError
from attncli.save.formats import FORMATS, Results, format_of, save, write
from attncli.save.numbers import number_lines

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
    """Every kind of float: subnormal, huge, tiny, −0 and, where a score may be it, −inf."""
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

    # A word that only Python's reader knows must not pass: it is no JSON.
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


def shortest(number, dtype):
    """Count digits by trial: the first precision at which Python's text gives the number back."""
    for digits in range(1, 18):
        # The largest numbers round up to infinity when digits are missing.
        with np.errstate(over="ignore"):
            if dtype(float(f"{number:.{digits - 1}e}")) == number:
                return digits
    raise AssertionError(number)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_no_text_has_more_digits_than_it_needs(data, dtype):
    number = dtype(data.draw(numbers(dtype, infinite=False)))
    (text,) = number_texts(np.array([number]))
    written = Decimal(text).normalize().as_tuple().digits
    assert len(written) <= shortest(float(number), dtype)


@pytest.mark.parametrize(
    ("dtype", "number", "text"),
    [
        (np.float64, 0.1, "0.1"),
        (np.float32, 0.1, "0.1"),
        (np.float16, 0.1, "0.1"),
        (np.float64, 1.0, "1.0"),
        (np.float64, -0.0, "-0.0"),
        (np.float32, 1 / 3, "0.33333334"),
        (np.float64, 5e-324, "5e-324"),
        (np.float32, 1e-45, "1e-45"),
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
        assert text == repr(float(str(number)))  # NumPy finds the shortest, and writes 1e+03


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


@pytest.mark.parametrize("name", ["csv", "yaml"])
def test_a_large_matrix_may_hold_every_infinity_and_nan(name):
    large = np.full((70, 70), 1e-7)
    large[3, :4], large[40, 0] = (np.inf, -np.inf, np.nan, 1e300), -np.inf
    text = encoded(Results({"scores": large}), name).decode()
    found = cells(text, ",") if name == "csv" else yaml.safe_load(text)["scores"]
    np.testing.assert_array_equal(np.array(found, np.float64), large)


def test_a_large_matrix_of_masked_scores_is_json():
    large = np.tril(np.full((70, 70), 1e-7)) + np.triu(np.full((70, 70), -np.inf), 1)
    found = json.loads(encoded(Results({"scores": large}), "json"), parse_constant=pytest.fail)
    assert found["scores"][0] == [1e-7, *[None] * 69]
    assert found["scores"][69] == [1e-7] * 70


def test_a_float32_that_rounds_twice_on_the_way_through_float64_survives():
    # 7.038531e-26 lies a hair beside the middle of two float32; as float64 it is the middle.
    number = np.frombuffer(struct.pack("<I", 0x15AE43FD), np.float32)
    assert np.float32(float(str(number[0]))) != number[0], "no longer a trap: choose another"
    assert np.float32(float(number_texts(number)[0])) == number[0]


def test_lines_of_csv_and_tsv():
    results = Results({"w": np.array([[0.5, 1e-5], [-np.inf, 2.0]])}, ("a", "b"), ("c", "d"))
    assert encoded(results, "csv") == b"0.5,1e-05\n-inf,2.0\n"
    assert encoded(results, "tsv") == b"0.5\t1e-05\n-inf\t2.0\n"


@pytest.mark.parametrize(
    ("name", "shape", "lines", "columns"),
    [
        ("weights", (2, 3), 2, 3),
        ("weights", (1, 1, 2, 3), 2, 3),
        ("weights", (1, 1, 1, 3), 1, 3),
        ("lse", (3,), 3, 1),
        ("lse", (1, 1, 3), 3, 1),
        ("lse", (2, 3), 2, 3),
    ],
)
def test_csv_drops_leading_axes_of_length_one(name, shape, lines, columns):
    array = np.arange(np.prod(shape), dtype=float).reshape(shape)
    found = cells(encoded(Results({name: array}), "csv").decode(), ",")
    assert found == array.reshape(lines, columns).tolist()


@pytest.mark.parametrize("shape", [(2, 1, 3), (1, 2, 3, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize("name", ["csv", "tsv"])
def test_more_than_a_matrix_in_csv_is_refused(name, shape):
    with pytest.raises(OutputError, match="holds a matrix, but context has shape") as caught:
        encoded(Results({"context": np.zeros(shape)}), name)
    assert "--head" in caught.value.hint
    assert ".npy" in caught.value.hint


@pytest.mark.parametrize("name", ["csv", "tsv", "npy"])
def test_more_than_one_array_is_refused_where_one_fits(name):
    two = Results({"weights": np.zeros((1, 1)), "context": np.zeros((1, 1))})
    with pytest.raises(OutputError, match="holds one array; found 2: weights, context") as caught:
        encoded(two, name)
    assert "--show" in caught.value.hint


@pytest.mark.parametrize("name", ["csv", "tsv", "npy", "npz"])
@pytest.mark.parametrize("arrays", [{}, {"weights": np.zeros((1, 1))}])
def test_statistics_are_refused_where_only_arrays_fit(name, arrays):
    with pytest.raises(OutputError, match="only arrays; found stats"):
        encoded(Results(arrays, extra={"stats": {}}), name)


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


def test_lone_surrogates_are_written_as_escapes():
    for name, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert read(encoded(Results({}, ("\udc80",)), name))["query_labels"] == ["\udc80"]


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_json_refuses_what_it_cannot_say(number):
    with pytest.raises(OutputError, match="JSON has no number"):
        encoded(Results({"raw": np.array([[0.0, number]])}), "json")


def test_json_refuses_before_it_has_written_anything():
    stream = io.BytesIO()
    for results in (
        Results({"weights": np.eye(2), "raw": np.array([[0.0, np.inf]])}),
        Results({"weights": np.eye(2)}, extra={"keys": [{"dot": 1.0}, {"dot": np.inf}]}),
    ):
        with pytest.raises(OutputError, match="JSON has no number"):
            write(stream, results, "json")
    assert stream.getvalue() == b""


def test_labels_in_npz():
    labels = ("é", "[pad]")
    data = encoded(Results({"w": np.eye(2)}, labels, None), "npz")
    with np.load(io.BytesIO(data), allow_pickle=False) as members:
        assert list(members) == ["w", "query_labels"]
        assert members["query_labels"].tolist() == list(labels)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "zarr"])
def test_the_bytes_depend_on_the_values_alone(name, monkeypatch):
    weights = np.arange(6.0).reshape(2, 3)
    first = encoded(Results({"weights": weights}, ("a", "b")), name)
    localtime = time.localtime
    monkeypatch.setattr(time, "localtime", lambda *_: localtime(2_000_000_000))
    second = encoded(Results({"weights": np.asfortranarray(weights)}, ("a", "b")), name)
    assert first == second


@pytest.mark.parametrize(
    "name", long_but([name for name in FORMATS if name != "zarr"], "npz", "csv")
)
def test_every_format_can_be_piped(name, tmp_path):
    code = (
        "import sys, numpy as np; from attncli.save.formats import Results, write\n"
        "write(sys.stdout.buffer, Results({'w': np.arange(20000.0).reshape(4, 5000)}), sys.argv[1])"
    )
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, name]
    # A stream without a buffer may write a part only; the command line does not use one.
    env = environment()
    piped = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60, env=env).stdout
    if name == "npz":
        with np.load(io.BytesIO(piped)) as members:
            assert members["w"].tolist() == np.arange(20000.0).reshape(4, 5000).tolist()
    else:
        assert piped == encoded(Results({"w": np.arange(20000.0).reshape(4, 5000)}), name)


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


def test_the_default_is_for_names_without_a_suffix_only():
    assert format_of("/dev/stdout", "json") == "json"
    with pytest.raises(OutputError):
        format_of("w.xlsx", "json")


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


def test_a_list_in_a_figure_has_a_line_for_each_of_its_items():
    rows = [
        {
            "query": 0,
            "label": "a\tb",
            "keys": [{"index": 2, "weight": 0.75}, {"index": 0, "weight": 0.25}],
        },
        {"query": 1, "label": 'say "c"\r', "keys": []},
    ]
    text = encoded(Results({}, extra={"top": rows}), "tsv").decode()
    assert list(csv.reader(io.StringIO(text, newline=""), delimiter="\t")) == [
        ["query", "label", "rank", "key_index", "key_weight"],
        ["0", "a\tb", "1", "2", "0.75"],
        ["0", "a\tb", "2", "0", "0.25"],
        ["1", 'say "c"\r', "", "", ""],
    ]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_figures_and_an_array_do_not_go_into_one_table(kind):
    with pytest.raises(OutputError, match="holds only arrays; found stats"):
        encoded(Results({"lse": np.zeros(2)}, extra={"stats": [{"head": 0}]}), kind)


def test_labels_that_are_no_unicode_are_escaped_in_npz() -> None:
    results = Results({"w": np.eye(2)}, ("\ud800", "a\x1b中"))
    with np.load(io.BytesIO(encoded(results, "npz"))) as members:
        assert members["query_labels"].tolist() == ["\\ud800", "a\x1b中"]


@pytest.mark.parametrize("first", [1e-5, 1e22, np.nan, -np.inf])
def test_the_first_number_of_a_row_is_a_number_to_any_reader_of_yaml(first):
    out = io.BytesIO()
    write(out, Results({"raw": np.array([[first, 1.0], [1.0, first]])}), "yaml")
    read = yaml.safe_load(out.getvalue())["raw"]
    assert {type(number) for row in read for number in row} == {float}
    np.testing.assert_array_equal(read, [[first, 1], [1, first]])


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


@pytest.mark.parametrize(
    ("name", "shape", "head", "first"),
    [
        ("weights", (2, 3), ["", "x", "y", "z"], ["a", "b"]),
        ("context", (2, 3), ["", "0", "1", "2"], ["a", "b"]),
        ("lse", (2,), ["", "lse"], ["a", "b"]),
        ("query", (2, 1), ["", "0"], ["a", "b"]),
        ("key", (3, 2), ["", "0", "1"], ["x", "y", "z"]),
        ("value", (3, 2), ["", "0", "1"], ["x", "y", "z"]),
    ],
)
def test_each_output_has_the_labels_of_its_axes(name, shape, head, first):
    stream = io.BytesIO()
    labels = ("a", "b"), ("x", "y", "z")
    write(stream, Results({name: np.zeros(shape)}, *labels, labelled=True), "csv")
    rows = list(csv.reader(io.StringIO(stream.getvalue().decode())))
    assert rows[0] == head
    assert [row[0] for row in rows[1:]] == first
    stream = io.BytesIO()
    write(stream, Results({name: np.zeros(shape)}, labelled=True), "csv")
    rows = list(csv.reader(io.StringIO(stream.getvalue().decode())))
    assert [row[0] for row in rows[1:]] == [str(index) for index in range(shape[0])]
