"""The report as words, as a Rich rendering and as data."""

import io
import json

import numpy as np
import pytest
from referee_numpy import ask, draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture
from rich.console import Console

from attncli.view.report import as_dict, renderables


def rendered(report, width, *, unicode=True):
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, highlight=False)
    for part in renderables(report, unicode=unicode):
        console.print(part)
    return stream.getvalue()


@pytest.fixture(scope="module")
def mismatch():
    q, k, v = draw(0)
    return ask((q, k, v), plain(q, k, v, scale=1), query_labels=["[pad]", "[/b]", *"cdef"])


def test_the_words_say_what_happened_and_how_to_mend_it(mismatch):
    text = str(mismatch)
    for words in ("MISMATCH", "largest error", "unscaled", "fix: multiply", "--scale 1"):
        assert words in text


def test_the_report_prints_both_errors(mismatch):
    (verdict,) = mismatch.verdicts
    text = str(mismatch)
    assert f"{verdict.largest.error:.3g}" in text
    assert f"{verdict.tolerance.plain_error:.3g}" in text


@pytest.mark.parametrize("width", [40, 45, 50, 60, 80, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_rendering_fits_the_terminal(mismatch, width, unicode):
    text = rendered(mismatch, width, unicode=unicode)
    assert max(map(len, text.splitlines())) <= width
    assert unicode or "1/sqrt D" in " ".join(text.split())
    assert "worst rows" in text


def test_the_table_of_the_worst_rows_is_like_the_other_tables(mismatch):
    lines = rendered(mismatch, 200).splitlines()
    title = lines.index("worst rows")
    headings, rule = lines[title + 1 : title + 3]
    assert headings.split() == ["where", "file", "answer", "error"]
    assert headings.startswith("where")
    assert set(rule) == {"─"}
    end = title + 3 + len(mismatch.verdicts[0].worst_rows)
    assert lines[end] == ""
    assert lines[end + 1].startswith("diagnosis")
    assert all(line == line.rstrip() for line in lines)


def test_an_empty_line_parts_the_diagnosis_from_a_wrong_shape():
    q, k, v = draw(0)
    lines = rendered(ask((q, k, v), plain(q, k, v)[:, :, :5]), 200).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("diagnosis"))
    assert lines[place - 1] == ""
    assert lines[place - 2] != ""


def test_an_option_that_reproduces_a_mistake_does_not_read_as_its_repair(mismatch):
    assert "to reproduce the mistake with attncli: --scale 1\n" in str(mismatch)


def test_labels_are_text_not_markup(mismatch):
    text = rendered(mismatch, 200)
    labels = [place.query_label for place in mismatch.verdicts[0].worst_rows]
    assert all(f"({label})" in text for label in labels)


def test_the_data_is_json_and_tells_infinities_apart():
    q, k, v = draw(0)
    wrong = plain(q, k, v)
    wrong[0, 0, 0, 0] = np.nan
    wrong[0, 0, 1, 0] = -np.inf
    data = as_dict(ask((q, k, v), wrong, diagnose=False))
    text = json.dumps(data, allow_nan=False)
    (output,) = json.loads(text)["outputs"]
    assert data["schema"] == 1
    assert data["passed"] is False
    assert {place["found"] for place in output["worst_rows"][:2]} == {"nan", "-inf"}
    assert output["nonfinite"] == 2


def test_the_data_names_conventions(mismatch):
    data = as_dict(mismatch)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    (explanation,) = data["diagnosis"]["explanations"]
    assert explanation["name"] == "unscaled"
    assert explanation["conventions"][0]["fix"].startswith("multiply")
    assert explanation["options"] == ["--scale 1"]


def test_a_report_that_passed_has_no_diagnosis():
    q, k, v = draw(0)
    report = ask((q, k, v), plain(q, k, v))
    assert as_dict(report)["diagnosis"] is None
    assert "MISMATCH" not in str(report)
    assert "diagnosis" not in str(report)


def test_an_output_that_is_right_refutes_explanations_of_another():
    q, k, v = draw(0)
    right = plain(q, k, v)
    turned = softmax(q @ k.swapaxes(-1, -2) / np.float32(8**0.5)).swapaxes(-1, -2)
    alone = ask((q, k, v), {"weights": turned})
    assert named(alone) == {"weights_transposed", "axes_bhxl"}
    assert "the context of this same problem" in alone.diagnosis.apart
    # Weights that were transposed before they met the values would have spoiled the context.
    assert named(ask((q, k, v), {"weights": turned, "context": right})) == {"axes_bhxl"}
    assert named(ask((q, k, v), {"weights": turned, "context": turned @ v})) == {
        "weights_transposed"
    }


def test_an_option_that_would_spoil_another_output_is_said_to_be_of_one():
    q, k, v = draw(0)
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2))
    report = ask((q, k, v), {"weights": weights, "context": plain(q, k, v)})
    assert "to reproduce the mistake in weights alone with attncli: --scale 1\n" in str(report)
    assert as_dict(report)["diagnosis"]["explanations"][0]["alone"] is True
    report = ask((q, k, v), {"weights": weights, "context": weights @ v})
    assert "to reproduce the mistake with attncli: --scale 1\n" in str(report)


