"""The door: what `pose` refuses and doubts, and what it makes of what it takes."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from oracle import alibi_slopes

import attncli
from attncli import pose

X = np.arange(6.0).reshape(2, 3)
HEADS = np.ones((2, 4, 5, 6))
BATCH = {"query": np.ones((5, 2, 3)), "key": np.ones((5, 4, 3)), "value": None}
F32 = {"precision": "float32"}


def with_value(array: np.ndarray, index: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.astype(float)
    changed[index] = value
    return changed


# Class, what comes first, facts behind it, arguments; query, key and value are X unless given.
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    # shapes of query, key and value
    ("Shape", "query", r"2, 3 or 4 axes.*\(3,\).*reshape it to \(1, 3\)", {"query": [1, 2, 3]}),
    ("Shape", "query", r"\(2, 3\) and key \(1, 2, 3\).*same number of axes", {"key": X[None]}),
    ("Shape", "query", r"\(2, 3\) and key \(3, 2\).*width.*3 and 2.*key \(…, S, D\)", {"key": X.T}),
    ("Shape", "key", "2 keys and 3 values", {"value": X.T}),
    ("Shape", "query", "4 query heads cannot share 3.*--layout",
     {"query": HEADS, "key": np.ones((2, 3, 5, 6))}),
    ("Shape", "key", "same batch size and heads", {"query": HEADS, "value": np.ones((2, 2, 5, 6))}),
    ("Shape", "query", "16 and 4.*--heads H --kv-heads G",
     {"query": np.ones((2, 5, 16)), "key": np.ones((2, 5, 4))}),
    # their values
    ("Data", "query", "found words", {"query": [["a"]]}),
    ("Data", "query", r"nan at index \(1, 2\)", {"query": with_value(X, (1, 2), np.nan)}),
    ("Data", "value", r"-inf \(null in JSON and YAML\) at index \(0, 1\).*padding that kv_lengths",
     {"value": with_value(X, (0, 1), -np.inf)}),
    ("Data", "key", r"float32.*1e\+39 at index \(0, 0\).*--precision float64",
     {"key": with_value(X, (0, 0), 1e39), **F32}),
    ("Data", "query", "masked array", {"query": np.ma.masked_array(X, X > 1)}),
    # heads and layout
    ("Usage", "kv_heads", "give heads", {"kv_heads": 1}),
    *(("Usage", "heads", f"at least 1; found {n}", {"heads": n}) for n in (0, 1.5, True)),
    ("Usage", "heads", "thousands of digits", {"heads": -(10**5000)}),
    ("Usage", "layout", "'hsd' is for 3 axes; query has 2.*for 2 axes: sd", {"layout": "hsd"}),
    ("Usage", "layout", "sd, bsd, hsd, sbd, shd, bhsd, bshd, sbhd; found 'BTNH'",
     {"layout": "BTNH"}),
    # numbers and words
    *(("Usage", "scale", "finite number", {"scale": s})
      for s in (np.inf, "big", np.array([1.0, 2.0]), 10**5000, True, [])),
    ("Data", "scale", "1.17549e-38 to 3.40282e.38 for float32; found 1e-50.*--precision float64",
     {"scale": 1e-50, **F32}),
    ("Data", "scale", "found -1e-310", {"scale": -1e-310}),
    ("Usage", "rope_base", "above 0; found 0", {"rope": "half", "rope_base": 0}),
    ("Usage", "rope_base", "only for rope", {"rope_base": 500.0}),
    ("Usage", "rope_base and rope_frequencies", "give one",
     {"rope": "half", "rope_base": 10, "rope_frequencies": [1.0]}),
    ("Shape", "rope_frequencies", "at most 1 for width 3; found 2",
     {"rope": "half", "rope_frequencies": [1.0, 0.5]}),
    ("Usage", "rope", "half, interleaved; found 'full'", {"rope": "full"}),
    ("Usage", "precision", "float32, float64; found 'float16'", {"precision": "float16"}),
    ("Usage", "causal", "true or false; found 'yes'", {"causal": "yes"}),
    ("Usage", "score", "found 'cos'.*did you mean cosine", {"score": "cos"}),
    # what belongs to a score function
    ("Shape", "score_weight", r"\(3, 4\).*found \(4, 3\).*rows belong to the query",
     {"key": np.ones((2, 4)), "score": "general", "score_weight": np.ones((4, 3))}),
    ("Shape", "rope", "one width; found 4 and 3",
     {"query": np.ones((2, 4)), "score": "general", "score_weight": np.ones((4, 3)),
      "rope": "half"}),
    ("Usage", "score_weight", "only for score general", {"score_weight": np.eye(3)}),
    ("Usage", "score_vector", "only for score additive", {"score_vector": [1, 2, 3]}),
    ("Shape", "score_vector", "3 numbers.*found 2", {"score": "additive", "score_vector": [1, 2]}),
    # one number a head
    ("Shape", "sinks", r"each query head \(1\); found 2", {"sinks": [1, 2]}),
    ("Data", "sinks", "nan", {"sinks": np.nan}),
    ("Data", "sinks", r"8.50706e\+37.*found 1e\+38 at index \(0,\)", {"sinks": [1e38], **F32}),
    ("Data", "alibi_slopes", "keys lie up to 9 away; found -1e.307",
     {"alibi_slopes": [-1e307], "query_offset": 8}),
    # masks and biases
    ("Data", "mask", r"0.5 at index \(0, 1\).*--bias", {"mask": [[1, 0.5], [1, 1]]}),
    ("Data", "mask", r"nan at index \(0, 0\)", {"mask": [[np.nan, 1], [1, 1]]}),
    ("Shape", "mask", r"weights' \(2, 2\).*found \(4, 2\)", {"mask": np.ones((4, 2))}),
    ("Shape", "mask", r"\(5, 2, 4\).*found \(5, 4\).*key_padding_mask",
     {**BATCH, "mask": np.ones((5, 4))}),
    ("Shape", "mask", r"found \(2, 5, 5\).*\(B, 1, L, S\)",
     {"query": HEADS, "mask": np.ones((2, 5, 5))}),
    ("Data", "bias", "booleans.*--mask", {"bias": [[True, False]]}),
    ("Data", "bias", r"-1e\+39 at index \(0, 1\)", {"bias": [[0, -1e39]], **F32}),
    ("Usage", "mask_means", "keep, drop; found 'hide'",
     {"mask": np.ones((2, 2)), "mask_means": "hide"}),
    ("Shape", "key_padding_mask", r"\(1, 2\) or \(2,\).*found \(3,\)",
     {"key_padding_mask": [1, 1, 0]}),
    # lengths, sequences and positions
    ("Data", "kv_lengths", "from 0 to 2; found 3", {"kv_lengths": 3}),
    ("Data", "query_lengths", "whole numbers.*found 1.5", {"query_lengths": 1.5}),
    ("Shape", "segment_ids", r"\(1, 2\) or \(2,\).*found \(3,\)", {"segment_ids": [0, 0, 1]}),
    ("Shape", "segment_ids", "found.*cu_seqlens", {"segment_ids": [0, 1, 2]}),
    *(("Data", "segment_ids", r"whole numbers.*at index \(1,\)", {"segment_ids": ids})
      for ids in ([0, 0.5], np.array([0, np.inf], np.float16), [0, -(2**63)], [0, 10**30])),
    ("Data", "segment_ids", "whole numbers; found words", {"segment_ids": ["a", "b"]}),
    ("Shape", "segment_ids", "kv_segment_ids.*2 queries and 3 keys",
     {"key": np.ones((3, 3)), "segment_ids": [0, 1]}),
    ("Shape", "kv_segment_ids", r"\(1, 2\) or \(2,\)",
     {"segment_ids": [0, 1], "kv_segment_ids": np.zeros((2, 2))}),
    ("Usage", "kv_segment_ids", "give segment_ids", {"kv_segment_ids": [0, 1]}),
    *(("Usage", "window", "pair.*3 numbers|at least 0, or −1|found", {"window": w})
      for w in ([1, 2, 3], (-2, 1), (True, 1), (0.5, 1), ("1", 1), (-(10**5000), 1))),
    *(("Data", "window", "numbers; found words", {"window": w}) for w in ("12", b"xy")),
    *(("Data", "query_offset", "whole numbers", {"causal": True, "query_offset": n})
      for n in (10**30, 2**53 + 2, 1e30, 10**400, np.inf)),
    ("Usage", "causal_align and query_offset", "give one",
     {"causal": True, "causal_align": "top-left", "query_offset": 1}),
    # output and labels
    ("Usage", "wo", "'bhsd' has a head axis", {"query": HEADS, "wo": np.ones((24, 6))}),
    ("Shape", "key_labels", "2 labels, one for each key; found 1", {"key_labels": ["a"]}),
    ("Usage", "query_labels", "a list of labels; found 'ab'", {"query_labels": "ab"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "first", "facts", "given"),
    CASES,
    ids=[f"{n} {case[1]}" for n, case in enumerate(CASES)],
)
def test_an_error_names_the_argument_first_and_says_what_is_wrong(
    kind: str, first: str, facts: str, given: dict[str, Any]
) -> None:
    arguments = {"query": X, "key": X, "value": X} | given
    if "query" in given and "value" not in given:
        arguments["value"] = None if "wo" not in given else given["query"]
    if np.ndim(given.get("query")) > 2 and "key" not in given:
        arguments["key"] = given["query"]
    if "value" in given and np.ndim(given["value"]) == 4:
        arguments |= {"query": HEADS, "key": HEADS}
    if "key" in given and "value" not in given:
        arguments["value"] = None
    with pytest.raises(attncli.AttnError) as caught:
        pose(**arguments)
    assert type(caught.value).__name__ == f"{kind}Error"
    assert re.match(rf"{first}\b", caught.value.message)
    assert re.search(facts, str(caught.value)), str(caught.value)
    assert len(caught.value.message) < 300


def test_an_error_names_the_file_of_its_argument() -> None:
    with pytest.raises(attncli.ShapeError, match=r"^query \(q.csv\) has .* key \(dump.npz#k\)"):
        pose(X, X.T, sources={"query": "q.csv", "key": "dump.npz#k"})


# --- warnings: right, but perhaps not what was meant -----------------------------------------


def advice(**arguments: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pose(**{"query": X, "key": X} | arguments)
    # The line that is blamed is the caller's, not one of attncli's.
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


FIVE = np.ones((5, 3))
MANY = {"query": np.ones((3, 2, 3)), "key": np.ones((3, 5, 3)), "kv_lengths": [4, 1, 5]}
PADDED = {"query": np.ones((2, 6, 3)), "key": np.ones((2, 8, 3)), "query_lengths": [3, 6]}
APART = {"segment_ids": [0, 0, 0, 1], "kv_segment_ids": [0, 1, 1, 1]}
FOUR = {"query": np.ones((4, 2)), "key": np.ones((4, 2))}
LONE = {"query": np.ones((1, 2)), "key": np.ones((30, 2))}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": FIVE, "causal": True}, r"2 queries and 5 keys.*key i \+ 3\..*--causal-align"),
        ({"key": FIVE, "alibi_slopes": [1.0]}, r"key i \+ 3\."),
        ({"key": FIVE, "window": 1}, r"key i \+ 3\."),
        ({**MANY, "causal": True}, r"key i − 1 to i \+ 3, batch by batch"),
        ({**FOUR, **APART, "causal": True}, "packed sequences.*other lengths"),
        ({**LONE, "mask": np.arange(30)[None] < 1}, "^mask shows only 3.3 %.*perhaps.*means drop"),
        ({"query": np.ones((1, 100, 8, 4)), "key": np.ones((1, 100, 8, 4))}, "--layout bshd"),
        *(({"query": np.ones((2, 2, 3, 3)), "key": np.ones((2, 2, 3, 3)), name: np.ones((2, 3, 3))},
           rf"^{name}.*\(H, L, S\).*\(B, 1, L, S\)") for name in ("mask", "bias")),
        ({"bias": np.tril(np.ones((2, 2)))}, "^bias holds only 0 and 1.*perhaps.*--mask"),
    ],
)  # fmt: skip
def test_what_is_perhaps_not_meant_is_told(given: dict[str, Any], said: str) -> None:
    (message,) = advice(**given)
    assert re.search(said, message), message


@pytest.mark.parametrize(
    "given",
    [
        {"causal": True},
        {"key": FIVE, "causal": True, "causal_align": "top-left"},
        {"key": FIVE, "causal": True, "query_offset": 3},
        {"key": FIVE, "window": (-1, -1)},
        {**PADDED, "query_lengths": [6, 6], "causal": True, "causal_align": "bottom-right"},
        {"mask": [[1, 0], [0, 1]]},
        {**LONE, "key_padding_mask": np.arange(30) < 2},
        {"key": with_value(X, (1, 0), np.nan), "key_padding_mask": [1, 0]},
        {"bias": np.zeros((2, 2))},
        {"bias": [[0, -1e9], [0, 0]]},
    ],
)
def test_what_is_clear_is_not_doubted(given: dict[str, Any]) -> None:
    assert advice(**given) == []


@pytest.mark.parametrize(("means", "read"), [("keep", "may attend"), ("drop", "is hidden")])
@pytest.mark.parametrize("size", [2, 6])
def test_a_mask_whose_opposite_leaves_no_query_without_keys(means: str, read: str, size) -> None:
    # The mask of nn.Transformer's generate_square_subsequent_mask, true above the diagonal.
    upper = np.triu(np.ones((size, size), bool), 1)
    square = np.ones((size, 3))
    with pytest.warns(
        attncli.AttnWarning, match=f"1 of {size} queries.*perhaps.*true means {read}"
    ):
        attncli.attention(
            square, square, mask=upper if means == "keep" else ~upper, mask_means=means
        )
    both = np.eye(size, dtype=bool)
    both[0], both[1] = False, True
    with pytest.warns(attncli.AttnWarning) as caught:
        attncli.attention(square, square, mask=both)
    assert "inverted" not in str(caught[0].message)


# --- what is made of arguments ----------------------------------------------------------------


@pytest.mark.parametrize("asked", [True, np.True_])
def test_slopes_of_the_paper_for_any_number_of_heads(asked: object) -> None:
    for heads in range(1, 40):
        inputs = np.ones((2, heads, 2, 3))
        slopes = pose(inputs, inputs, alibi_slopes=asked).alibi_slopes
        np.testing.assert_allclose(slopes, alibi_slopes(heads), rtol=1e-14)
    assert pose(X, X, alibi_slopes=np.False_).alibi_slopes is None


def test_what_scalars_and_windows_may_be() -> None:
    problem = pose(X, X, scale=np.float32(0.5), window=np.array([1]), heads=np.int64(3))
    assert (problem.scale, problem.visible.window) == (0.5, (1, 1))
    assert pose(X, X, window=[1, None]).visible.window == (1, None)
    assert pose(X, X, window=np.array([[2, -1]])).visible.window == (2, None)
    assert pose(X, X, window=(-1, 1e99)).visible.window == (None, None)
    assert pose(X, X).scale == pytest.approx(3**-0.5)
    assert pose(X, X, score="cosine").scale == 1
    assert pose(X, X, kv_lengths=[[2]], query_lengths=2.0).visible.kv_lengths == (2,)
