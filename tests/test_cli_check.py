"""``attncli check`` as a command: exit codes, what is printed where, and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from referee_numpy import plain, softmax

if TYPE_CHECKING:
    from pathlib import Path

    from process import Run

QKV = ("q.csv", "k.csv", "v.csv")
Q = np.array([[1.0, 0, 1], [0, 1, 1]])
K = np.array([[1.0, 0, 1], [1, 1, 0], [0, 1, 1]])
V = np.array([[1.0, 2], [3, 4], [5, 6]])


@pytest.fixture
def judged(tutorial: Path) -> Path:
    """The tutorial's files, and outputs named by what they are."""
    np.save("right.npy", plain(Q, K, V))
    np.save("weights.npy", softmax(Q @ K.T / np.sqrt(3)))
    np.save("unscaled.npy", plain(Q, K, V, scale=1))
    np.savetxt("right.csv", plain(Q, K, V), delimiter=",", fmt="%.4f")
    nan = plain(Q, K, V)
    nan[1] = np.nan
    np.save("nan.npy", nan)
    np.save("short.npy", plain(Q, K, V)[:1])
    return tutorial


def test_a_right_file_is_exit_code_0(judged: Path, attncli: Run) -> None:
    ran = attncli("check", *QKV, "--expect", "right.npy").good()
    assert ran.text.startswith("context: ok (float64, shape (2, 2))\n")
    assert ran.err == b""


def test_a_wrong_file_is_exit_code_1_and_named(judged: Path, attncli: Run) -> None:
    ran = attncli("check", *QKV, "--expect", "unscaled.npy")
    assert (ran.code, ran.err) == (1, b"")
    lines = ran.text.splitlines()
    assert lines[0] == "context: MISMATCH (float64, shape (2, 2))"
    assert "diagnosis: one explanation makes the numbers agree" in lines
    assert "    to reproduce the mistake with attncli: --scale 1" in lines
    assert all(line == line.rstrip() for line in lines)


def test_wrong_usage_is_exit_code_2(judged: Path, attncli: Run) -> None:
    ran = attncli("check", *QKV)
    assert (ran.code, ran.out) == (2, b"")
    assert ran.messages == [
        "error: check needs an output to judge",
        "hint: --expect out.npy, or --expect weights=w.npy",
    ]


def test_json_is_one_document_and_the_exit_code_stays(judged: Path, attncli: Run) -> None:
    ran = attncli("check", *QKV, "--expect", "unscaled.npy", "--format", "json")
    assert (ran.code, ran.err) == (1, b"")
    report = ran.json
    assert (report["schema"], report["passed"]) == (1, False)
    (output,) = report["outputs"]
    largest = output["largest"]
    # The problem is its own mirror image: which of two equal differences is met depends on BLAS.
    place = (largest["query"], largest["column"])
    assert largest["found"] == pytest.approx(plain(Q, K, V, scale=1)[place])
    (explanation,) = report["diagnosis"]["explanations"]
    assert (explanation["name"], explanation["options"]) == ("unscaled", ["--scale 1"])
    right = attncli("check", *QKV, "--expect", "right.npy", "--format", "json").good()
    assert right.json["passed"] is True
    assert right.json["diagnosis"] is None


@pytest.mark.parametrize(
    ("option", "enough", "too_little"), [("--atol", "0.4", "0.01"), ("--rtol", "0.2", "0.001")]
)
def test_tolerances_that_are_given(
    option: str, enough: str, too_little: str, judged: Path, attncli: Run
) -> None:
    assert attncli("check", *QKV, "--expect", "unscaled.npy", option, enough).code == 0
    ran = attncli("check", *QKV, "--expect", "unscaled.npy", option, too_little)
    assert ran.code == 1
    assert "(given)" in ran.text


