"""Machine formats follow their JSON schemas."""

from __future__ import annotations

import json

import pytest

import docs

jsonschema = pytest.importorskip("jsonschema")
TUTORIAL = [str(docs.ROOT / f"samples/tutorial/{name}.csv") for name in "qkv"]
SENTENCE = str(docs.ROOT / "samples/sentence.yaml")
EVERYTHING = "weights,context,scores,raw,capped,lse,stats,top,query,key,value"


def validator(name):
    schema = json.loads((docs.DOCS / f"schema/{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    "words",
    [
        ["compute", SENTENCE, "--show", EVERYTHING],
        ["compute", *TUTORIAL],
        ["compute", str(docs.ROOT / "samples/class/problem.npz")],
        ["explain", SENTENCE, "--query", "cat"],
        ["explain", *TUTORIAL, "--query", "0", "--keys", "2"],
        ["check", SENTENCE, "--expect", TUTORIAL[2]],
        ["check", *TUTORIAL, "--scale", "1", "--expect", "out.npy"],
        ["info", SENTENCE, *TUTORIAL],
        ["info", str(docs.ROOT / "tests/data/minilm/attention.safetensors")],
        ["info", str(docs.ROOT / "samples/pictures/minilm-head-1.png")],
    ],
    ids=lambda words: f"{words[0]} {words[-1][-20:]}",
)
def test_output_follows_its_schema(words, folder, attncli):
    attncli("compute", *TUTORIAL, "--show", "context", "--save", "out.npy", "--quiet")
    ran = attncli(*words, "--format", "json")
    assert ran.code in (0, 1), ran.err
    errors = [*validator(words[0]).iter_errors(json.loads(ran.out))]
    assert not errors, errors[0]


def test_a_schema_refuses_what_is_wrong():
    assert not validator("compute").is_valid({"schema": 2})
    assert not validator("compute").is_valid({"schema": 1, "weight": []})
    assert not validator("check").is_valid({"schema": 1, "passed": "yes"})
