"""`check` for people who test kernels: many dumps, two files side by side, and assertions."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from oracle import attention_oracle

from attncli import AttnError, assert_attention


def problem(seed):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=(1, 2, 5, 4)) for name in ("query", "key", "value")}


@pytest.fixture
def dumps(folder):
    """Three dumps: right, unscaled, and one without an output."""
    Path("dumps").mkdir()
    for seed, name in enumerate(("a-right", "b-unscaled", "c-broken")):
        arrays = problem(seed)
        made = attention_oracle(
            *arrays.values(), causal=True, scale=1.0 if "unscaled" in name else None
        )
        out = {} if "broken" in name else {"out": made["context"], "lse": made["lse"]}
        np.savez(f"dumps/{name}.npz", **arrays, **out)
    return folder


def test_a_folder_is_judged_file_by_file(dumps, attncli):
    Path("dumps/c-broken.npz").unlink()
    ran = attncli("check", "dumps", "--causal", "--json")
    assert ran.code == 1
    told = json.loads(ran.out)
    assert (told["schema"], told["passed"]) == (1, False)
    right, wrong = told["files"]
    assert right["passed"] is True
    names = [cause["name"] for cause in wrong["report"]["diagnosis"]["explanations"]]
    assert names == ["unscaled"]
    table = attncli("check", "dumps", "--causal").text
    assert "unscaled" in table
    assert [line.split()[0] for line in table.splitlines()[2:4]] == [
        "dumps/a-right.npz",
        "dumps/b-unscaled.npz",
    ]


def test_an_error_of_one_file_hides_no_other_and_is_exit_code_2(dumps, attncli):
    files = [f"dumps/{name}.npz" for name in ("a-right", "b-unscaled", "c-broken")]
    ran = attncli("check", *files, "--causal", "--junit", "report.xml")
    assert ran.code == 2
    suite = ET.parse("report.xml").getroot()
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1"}
    right, wrong, broken = suite
    assert [child.tag for child in (*right, *wrong, *broken)] == ["failure", "error"]
    assert "unscaled" in wrong[0].get("message")
    assert "out" in broken[0].get("message")


def test_all_right_is_exit_code_0(dumps, attncli):
    ran = attncli("check", "dumps/a-right.npz", "--causal", "--expect", "#out")
    assert ran.code == 0
    two = ("--expect", "context=#out", "--expect", "lse=#lse")
    told = json.loads(attncli("check", "dumps/a-right.npz", "--causal", *two, "--json").out)
    (only,) = told["files"]
    assert [one["name"] for one in only["report"]["outputs"]] == ["context", "lse"]


def test_two_files_beside_each_other(folder, attncli):
    arrays = problem(3)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    answer = attention_oracle(*arrays.values())["context"]
    np.save("near.npy", answer + 1e-6)
    np.save("far.npy", answer + 4e-6)
    files = [f"{name}.npy" for name in arrays]
    words = ("--expect", "near.npy", "--beside", "far.npy", "--atol", "1e-5")
    told = json.loads(attncli("check", *files, *words, "--json").good().out)
    assert told["beside"]["rms_ratio"] == pytest.approx(4, rel=1e-3)
    assert "4 times less" in attncli("check", *files, *words).good().text
    ran = attncli("check", *files, "--expect", "near.npy", "--beside", "lse=far.npy")
    assert ran.code == 2


@pytest.mark.parametrize(
    ("tolerances", "code"),
    [
        (("--atol", "1e-5"), 0),
        (("--atol", "context=1e-5"), 0),
        (("--atol", "context=1e-7"), 1),
        (("--atol", "lse=1e-5"), 2),
        (("--rtol", "1e-5", "--rtol", "lse=1"), 2),
        (("--atol", "nothing=1"), 2),
        (("--atol", "-1"), 2),
    ],
)
def test_a_tolerance_for_each_output(folder, attncli, tolerances, code):
    arrays = problem(4)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.save("out.npy", attention_oracle(*arrays.values())["context"] + 1e-6)
    files = [f"{name}.npy" for name in arrays]
    ran = attncli("check", *files, "--expect", "out.npy", "--no-diagnose", *tolerances)
    assert ran.code == code


def test_an_assertion_names_the_mistake():
    arrays = problem(5)
    right = attention_oracle(*arrays.values(), causal=True)["context"]
    assert_attention(right, **arrays, causal=True)
    wrong = attention_oracle(*arrays.values(), causal=True, scale=1.0)["context"]
    with pytest.raises(AssertionError) as failure:
        assert_attention(wrong, **arrays, causal=True)
    lines = str(failure.value).splitlines()
    assert len(lines) <= 10
    assert any("unscaled" in line for line in lines)
    with pytest.raises(AttnError):
        assert_attention(wrong, **arrays, causal=True, window="x")


@pytest.mark.torch
def test_tensors_with_gradients_are_taken_as_they_are():
    torch = pytest.importorskip("torch")
    query, key, value = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert_attention(out, query, key, value)
    half = [tensor.bfloat16() for tensor in (query, key, value)]
    out = torch.nn.functional.scaled_dot_product_attention(*half)
    assert_attention(out, *half)
