"""Self-attention as users ask for it: embeddings, matrices, a checkpoint, every command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from linear_oracle import linear, positions
from oracle import attention_oracle
from piping import piped
from process import ROOT

SAMPLES = ROOT / "samples"
MINILM = SAMPLES / "minilm"
CHECKPOINT = str(ROOT / "tests/data/minilm/attention.safetensors")
LETTERS = "qkv"


def drawn(*seed_and_shape):
    seed, *shape = seed_and_shape
    return np.random.default_rng(seed).normal(size=shape)


def write_csv(path, matrix, labels=None):
    rows = [",".join(map(repr, row)) for row in np.atleast_2d(matrix).tolist()]
    if labels:
        rows = [f"{label},{row}" for label, row in zip(labels, rows, strict=True)]
    Path(path).write_text("\n".join(rows) + "\n")


@pytest.fixture
def matrices(folder):
    """x.csv (5, 4), memory.csv (3, 4), wq.csv … wo.csv and bq.csv … bo.csv."""
    arrays = {"x": drawn(1, 5, 4), "memory": drawn(2, 3, 4)}
    arrays |= {f"w{c}": drawn(n, 4, 6) for n, c in enumerate(LETTERS, 3)}
    arrays |= {f"b{c}": drawn(n, 6) for n, c in enumerate(LETTERS, 6)}
    arrays |= {"wo": drawn(9, 6, 3), "bo": drawn(10, 3)}
    for name, array in arrays.items():
        write_csv(f"{name}.csv", array)
    return arrays


WEIGHTS = [word for c in LETTERS for word in (f"--w{c}", f"w{c}.csv")]
BIASES = [word for c in LETTERS for word in (f"--b{c}", f"b{c}.csv")]
OUTPUT = ["--wo", "wo.csv", "--bo", "bo.csv"]


def expected(m, *, query="x", key="x", bias=True, shift=None, **options):
    made = []
    for letter, source in zip(LETTERS, (query, key, key), strict=True):
        x = m[source] if shift is None else m[source] + shift(*m[source].shape)
        made.append(linear(x, m[f"w{letter}"], m[f"b{letter}"] if bias else None))
    return attention_oracle(*made, **options)


def close(answer, wanted, tolerance=1e-12):
    for name in ("weights", "context"):
        np.testing.assert_allclose(np.array(answer[name]), wanted[name], rtol=0, atol=tolerance)


def test_matrices_on_the_command_line(matrices, attncli):
    answer = attncli("compute", "x.csv", *WEIGHTS, "--format", "json").good().json
    close(answer, expected(matrices, bias=False))


def test_biases_heads_and_output(matrices, attncli):
    ran = attncli(
        *("compute", "x.csv", *WEIGHTS, *BIASES, *OUTPUT, "--heads", "2", "--causal"),
        *("--format", "json"),
    )
    wanted = expected(matrices, heads=2, causal=True)
    wanted["context"] = linear(wanted["context"], matrices["wo"], matrices["bo"])
    close(ran.good().json, wanted)


@pytest.mark.parametrize("files", [("x.csv", "memory.csv"), ("x.csv", "memory.csv", "memory.csv")])
def test_cross_attention(matrices, attncli, files):
    ran = attncli("compute", *files, *WEIGHTS, *BIASES, "--format", "json")
    close(ran.good().json, expected(matrices, key="memory"))


def test_positions(matrices, attncli):
    ran = attncli("compute", "x.csv", *WEIGHTS, "--positions", "sinusoidal", "--format", "json")
    close(ran.good().json, expected(matrices, bias=False, shift=positions))


def test_embeddings_from_a_pipe(matrices, attncli):
    with piped(Path("x.csv").read_bytes()):
        ran = attncli("compute", *WEIGHTS, "-f", "json")
    close(ran.good().json, expected(matrices, bias=False))


@pytest.mark.parametrize("form", ["yaml", "json", "npz"])
def test_problem_file(matrices, folder, attncli, form):
    names = ["x", *(f"{kind}{c}" for kind in "wb" for c in LETTERS), "wo", "bo"]
    entries = {name: matrices[name].tolist() for name in names} | {"heads": 2, "causal": True}
    if form == "npz":
        np.savez("problem.npz", **entries)
    else:
        Path(f"problem.{form}").write_text(json.dumps(entries))
    wanted = expected(matrices, heads=2, causal=True)
    wanted["context"] = linear(wanted["context"], matrices["wo"], matrices["bo"])
    close(attncli("compute", f"problem.{form}", "--format", "json").good().json, wanted)


def test_problem_file_names_its_files_and_checkpoint_beside_it(matrices, folder, attncli):
    Path("deep").mkdir()
    np.savez("deep/layers.npz", **{f"one.w{c}": matrices[f"w{c}"] for c in LETTERS})
    Path("deep/problem.yaml").write_text("x: ../x.csv\ncheckpoint: layers.npz#one\n")
    ran = attncli("compute", "deep/problem.yaml", "--format", "json").good()
    close(ran.json, expected(matrices, bias=False))
    # An output over a file that was read is refused, also over the checkpoint.
    ran = attncli("compute", "deep/problem.yaml", "--save", "deep/layers.npz")
    assert ran.code == 2


def test_every_command_takes_embeddings(matrices, attncli):
    arguments = ["x.csv", *WEIGHTS, *BIASES, *OUTPUT, "--heads", "2"]
    wanted = expected(matrices, heads=2)
    np.save("expected.npy", linear(wanted["context"], matrices["wo"], matrices["bo"]))
    np.save("wrong.npy", wanted["context"])
    assert b"\x89PNG" in Path(_drawn(attncli, arguments)).read_bytes()[:8]
    told = attncli("explain", *arguments, "--query", "1", "--head", "1", "--format", "json").good()
    np.testing.assert_allclose(_numbers(told.json, "context"), wanted["context"][1, 3:], atol=1e-9)
    assert attncli("check", *arguments, "--expect", "expected.npy").code == 0
    assert attncli("check", *arguments, "--expect", "wrong.npy", "--no-diagnose").code == 1


def _drawn(attncli, arguments):
    attncli("heatmap", *arguments, "--out", "w.png").good()
    return "w.png"


def _numbers(told, name):
    found = told[name]
    return np.array(found["sum"] if isinstance(found, dict) else found)


def test_minilm_gives_the_weights_and_context_of_the_model(attncli, folder):
    ran = attncli(
        *("compute", str(MINILM / "hidden.npy"), "--checkpoint", CHECKPOINT, "--heads", "12"),
        *("--tokens", str(MINILM / "tokens.txt"), "--save", "all.npz", "--quiet"),
    ).good()
    assert "because" in ran.text
    weights, context = (np.load(MINILM / f"{name}.npy")[0] for name in ("weights", "context"))
    with np.load("all.npz") as found:
        np.testing.assert_allclose(found["weights"], weights, rtol=0, atol=2e-6)
        heads = found["context"].reshape(13, 12, 32).transpose(1, 0, 2)
        np.testing.assert_allclose(heads, context, rtol=0, atol=2e-6)


AVERAGED = ["x.csv", *WEIGHTS, "--heads", "2", "--average-heads"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compute", *AVERAGED, "--head", "0"], "averages the heads, and --head 0 picks one"),
        (["compute", "x.csv", *WEIGHTS[:4], "--bv", "bv.csv"], "wv is missing"),
        (["compute", *WEIGHTS, "--quiet"], "no file of embeddings"),
        (["compute", "x.csv", *WEIGHTS, "--layout", "hsd"], "layout 'hsd' does not fit embeddings"),
        (
            ["compute", "x.csv", "--checkpoint", "x.csv"],
            "x.csv: expected a checkpoint of named weights; found",
        ),
        (["compute", "x.csv", "--positions", "sinusoidal"], "x.csv"),
    ],
)
def test_errors(matrices, attncli, monkeypatch, arguments, words):
    monkeypatch.setattr("attncli.cli.question.piped_in", lambda: False)
    ran = attncli(*arguments)
    assert ran.code == 2
    assert ran.out == b""
    assert words in ran.messages[0], ran.messages


def test_weights_as_linear_layers_store_them(matrices, attncli):
    for name in ("wq", "wk", "wv", "wo"):
        write_csv(f"{name}.csv", matrices[name].T)
    words = ["x.csv", *WEIGHTS, *BIASES, *OUTPUT, "--transposed"]
    wanted = expected(matrices)
    wanted["context"] = linear(wanted["context"], matrices["wo"], matrices["bo"])
    close(attncli("compute", *words, "-f", "json").good().json, wanted)


# --- one head of several, and the exact answer --------------------------------------------


@pytest.fixture
def narrow(folder):
    """Embeddings and weights in float32, in files."""
    random = np.random.default_rng(11)
    shapes = {"x": (5, 8), "wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "wo": (8, 8)}
    arrays = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    return arrays


NARROW = "x.npy --wq wq.npy --wk wk.npy --wv wv.npy --heads 2"


@pytest.mark.parametrize(
    "words",
    ["compute --head 1", "compute --head 0 --save context=c.npy --show lse"],
)
def test_a_projection_of_all_heads_is_said_to_be_left_out_for_one(words, narrow, attncli):
    command, *options = words.split()
    ran = attncli(command, *NARROW.split(), "--wo", "wo.npy", *options).good()
    (message,) = ran.messages
    assert message.startswith("warning: the output projection (wo) needs all heads: the context")
    assert attncli(command, *NARROW.split(), *options).good().messages == []


def test_the_shares_of_all_heads_and_the_bias_are_the_output(narrow, attncli):
    np.save("bo.npy", np.arange(8.0) / 3)
    line = [*NARROW.split(), "--wo", "wo.npy", "--bo", "bo.npy"]
    whole = attncli("compute", *line, "--show", "context", "-f", "json").good().json["context"]
    told = [
        attncli("explain", *line, "--query", "1", "--head", str(head), "--format", "json").good()
        for head in range(2)
    ]
    assert [ran.messages for ran in told] == [[], []]
    shares = [ran.json["output"] for ran in told]
    assert [share["heads"] for share in shares] == [2, 2]
    total = np.sum([share["share"] for share in shares], axis=0) + shares[0]["bias"]
    np.testing.assert_allclose(total, np.ravel(whole[1]), rtol=0, atol=1e-5)
    text = attncli("explain", *line, "--query", "1", "--head", "1").good().text
    first = shares[1]["share"][0]
    assert "the shares of 2 heads and bo add up to the output" in " ".join(text.split())
    assert text.split("share[0] = ")[1].split("\n\n")[0].split("\n")[0].endswith(f"= {first:.4f}")


def test_query_key_and_value_are_shown_as_they_were_projected(matrices, attncli):
    made = {
        name: linear(matrices["x"], matrices[f"w{name[0]}"], matrices[f"b{name[0]}"])
        for name in ("query", "key", "value")
    }
    line = ["compute", "x.csv", *WEIGHTS, *BIASES, "--heads", "2", "--rope", "interleaved"]
    shown = attncli(
        *line, "--rope-frequencies", "1", "--show", "key,query,value", "-f", "json"
    ).good()
    for name, array in made.items():
        np.testing.assert_allclose(shown.json[name], array, rtol=0, atol=1e-12)
