"""`attncli info`: what it says of files, against what the tests wrote into them."""

from __future__ import annotations

import math
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from process import ROOT
from terminal import show

from attncli.loading.info import Survey, survey
from attncli.numerics.dtypes import as_bfloat16

CHECKPOINT = ROOT / "tests/data/minilm/attention.safetensors"


def told(attncli, *arguments):
    answer = attncli("info", *arguments, "--format", "json").good().json
    assert answer["schema"] == 1
    return answer["files"]


def test_a_pipe_is_read_once(attncli, folder):
    os.mkfifo("pipe")
    for text in ("a,b\n1,x\n", "a,b\n1,2\n"):
        writer = threading.Thread(target=Path("pipe").write_text, args=(text,))
        writer.start()
        ran = attncli("info", "pipe")
        writer.join()
        assert (ran.code == 0) == ("x" not in text)
        assert ran.code == 0 or "line 2, column 2" in ran.messages[0]


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        hnp.array_shapes(max_dims=3, max_side=5),
        elements={"allow_nan": True},
    )
)
def test_survey_is_what_a_loop_finds(array):
    numbers = [float(number) for number in array.ravel()]
    finite = [number for number in numbers if math.isfinite(number)]
    found = survey(array)
    assert found.nonfinite == len(numbers) - len(finite)
    assert found.nan == sum(math.isnan(number) for number in numbers)
    assert found.inf == numbers.count(math.inf)
    assert found.minimum == (min(finite) if finite else None)
    assert found.maximum == (max(finite) if finite else None)


def test_a_survey_of_many_numbers_in_any_order():
    array = np.arange(2300.0 * 2300).reshape(2300, 2300)
    array[3, 3], array[-1, -1] = np.nan, np.inf
    expected = Survey(0.0, array[-1, -2], nan=1, inf=1)
    assert survey(array) == survey(np.asfortranarray(array)) == expected
    assert survey(array[:, ::2]) == Survey(0.0, array[-1, -2])


def test_survey_of_bfloat16_integers_and_booleans():
    bits = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)  # 1, −2, inf
    assert survey(as_bfloat16(bits)) == Survey(-2.0, 1.0, inf=1)
    large = np.array([2**62 + 1, -(2**62) - 1])
    assert survey(large) == Survey(-(2**62) - 1, 2**62 + 1)
    assert survey(np.array([True, False])) == Survey(minimum=False, maximum=True)


def test_one_array_of_each_format(attncli, folder):
    array = np.array([[1.5, -2.0], [0.25, 4.0]])
    np.save("a.npy", array.astype(np.float32))
    Path("a.csv").write_text("1.5,-2\n0.25,4\n")
    Path("a.yaml").write_text("[[1.5, -2], [0.25, 4]]\n")
    for entry, dtype in zip(
        told(attncli, "a.npy", "a.csv", "a.yaml"), ("float32", *["float64"] * 2), strict=True
    ):
        (member,) = entry["members"]
        assert member["shape"] == [2, 2]
        assert member["dtype"] == dtype
        assert (member["min"], member["max"], member["nonfinite"]) == (-2.0, 4.0, 0)


def test_members_of_archives_and_documents(attncli, folder):
    arrays = {"q": np.ones((2, 3), np.float16), "mask": np.eye(2, dtype=bool)}
    arrays["bias"] = np.array([[0.0, -np.inf]])
    np.savez("a.npz", **arrays)
    (entry,) = told(attncli, "a.npz")
    found = {member["name"]: member for member in entry["members"]}
    assert {name: member["dtype"] for name, member in found.items()} == {
        "q": "float16",
        "mask": "bool",
        "bias": "float64",
    }
    assert (found["mask"]["min"], found["mask"]["max"]) == (False, True)
    assert (found["bias"]["min"], found["bias"]["max"], found["bias"]["nonfinite"]) == (0, 0, 1)
    (entry,) = told(attncli, "a.npz#q")
    assert [member["name"] for member in entry["members"]] == ["q"]
    Path("p.yaml").write_text("tokens: [a, '[pad]']\nquery: [[1, 2]]\ncausal: true\nscale: 2\n")
    (entry,) = told(attncli, "p.yaml")
    notes = {member["name"]: (member["dtype"], member["note"]) for member in entry["members"]}
    assert notes["tokens"] == ("text", "a, [pad]")
    assert notes["causal"] == ("bool", "True")
    assert notes["query"] == ("float64", None)
    # A label is text, not markup.
    assert "[pad]" in attncli("info", "p.yaml").good().text


def test_what_cannot_be_read_is_named_all_the_same(attncli, folder):
    np.save("o.npy", np.array([{}, []], dtype=object))
    np.savez("m.npz", good=np.ones(2), bad=np.array([["a", "b"]]))
    objects, mixed = told(attncli, "o.npy", "m.npz")
    assert objects["members"][0]["dtype"] == "Python objects"
    assert "unpickling" in objects["members"][0]["note"]
    found = {member["name"]: member for member in mixed["members"]}
    assert found["good"]["max"] == 1.0
    assert found["bad"]["max"] is None
    assert "text" in found["bad"]["note"]


