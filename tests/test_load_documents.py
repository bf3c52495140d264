"""YAML and JSON: nested lists are arrays, mappings are problems, bombs are refused."""

import io
import json
import time

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.errors import InputError
from attncli.loading import LoadedArray, LoadedMapping, read
from attncli.loading.contents import Unread


@pytest.fixture
def document(tmp_path):
    def document(text, suffix):
        path = tmp_path / f"x{suffix}"
        path.write_text(text, encoding="utf-8")
        return read(str(path))

    return document


def plain(entry):
    """Return an entry as a plain Python value."""
    return entry.values.tolist() if isinstance(entry, LoadedArray) else entry


BOTH = """{"q": [[1, 2.5], [3, 4e-1]], "heads": 12, "scale": 0.5, "causal": true, "bias": null,
 "mask": [[true, false]], "tokens": ["a", "b"], "k": "k.csv", "window": [2, 0]}"""
BLOCK = """
# a comment
q:
  - [1, 2.5]
  - [3, .4]
heads: 12
scale: 5e-1
causal: true
bias: ~
mask: [[true, false]]
tokens: [a, b]
k: k.csv
window: [2, 0]
"""


@pytest.mark.parametrize(("text", "suffix"), [(BOTH, ".json"), (BOTH, ".yaml"), (BLOCK, ".yml")])
def test_a_mapping_is_read_entry_by_entry(document, text, suffix, tmp_path):
    found = document(text, suffix)
    assert isinstance(found, LoadedMapping)
    assert found.folder == str(tmp_path)
    assert {name: plain(entry) for name, entry in found.entries.items()} == {
        "q": [[1, 2.5], [3, 0.4]],
        "heads": 12,
        "scale": 0.5,
        "causal": True,
        "bias": None,
        "mask": [[True, False]],
        "tokens": ["a", "b"],
        "k": "k.csv",
        "window": [2, 0],
    }
    assert type(found.entries["heads"]) is int
    assert found.entries["mask"].values.dtype == np.bool_
    assert found.entries["q"].values.dtype == np.float64
    assert found.entries["q"].name.endswith(f"x{suffix}#q")


@pytest.mark.parametrize("axes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_one_to_five_axes(document, axes, suffix):
    expected = np.arange(2.0**axes).reshape((2,) * axes)
    np.testing.assert_array_equal(document(json.dumps(expected.tolist()), suffix).values, expected)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-.inf", -np.inf),
        ("inf", np.inf),
        (".Inf", np.inf),
        ("~", -np.inf),
    ],
)
def test_yaml_numbers_follow_the_one_grammar(document, text, value):
    assert document(f"[{text}, 1]", ".yaml").values.tolist() == [value, 1]


def test_json_null_is_minus_infinity_and_its_words_are_numbers(document):
    found = document("[null, -Infinity, Infinity, NaN, 1]", ".json").values
    np.testing.assert_array_equal(found, [-np.inf, -np.inf, np.inf, np.nan, 1])


LONG = [[0.25, -1.5e-7, 3, -(2**70), 1e300]] * 4000


def test_long_documents_are_read_as_short_ones(document):
    text = json.dumps(
        {"q": LONG, "mask": [[True, False]], "scale": 0.5, "tokens": ["a", "é\ud83d"]}
    )
    found = document(text.replace("[0.25", "[null", 1), ".json").entries
    np.testing.assert_array_equal(found["q"].values, [[-np.inf, *LONG[0][1:]], *LONG[1:]])
    assert (plain(found["mask"]), found["scale"]) == ([[True, False]], 0.5)
    (alone,) = document(json.dumps({"q": LONG}), ".json").entries.values()
    np.testing.assert_array_equal(alone.values, LONG)


@pytest.mark.parametrize("name", ["tokens", "query_labels", "key_labels"])
def test_labels_are_words_as_they_stand(document, name):
    found = document(f"{name}: [the, 2, yes, null, true, 1e400, '007']", ".yaml")
    assert found.entries[name] == ["the", "2", "yes", "null", "true", "1e400", "007"]
    assert document(f'{{"{name}": ["the", 2]}}', ".json").entries[name] == ["the", "2"]
    assert document(f'{{"{name}": [1, 2]}}', ".json").entries[name] == ["1", "2"]


