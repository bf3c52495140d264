"""Every option that describes a problem, from the command line, against the oracle."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from oracle import attention_oracle

if TYPE_CHECKING:
    from pathlib import Path

    from process import Run

random = np.random.default_rng(7)
FILES = {
    "q.npy": random.uniform(-2, 2, (2, 4, 3, 6)),
    "k.npy": random.uniform(-2, 2, (2, 2, 5, 6)),
    "v.npy": random.uniform(-2, 2, (2, 2, 5, 3)),
    "mask.npy": random.random((2, 1, 3, 5)) < 0.7,
    "drop.npy": random.random((3, 5)) < 0.3,
    "bias.npy": random.uniform(-1, 1, (4, 3, 5)),
    "padding.npy": np.array([[1, 1, 1, 0, 1], [1, 1, 0, 1, 1]]),
    "ids.npy": np.array([[0, 0, 1], [3, 2, 2]]),
    "kv_ids.npy": np.array([0, 0, 1, 2, 1]),
    "w.npy": random.uniform(-1, 1, (6, 6)),
    "u.npy": random.uniform(-1, 1, 6),
    "packed_q.npy": random.uniform(-2, 2, (2, 3, 8)),
    "packed_kv.npy": random.uniform(-2, 2, (2, 5, 4)),
    "hsd.npy": random.uniform(-2, 2, (2, 3, 4)),
}
TOP = {"causal_align": "top-left"}
# The words of the command line, and the same in the oracle's.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {}),
    "--plain": ("--plain", {"scale": 1.0}),
    "--scale": ("--scale 0.3", {"scale": 0.3}),
    "--scale 0": ("--scale 0", {"scale": 0.0}),
    "--mask": ("--mask mask.npy", {"mask": FILES["mask.npy"]}),
    "--mask-means": (
        "--mask drop.npy --mask-means drop",
        {"mask": FILES["drop.npy"], "mask_means": "drop"},
    ),
    "--bias": ("--bias bias.npy", {"bias": FILES["bias.npy"]}),
    "--key-padding-mask": (
        "--key-padding-mask padding.npy",
        {"key_padding_mask": FILES["padding.npy"]},
    ),
    "--kv-lengths": ("--kv-lengths 3,5", {"kv_lengths": [3, 5]}),
    "--kv-lengths one": ("--kv-lengths 2", {"kv_lengths": 2}),
    "--query-lengths": ("--query-lengths 3,2", {"query_lengths": [3, 2]}),
    "--causal": ("--causal", {"causal": True}),
    "--causal-align": (
        "--causal --causal-align bottom-right",
        {"causal": True, "causal_align": "bottom-right"},
    ),
    "--query-offset": ("--causal --query-offset 1,-1", {"causal": True, "query_offset": [1, -1]}),
    "--window": ("--window 1,0 --causal-align top-left", {"window": (1, 0)} | TOP),
    "--window one": ("--window 1 --causal-align top-left", {"window": 1} | TOP),
    "--window open": ("--window=-1,1 --causal-align top-left", {"window": (-1, 1)} | TOP),
    "--segment-ids": (
        "--segment-ids ids.npy --kv-segment-ids kv_ids.npy",
        {"segment_ids": FILES["ids.npy"], "kv_segment_ids": FILES["kv_ids.npy"]},
    ),
    "--kv-segment-ids": (
        "--segment-ids 0,1,1 --kv-segment-ids 1,0,1,1,0",
        {"segment_ids": [0, 1, 1], "kv_segment_ids": [1, 0, 1, 1, 0]},
    ),
    "--softcap": ("--softcap 0.5", {"softcap": 0.5}),
    "--alibi": ("--alibi", {"alibi_slopes": True}),
    "--alibi-slopes": ("--alibi-slopes 1,.5,0,2", {"alibi_slopes": [1, 0.5, 0, 2]}),
    "--sinks": ("--sinks 0,1,-1,.5", {"sinks": [0, 1, -1, 0.5]}),
    "--rope": ("--rope half", {"rope": "half"}),
    "--rope-base": (
        "--rope interleaved --rope-base 100",
        {"rope": "interleaved", "rope_base": 100.0},
    ),
    "--rope-frequencies": (
        "--rope half --rope-frequencies 0.5",
        {"rope": "half", "rope_frequencies": [0.5]},
    ),
    "--score": ("--score cosine", {"score": "cosine"}),
    "--score-weight": (
        "--score general --score-weight w.npy",
        {"score": "general", "score_weight": FILES["w.npy"]},
    ),
    "--score-vector": (
        "--score additive --score-vector u.npy",
        {"score": "additive", "score_vector": FILES["u.npy"]},
    ),
    "--threads": ("--threads 1", {}),
    "--precision": ("--precision float64", {}),
}
# Options that say how things look, where they go or what they are called; other tests run them.
ELSEWHERE = {
    "--show", "--format", "--save", "--batch", "--head", "--digits", "--max-rows", "--max-cols",
    "--tokens", "--query-labels", "--key-labels", "--quiet", "--color", "--dtype", "--layout",
    "--heads", "--kv-heads", "--help", "--top", "--without", "--with-labels", "--json",
    "--no-color", "--layer", "--call", "--merge", "--header", "--grad", "--keys", "--queries",
    "--scheduler", "--workers",
}  # fmt: skip
# What makes query, key and value of embeddings: below, or in the tests of projections.
PROJECTED = {
    "--wq", "--wk", "--wv", "--wo", "--bq", "--bk", "--bv", "--bo", "--checkpoint", "--positions",
    "--average-heads", "--torch-layout", "--q-norm", "--k-norm", "--norm-eps", "--config",
    "--transposed",
}  # fmt: skip


@pytest.fixture
def arrays(folder: Path) -> Path:
    for name, array in FILES.items():
        np.save(folder / name, array)
    return folder


def agree(found: Any, expected: dict[str, np.ndarray]) -> None:
    for name in ("weights", "context", "scores", "raw", "capped", "lse"):
        # null is how JSON says −inf.
        array = np.array(found[name], dtype=object)
        array[array == None] = -np.inf  # noqa: E711 - element by element
        np.testing.assert_allclose(array.astype(float), expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_means_what_the_oracle_says(option: str, arrays: Path, attncli: Run) -> None:
    words, meaning = OPTIONS[option]
    show = "--show=weights,context,scores,raw,capped,lse"
    ran = attncli(
        "compute", "q.npy", "k.npy", "v.npy", *words.split(), show, "--format", "json", "-q"
    )
    expected = attention_oracle(FILES["q.npy"], FILES["k.npy"], FILES["v.npy"], **meaning)
    agree(ran.good().json, expected)


def test_heads_are_cut_out_of_packed_widths(arrays: Path, attncli: Run) -> None:
    words = ["--heads", "4", "--kv-heads", "2", "--format", "json"]
    ran = attncli("compute", "packed_q.npy", "packed_kv.npy", "packed_kv.npy", *words)
    packed = FILES["packed_q.npy"], FILES["packed_kv.npy"], FILES["packed_kv.npy"]
    expected = attention_oracle(*packed, heads=4, kv_heads=2)
    assert np.shape(ran.good().json["weights"]) == (2, 4, 3, 5)
    np.testing.assert_allclose(ran.json["context"], expected["context"], rtol=1e-12)


@pytest.mark.parametrize("layout", ["bsd", "hsd", "shd"])
def test_layout_names_the_axes(layout: str, arrays: Path, attncli: Run) -> None:
    ran = attncli("compute", *["hsd.npy"] * 3, "--layout", layout, "--format", "json")
    expected = attention_oracle(*[FILES["hsd.npy"]] * 3, layout=layout)
    np.testing.assert_allclose(ran.good().json["weights"], expected["weights"], rtol=1e-12)
    np.testing.assert_allclose(ran.json["context"], expected["context"], rtol=1e-12)


def test_precision_says_what_is_computed_in(folder: Path, attncli: Run) -> None:
    np.save("q.npy", np.ones((1, 2), np.float32))
    for word, dtype in (("float32", "<f4"), ("float64", "<f8")):
        attncli("compute", "q.npy", "q.npy", "--precision", word, "--save", "w.npy").good()
        assert np.load("w.npy").dtype == dtype


def test_without_leaves_out_what_the_problem_file_says(folder: Path, attncli: Run) -> None:
    (folder / "p.yaml").write_text(
        "q: [[1, 2], [3, 1]]\nk: [[1, 0], [0, 1]]\nv: [[1], [2]]\ncausal: true\nscale: 0.3\n"
    )
    words = ["compute", "p.yaml", "--without", "causal,scale", "-f", "json"]
    expected = attention_oracle([[1, 2], [3, 1]], [[1, 0], [0, 1]], [[1], [2]])
    np.testing.assert_allclose(attncli(*words).good().json["weights"], expected["weights"])
    again = attncli(*words, "--causal").good().json["weights"]
    assert again[0] == [1, 0]
    assert again[1] == pytest.approx(expected["weights"][1])


def test_what_check_says_of_a_problem_file_can_be_done(folder: Path, attncli: Run) -> None:
    np.save("h.npy", attention_oracle(*[FILES["hsd.npy"][0]] * 3)["context"])
    np.save("x.npy", FILES["hsd.npy"][0])
    (folder / "p.yaml").write_text("q: x.npy\nk: x.npy\nv: x.npy\ncausal: true\n")
    words = ["check", "p.yaml", "--expect", "h.npy"]
    ran = attncli(*words)
    assert "attncli: leave --causal out (of a problem file, with --without)\n" in ran.text
    assert (ran.code, attncli(*words, "--without", "causal").code) == (1, 0)


def test_a_picture_knows_what_was_left_out(folder: Path, attncli: Run) -> None:
    (folder / "p.yaml").write_text("q: [[1, 2]]\nk: [[1, 0]]\nscale: 0.3\n")
    attncli("heatmap", "p.yaml", "--without", "scale", "--out", "p.png").good()
    assert re.search(r"^without +scale$", attncli("info", "p.png").good().text, re.MULTILINE)


def test_every_option_of_the_help_is_tested(attncli: Run) -> None:
    text = attncli("compute", "--help").text
    listed = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", text, re.MULTILINE))
    here = {name for name in OPTIONS if " " not in name and name != "nothing"}
    assert listed - here - ELSEWHERE - PROJECTED == set()


def test_header_says_whether_the_first_row_is_a_heading(tutorial: Path, attncli: Run) -> None:
    words = ("compute", "q.csv", "k.csv", "v.csv", "-f", "json", "-q", "--header")
    plain = attncli(*words, "no").good().json["context"]
    for name in words[1:4]:
        text = (tutorial / name).read_text()
        heading = "7,8\n" if name == "v.csv" else "7,8,9\n"
        (tutorial / name).write_text(heading + text)
    assert attncli(*words, "yes").good().json["context"] == plain
    assert np.shape(attncli(*words, "no").good().json["context"]) == (3, 2)


def test_rows_that_see_nothing_are_zero_and_counted_on_stderr(tutorial: Path, attncli: Run) -> None:
    (tutorial / "m.csv").write_text("0,0,0\n1,1,0\n")
    ran = attncli("compute", "q.csv", "k.csv", "v.csv", "--mask", "m.csv", "-f", "json").good()
    assert ran.json["weights"][0] == [0, 0, 0]
    assert ran.json["context"][0] == [0, 0]
    (message,) = ran.messages
    assert message.startswith("warning: 1 of 2 queries sees no key")
    quiet = attncli("compute", "q.csv", "k.csv", "v.csv", "--mask", "m.csv", "-f", "json", "-q")
    assert quiet.err == b""
    assert quiet.out == ran.out