def test_layers_of_a_checkpoint_can_be_pasted(attncli, folder):
    from safetensors.numpy import save_file

    width, shared = 8, 4
    arrays = {}
    for n in range(2):
        stem = f"model.layers.{n}.self_attn"
        arrays |= {f"{stem}.{c}_proj.weight": np.ones((width, width), np.float32) for c in "qo"}
        arrays |= {f"{stem}.{c}_proj.weight": np.ones((shared, width), np.float32) for c in "kv"}
    arrays["model.layers.1.self_attn.q_norm.weight"] = np.ones(4, np.float32)
    save_file(arrays, "my model.safetensors")
    (entry,) = told(attncli, "my model.safetensors")
    assert [layer["checkpoint"] for layer in entry["layers"]] == [
        f"my model.safetensors#model.layers.{n}.self_attn" for n in range(2)
    ]
    assert entry["layers"][0]["family"] == "Llama"
    assert entry["layers"][0]["widths"] == {
        "embedding": 8, "query": 8, "key": 4, "value": 4, "output": 8, "joint": None
    }  # fmt: skip
    assert entry["layers"][1]["not_applied"] == ["model.layers.1.self_attn.q_norm.weight"]
    text = attncli("info", "my model.safetensors").good().text
    assert "2 attention layers" in text
    np.save("x.npy", np.ones((3, width), np.float32))
    pasted = next(line for line in text.splitlines() if line.startswith("--checkpoint"))
    import shlex

    answer = attncli("compute", "x.npy", *shlex.split(pasted), "--heads", "2", "-f", "json").good()
    np.testing.assert_allclose(answer.json["context"], np.full((3, 8), 64.0))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_say_how_they_were_made(attncli, folder, suffix):
    np.savetxt("w.csv", np.eye(3), delimiter=",")
    attncli("heatmap", "w.csv", "--out", f"w.{suffix}").good()
    (entry,) = told(attncli, f"w.{suffix}")
    assert entry["picture"] == suffix
    assert entry["metadata"]["Software"].startswith("attncli ")
    assert "attncli" in attncli("info", f"w.{suffix}").good().text


def test_one_bad_file_does_not_hide_the_others(attncli, folder):
    Path("good.csv").write_text("1,2\n")
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0\0\xff\xff" + b"tEXt")
    ran = attncli("info", "nope.csv", "good.csv", "broken.png")
    assert ran.code == 2
    assert "good.csv" in ran.text
    assert ran.messages[0] == "error: nope.csv does not exist"
    assert any("broken.png: " in line and "damaged" in line for line in ran.messages)


def test_nothing_to_tell_of(attncli, monkeypatch):
    monkeypatch.setattr("attncli.cli.info.piped_in", lambda: False)
    ran = attncli("info")
    assert ran.code == 2
    assert ran.messages[0] == "error: info needs a file"


@pytest.mark.parametrize("width", [40, 200])
def test_no_value_no_label_and_no_argument_is_lost_in_a_narrow_terminal(folder, width):
    arrays = {"query": np.ones((2, 4, 8, 16)), "tokens": ["The", "cat", "sat"]}
    np.savez("a.npz", scale=0.125, softcap=50.0, rope_base=500000.0, **arrays)
    shown = show("info", "a.npz", str(CHECKPOINT), width=width)
    assert shown.widest <= width
    for value in ("0.125", "50.0", "500000.0", "The", "cat", "sat"):
        assert re.search(rf"(?<![\d.]){re.escape(value)}(?![\d.])", "\n".join(shown.lines)), value
    # What is to be pasted may be broken, but never cut.
    assert str(CHECKPOINT) in "".join(line.rstrip() for line in shown.lines)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("t.txt", "The\ncat\nsat on\n"),
        ("t.json", '["The", "cat", "sat on"]'),
        ("t.yaml", "- The\n- cat\n- sat on\n"),
        ("t.csv", "The\ncat\nsat on\n"),
    ],
)
def test_a_file_of_labels_is_told_to_be_one(attncli, folder, file, text):
    Path(file).write_text(text)
    (member,) = told(attncli, file)[0]["members"]
    assert (member["dtype"], member["shape"]) == ("text", [3])
    assert member["note"] == "labels: The, cat, sat on"


def test_what_is_not_finite_is_told_apart(attncli, folder):
    mask = np.zeros((6, 6))
    mask[np.triu_indices(6, 1)] = -np.inf
    np.save("mask.npy", mask)
    row = attncli("info", "mask.npy").good().text.splitlines()[3].split()
    assert row == ["6×6", "float64", "0", "0", "15", "-inf"]
    np.save("odd.npy", np.array([[np.nan, np.inf, 2.0], [np.nan, 1.0, 0.0]]))
    assert "2 NaN, 1 inf" in attncli("info", "odd.npy").good().text
    (entry,) = told(attncli, "odd.npy")
    counts = ("nonfinite", "nan", "inf", "minus_inf")
    assert [entry["members"][0][name] for name in counts] == [3, 2, 1, 0]