EITHER = [
    ("[[1, 2], [3]]", "line 1, column 10", "2 items, as in the first list; found 1"),
    ("[1, [2]]", "line 1, column 5", "found a list"),
    ('[[1, "2"]]', "line 1, column 6", "expected a number; found '2'"),
    ("[1, true]", "line 1, column 5", "expected a number; found true"),
    ('[["a", "b"]]', "line 1, column 3", "expected a number; found 'a'"),
    ("[1, 1e400]", "line 1, column 5", "'1e400'"),
    ("[1" + "0" * 400 + ", 1]", "line 1, column 2", "beyond the range"),
    ('{"a": 1e400}', "line 1, column 7", "'1e400'"),
    ('{"a": 1,\n "a": 2}', "line 2, column 2", "'a' appears here a second time"),
    ('{"a": {"b": 1}}', "line 1, column 7", "found a mapping"),
    ('[{"a": 1}]', "line 1, column 2", "found a mapping"),
    ('{"\\u001b[31m": [1, "x"]}', "line 1, column 20", "'x'"),
    ("3", "line 1, column 1", "single value 3"),
]
YAML_ONLY = [
    ("a: &x [1]\nb: &x [2]", "line 2, column 4", "'x' is defined again"),
    ("a: &x [1, [2]]\nb: *x", "line 1, column 11", "found a list"),
    ("a: [1]\nb: [[1, 2], &x [3]]\nc: *x", "line 2, column 13", "2 items"),
    ("a: !!python/object/apply:os.system ['true']", "line 1, column 4", "tags"),
    ("a: !%1b%5b31m x", "line 1, column 4", r"\x1b"),
    ("a: 1\n---\nb: 2", "line 2, column 1", "found a second"),
    ("é: [1, x]", "line 1, column 8", "expected a number; found 'x'"),
    ("[1, 1_0]", "line 1, column 5", "'1_0'"),
    ("[٣]", "line 1, column 2", "'٣'"),
    ("[1, 1:30]", "line 1, column 5", "expected a number; found '1:30'"),
    ("[1, 2", "line 1, column 6", "not YAML"),
    ("a: \x07", "line 1, column 4", "not YAML"),
]
JSON_ONLY = [
    ("[1,", "line 1, column 4", "not JSON"),
    ("[1,\n 2 3]", "line 2, column 4", "not JSON"),
]
FAULTS = [(suffix, *case) for case in EITHER for suffix in (".yaml", ".json")]
FAULTS += [(".yaml", *case) for case in YAML_ONLY] + [(".json", *case) for case in JSON_ONLY]


@pytest.mark.parametrize(("suffix", "text", "place", "what"), FAULTS)
def test_refusals_say_line_and_column(document, suffix, text, place, what):
    with pytest.raises(InputError) as caught:
        document(text, suffix)
    assert f"x{suffix}: {place}:" in caught.value.message
    assert what in caught.value.message
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '["' + "]" * 200_000 + '", ' + "[" * 100_000,
        "- " * 100_000,
        "- [" * 100_000,
        "--- " * 100_000,
    ],
    ids=lambda text: text[:4],
)
def test_bombs_of_brackets_end_soon(document, text, suffix):
    began = time.process_time()
    with pytest.raises(InputError):
        document(text, suffix)
    assert time.process_time() - began < 2


BILLION = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]"
    for last, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        BILLION,
        "tokens: &a [" + "x, " * 999 + "x]\nb: [" + "*a, " * 600 + "*a]",
        "a: &a [" + "[1], " * 999 + "[1]]\n" + "".join(f"b{at}: *a\n" for at in range(300)),
    ],
    ids=["billion laughs", "labels", "entries"],
)
def test_an_alias_bomb_is_not_expanded(document, text):
    began = time.process_time()
    with pytest.raises(InputError, match="with aliases expanded; found more"):
        document(text, ".yaml")
    assert time.process_time() - began < 2


def test_aliases_are_what_they_stand_for(document):
    matrix = [[1.0, 0.5], [2.0, 3.0]]
    shared = yaml.dump({"query": matrix, "key": matrix, "value": matrix})
    assert "&id001" in shared
    found = document(shared, ".yaml").entries
    assert [plain(found[name]) for name in ("query", "key", "value")] == [matrix] * 3
    found = document("row: &r [1, 2]\nx: [*r, *r, [3, 4]]\ns: &s 0.5\nt: *s", ".yaml").entries
    assert plain(found["x"]) == [[1, 2], [1, 2], [3, 4]]
    assert found["t"] == 0.5


def test_the_pure_python_parser_of_yaml_serves_as_well(document, monkeypatch):
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert document("é: [1e-3, 010]", ".yaml").entries["é"].values.tolist() == [0.001, 10]
    for text, place, what in YAML_ONLY:
        with pytest.raises(InputError, match=r"line [12]"):
            document(text, ".yaml")
        assert place
        assert what


finite = st.floats(allow_nan=False) | st.integers(-(2**80), 2**80)
shapes = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_json_and_yaml_write_is_read(data):
    shape = data.draw(shapes)
    size = int(np.prod(shape))
    flat = data.draw(st.lists(finite, min_size=size, max_size=size))
    nested = np.array(flat, dtype=object).reshape(shape).tolist()
    expected = np.array([float(number) for number in flat]).reshape(shape)
    as_json, as_yaml = json.dumps({"q": nested}), yaml.safe_dump({"q": nested})
    for text in (as_json, as_yaml):
        found = read("-", stdin=io.BytesIO(text.encode())).entries["q"].values
        np.testing.assert_array_equal(found, expected)


SUMMARY = """{"weights": [[1]], "stats": [{"head": 0, "far": [1, {"x": null}]}],
 "top": {"a": [[{"b": []}]]}}"""


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize("twice", ["", ', "twice": 1'])
def test_a_summary_beside_arrays_is_passed_over(document, suffix, twice):
    found = document(SUMMARY[:-1] + twice + "}", suffix).entries
    assert plain(found["weights"]) == [[1]]
    assert [type(found[name]) for name in ("stats", "top")] == [Unread, Unread]


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_no_other_mapping_is_passed_over(document, suffix):
    with pytest.raises(InputError, match="line 1, column 12: expected numbers, words or lists"):
        document('{"other": [{"a": 1}]}', suffix)


@pytest.mark.parametrize(("opening", "levels"), [("[", 40), ("- ", 1100)])
def test_absurd_depth_is_told_however_the_lists_are_written(document, levels, opening):
    with pytest.raises(InputError, match="lists are nested deeper than 32 levels"):
        document(opening * levels, ".yaml")