def test_nan_is_told_first_and_is_no_size_of_an_error():
    q, k, v = draw(0)
    wrong = plain(q, k, v)
    wrong[0, 1, 2, 3] = np.nan
    text = str(ask((q, k, v), wrong))
    lines = text.splitlines()
    assert lines[1] == "  1 element in 1 row is NaN or infinite and should not be"
    assert lines[2].startswith("  largest error not finite (file nan, answer ")
    assert "rms error not finite" in text
    assert "largest relative error" not in text
    assert "inf" not in text.replace("not finite", "").replace("or infinite", "")


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize(("output", "axis"), [("weights", "key"), ("scores", "key")])
def test_what_goes_across_is_named(output, axis):
    q, k, v = draw(0)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 8**0.5
    made = softmax(scores) if output == "weights" else scores.copy()
    made[1, 2, 3, 4] += 0.5
    report = ask((q, k, v), {output: made}, key_labels=list("abcdef"))
    assert "largest error 0.5 (" in str(report)
    assert f"at batch 1, head 2, query 3, {axis} 4 (e)" in str(report)
    assert f"{axis} 4 (e)" in rendered(report, 200)


@pytest.mark.parametrize(
    ("output", "shape", "words"),
    [
        ("context", (2, 2), "the file has 2 queries, the answer 3 queries"),
        ("context", (3, 1), "the file has 1 column, the answer 2 columns"),
        ("weights", (3, 5), "the file has 5 keys, the answer 4 keys"),
        ("lse", (5,), "the file has 5 queries, the answer 3 queries"),
    ],
)
def test_the_axis_of_another_length_is_named(output, shape, words):
    q, k, v = draw(0, (3, 2), (4, 2), (4, 2))
    report = ask((q, k, v), {output: np.random.default_rng(1).normal(size=shape)})
    assert f"  {words}" in str(report).splitlines()
    assert "no known mistake explains the shape" in str(report)
    assert "the numbers" not in str(report)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_the_axis_of_another_length_is_not_named_where_layouts_differ(layout):
    q, k, v = draw(0, *[(2, 3, 4, 5)] * 3)
    shape = (2, 3, 6, 5)
    report = ask((q, k, v), np.random.default_rng(1).normal(size=shape), layout=layout)
    assert "the file has" not in str(report)


def test_a_wrong_shape_beside_wrong_numbers_is_what_is_not_explained():
    q, k, v = draw(0, (3, 2), (4, 2), (4, 2))
    random = np.random.default_rng(1)
    files = {"weights": random.normal(size=(3, 4)), "context": random.normal(size=(2, 2))}
    assert "no known mistake explains the shape (" in str(ask((q, k, v), files))