def test_the_difference_is_drawn_and_the_mismatch_told(judged: Path, attncli: Run) -> None:
    ran = attncli("check", *QKV, "--expect", "unscaled.npy", "--diff", "d.svg", "--no-diagnose")
    assert ran.code == 1
    assert ">Columns<" in (judged / "d.svg").read_text(encoding="utf-8")
    short = attncli("check", *QKV, "--expect", "short.npy", "--diff", "e.svg", "--no-diagnose")
    assert short.code == 1
    assert any("no picture is drawn" in line for line in short.messages)
    assert not (judged / "e.svg").exists()


def test_a_wrong_shape_is_a_mismatch(judged: Path, attncli: Run) -> None:
    ran = attncli("check", *QKV, "--expect", "short.npy")
    assert ran.code == 1
    assert ran.text.splitlines()[:2] == [
        "context: MISMATCH (float64, shape (1, 2))",
        "  the answer has shape (2, 2)",
    ]


@pytest.mark.parametrize("suffix", ["json", "yaml", "npz"])
def test_results_as_compute_saves_them_are_judged(judged: Path, attncli: Run, suffix: str) -> None:
    attncli("compute", *QKV, "--save", f"all.{suffix}").good()
    attncli("check", *QKV, "--expect", f"all.{suffix}").good()
    attncli("check", *QKV, "--expect", f"weights=all.{suffix}").good()
    assert attncli("check", *QKV, "--scale", "1", "--expect", f"weights=all.{suffix}").code == 1
    hint = attncli("check", *QKV, "--expect", f"lse=all.{suffix}").messages[1]
    assert hint == f"hint: choose one: all.{suffix}#weights, all.{suffix}#context"


def test_averaged_weights_pass_where_they_are_asked_for(judged: Path, attncli: Run) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 8))
    heads = x.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3)
    np.save("x.npy", x)
    np.save("mean.npy", softmax(heads @ heads.swapaxes(-1, -2) / 2).mean(axis=1))
    line = ("check", "x.npy", "x.npy", "x.npy", "--heads", "2", "--expect", "weights=mean.npy")
    assert attncli(*line, "--average-heads", "--diff", "d.png").code == 0
    assert (judged / "d.png").stat().st_size > 0
    told = attncli(*line)
    assert told.code == 1
    assert "--average-heads" in told.text


@pytest.mark.parametrize(
    ("expect", "error", "hint"),
    [
        (
            ["wieghts=q.csv"],
            (
                "--expect wieghts=q.csv: expected a name of weights, context, "
                "scores, raw, capped, lse, dquery, dkey, dvalue, dbias, dsinks; found 'wieghts'"
            ),
            "did you mean weights?",
        ),
        (["nope.npy"], "--expect: nope.npy does not exist", None),
        (
            ["right.npy", "context=unscaled.npy"],
            "--expect is given twice for context: right.npy and unscaled.npy",
            None,
        ),
    ],
)
def test_what_cannot_be_judged(
    expect: list[str], error: str, hint: str | None, judged: Path, attncli: Run
) -> None:
    given = [word for file in expect for word in ("--expect", file)]
    ran = attncli("check", *QKV, *given)
    assert (ran.code, ran.out) == (2, b"")
    assert ran.messages[0] == f"error: {error}"
    assert hint is None or ran.messages[1] == f"hint: {hint}"


def test_what_is_no_output_is_refused_with_its_file(judged: Path, attncli: Run) -> None:
    np.save("b.npy", np.eye(3, dtype=bool))
    (error, *_) = attncli("check", *QKV, "--expect", "weights=b.npy").messages
    assert error.startswith("error: weights (b.npy): expected real numbers")


@pytest.mark.parametrize("shape", [(), (0,), (0, 2), (2, 0), (2, 2, 2, 2, 2)])
def test_a_file_of_any_shape_is_judged(judged: Path, attncli: Run, shape: tuple[int, ...]) -> None:
    np.save("other.npy", np.ones(shape))
    np.savez("other.npz", out=np.ones(shape, np.float16))
    files = ["other.npy"] + ["other.npz#out"] * bool(shape)
    for file in files:
        ran = attncli("check", *QKV, "--expect", file)
        assert (ran.code, ran.messages) == (1, [])
        assert "context: MISMATCH" in ran.text
        assert "the answer has shape (2, 2)" in ran.text
        assert ("the file holds no numbers" in ran.text) == (0 in shape)


@pytest.mark.parametrize(
    ("output", "layers", "taken"),
    [
        ("context", (6,), "array[0]"),
        ("context", (1, 6), "array[0, 0]"),
    ],
)
def test_of_a_file_of_several_layers_one_is_to_be_taken(
    folder: Path, attncli: Run, output: str, layers: tuple[int, ...], taken: str
) -> None:
    for seed, name in enumerate("qkv"):
        np.save(f"{name}.npy", np.random.default_rng(seed).normal(size=(2, 3, 4, 5)))
    problem = ["q.npy", "k.npy", "v.npy"]
    attncli("compute", *problem, "--save", f"{output}=one.npy").good()
    one = np.load("one.npy")
    np.save("all.npy", np.broadcast_to(one, layers + one.shape))
    ran = attncli("check", *problem, "--expect", f"{output}=all.npy")
    assert (ran.code, f", {taken})\n" in ran.text) == (1, True)
    np.save("layer.npy", eval(taken, {"array": np.load("all.npy")}))
    attncli("check", *problem, "--expect", f"{output}=layer.npy").good()


@pytest.fixture
def heads(folder: Path) -> np.ndarray:
    """Queries, keys and values of two batch entries and four heads, and their context."""
    arrays = np.random.default_rng(0).normal(size=(3, 2, 4, 6, 8))
    for name, array in zip("qkv", arrays, strict=True):
        np.save(f"{name}.npy", array)
    return plain(*arrays)


HEADS = ("check", "q.npy", "k.npy", "v.npy", "--batch", "1", "--head", "2")


@pytest.mark.parametrize("index", [np.s_[1, 2], np.s_[1:, 2], np.s_[1:, 2:3]])
def test_a_single_head_is_judged_with_or_without_its_axes(
    index: tuple[object, ...], heads: np.ndarray, attncli: Run
) -> None:
    np.save("one.npy", heads[index])
    assert attncli(*HEADS, "--expect", "one.npy").good().text.startswith("context: ok")
    np.save("other.npy", heads[:, ::-1][index])
    assert attncli(*HEADS, "--expect", "other.npy", "--no-diagnose").code == 1


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_of_a_file_of_the_whole_problem_the_picked_head_is_judged(
    layout: str, heads: np.ndarray, attncli: Run
) -> None:
    heads[0] += 1
    heads[1, 3] += 1
    if layout == "bshd":
        heads = heads.swapaxes(1, 2)
        for file in ("q.npy", "k.npy", "v.npy"):
            np.save(file, np.load(file).swapaxes(1, 2))
    np.save("all.npy", heads)
    words = ("check", "q.npy", "k.npy", "v.npy", "--layout", layout, "--expect", "all.npy")
    assert attncli(*words, "--batch", "1", "--head", "2").good().text.startswith("context: ok")
    assert attncli(*words, "--batch", "1", "--head", "3", "--no-diagnose").code == 1
    text = attncli(*words, "--batch", "1").text
    assert "only head 3 is wrong" in text
    assert "only batch entry 0 is wrong" in attncli(*words, "--head", "2").text


def test_the_context_of_a_single_head_is_the_one_before_the_output_projection(
    heads: np.ndarray, attncli: Run
) -> None:
    for file in ("q.npy", "k.npy", "v.npy"):
        np.save(file, np.load(file).swapaxes(1, 2).reshape(2, 6, 32))
    np.save("wo.npy", np.ones((32, 5)))
    np.save("one.npy", heads[1, 2])
    ran = attncli(*HEADS, "--heads", "4", "--wo", "wo.npy", "--expect", "one.npy")
    assert ran.code == 0
    assert "the context of a single head is the one before the projection" in ran.messages[0]
