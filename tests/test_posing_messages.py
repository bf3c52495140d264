"""The error messages of the door: what, where, expected, found, and how to mend it."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest

import attncli
from attncli.errors import ShapeError, UsageError
from attncli.posing import pose

X = np.arange(6.0).reshape(2, 3)
PACKED = "query has shape (2, 5, 16) and key (2, 5, 4): expected the same width"
SHARED = {"query": np.ones((2, 5, 16)), "key": np.ones((2, 5, 4)), "value": np.ones((2, 5, 4))}
HEADS = np.ones((2, 4, 5, 6))
SQUARE = np.ones((2, 2, 3, 3))


def with_value(array: np.ndarray, index: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.astype(float)
    changed[index] = value
    return changed


# Class, message, hint, arguments after query; query, key and value are X unless given.
CASES: list[tuple[str, str, str | None, dict[str, Any]]] = [
    # shapes of query, key and value
    ("Shape", "query: expected 2, 3 or 4 axes, (…, rows, width); found shape (3,)",
     "a single vector is one row: reshape it to (1, 3)", {"query": [1, 2, 3]}),
    ("Shape", "value: expected 2, 3 or 4 axes, (…, rows, width); found shape (1, 1, 1, 1, 2)", None,
     {"value": np.ones((1, 1, 1, 1, 2))}),
    ("Shape", "key: shape (0, 3) holds no numbers", None, {"key": np.ones((0, 3))}),
    ("Shape", "query has shape (2, 3) and key (1, 2, 3): expected the same number of axes", None,
     {"key": X[None]}),
    ("Shape", "query has shape (2, 3) and key (3, 2): expected the same width; found 3 and 2",
     "key looks transposed: expected one key per row, (S, D)", {"key": X.T}),
    ("Shape", "query has shape (2, 3) and key (4, 5): expected the same width; found 3 and 5", None,
     {"key": np.ones((4, 5))}),
    ("Shape", ("key has shape (2, 3) and value (3, 2): expected a value for each key; "
     "found 2 keys and 3 values"), "value looks transposed: expected one value per row, (S, E)",
     {"value": X.T}),
    ("Shape", ("query has shape (2, 4, 5, 6) and key (3, 4, 5, 6): expected the same batch size, "
     "or 1 for one of them"), None, {"query": HEADS, "key": np.ones((3, 4, 5, 6))}),
    ("Shape", ("query has shape (5, 2, 6) and key (7, 2, 6): expected the same batch size, or "
     "1 for one of them"),
     "say what the first axis is with layout (--layout bsd, hsd, sbd or shd)",
     {"query": np.ones((5, 2, 6)), "key": np.ones((7, 2, 6))}),
    ("Shape", ("query has shape (2, 4, 5, 6) and key (2, 3, 5, 6): 4 query heads cannot share "
     "3 key/value heads evenly"), ("if the sequence comes before the heads, (B, L, H, D), give "
     "layout bshd (--layout)"), {"query": HEADS, "key": np.ones((2, 3, 5, 6))}),
    ("Shape", ("query has shape (2, 4, 5, 6) and key (2, 4, 3, 6): 5 query heads cannot share "
     "3 key/value heads evenly"),
     "layout bshd says which axis is that of the heads: is it another one (--layout)?",
     {"query": HEADS, "key": np.ones((2, 4, 3, 6)), "layout": "bshd"}),
    ("Shape", ("key has shape (2, 4, 5, 6) and value (2, 2, 5, 6): expected the same batch size "
     "and heads"), None, {"query": HEADS, "key": HEADS, "value": np.ones((2, 2, 5, 6))}),
    # their values
    ("Data", ("query: expected real numbers (float16, bfloat16, float32, float64 or integers); "
     "found words"), None, {"query": [["a"]]}),
    ("Data", ("query: expected real numbers (float16, bfloat16, float32, float64 or integers); "
     "found complex128"), None, {"query": X + 1j}),
    ("Data", ("query: expected real numbers (float16, bfloat16, float32, float64 or integers); "
     "found bool"), None, {"query": X > 1}),
    ("Data", ("key: expected an array of numbers; found rows of unequal length or things that are "
     "no numbers"), None, {"key": [[1, 2, 3], [1, 2]]}),
    ("Data", "query: expected finite numbers; found nan at index (1, 2)",
     ("only keys that no query sees may hold NaN or inf: padding that kv_lengths, "
      "key_padding_mask, segment_ids or mask hides"),
     {"query": with_value(X, (1, 2), np.nan)}),
    ("Data", ("value: expected finite numbers; found -inf (null in JSON and YAML) at index "
     "(0, 1)"),
     ("only keys that no query sees may hold NaN or inf: padding that kv_lengths, "
      "key_padding_mask, segment_ids or mask hides"),
     {"value": with_value(X, (0, 1), -np.inf)}),
    ("Data", "key: expected finite numbers; found inf at index (1, 3, 2, 5)",
     ("only keys that no query sees may hold NaN or inf: padding that kv_lengths, "
      "key_padding_mask, segment_ids or mask hides"),
     {"query": np.ones((2, 5, 4, 6)), "layout": "bshd", "value": None,
      "key": with_value(np.ones((2, 5, 4, 6)), (1, 3, 2, 5), np.inf)}),
    ("Shape", "query has shape (2, 3) and key (4, 2): expected the same width; found 3 and 2",
     "key and value look exchanged: the order is query, key, value",
     {"key": np.ones((4, 2)), "value": np.ones((4, 3))}),
    ("Shape", "query has shape (3, 2) and key (4, 3): expected the same width; found 2 and 3",
     "query looks transposed: expected one query per row, (L, D)",
     {"query": X.T, "key": np.ones((4, 3)), "value": np.ones((4, 5))}),
    ("Shape", ("key has shape (4, 3) and value (2, 5): expected a value for each key; found 4 keys "
     "and 2 values"), "query and key look exchanged: the order is query, key, value",
     {"key": np.ones((4, 3)), "value": np.ones((2, 5))}),
    ("Shape", ("key has shape (2, 3) and value (4, 5): expected a value for each key; found 2 keys "
     "and 4 values"), "query and key look exchanged: the order is query, key, value",
     {"query": np.ones((4, 3)), "key": X, "value": np.ones((4, 5))}),
    ("Shape", "query has shape (4, 5) and key (4, 3): expected the same width; found 5 and 3",
     ("all three look transposed: expected one query, key or value per row; or "
      "query and value look exchanged: the order is query, key, value"),
     {"query": np.ones((4, 5)), "key": np.ones((4, 3)), "value": X}),
    ("Shape", ("key has shape (3, 4) and value (4, 2): expected a value for each key; found 3 keys "
     "and 4 values"), "query and key look transposed: expected one query, key or value per row",
     {"query": np.ones((3, 4)), "key": np.ones((3, 4)), "value": np.ones((4, 2))}),
    ("Shape", "query has shape (4, 5) and key (2, 3): expected the same width; found 5 and 3",
     "all three look exchanged: the order is query, key, value",
     {"query": np.ones((4, 5)), "key": X, "value": np.ones((4, 3))}),
    ("Shape", "query has shape (2, 3) and key (3, 2): expected the same width; found 3 and 2",
     "one of them looks transposed (one query or key per row), or the second holds no keys",
     {"query": X, "key": X.T, "value": None}),
    ("Shape", ("query has shape (2, 6) and key (3, 8): expected the same width of a head; found 3 "
     "and 4"), None,
     {"query": np.ones((2, 6)), "key": np.ones((3, 8)), "value": np.ones((3, 4)), "heads": 2}),
    ("Data", ("alibi_slopes: expected numbers up to 8.50705e+31 in float32, because keys lie "
     "up to 1000001 away; found 1e+35"), None,
     {"query": np.ones((2, 2, 3)), "key": np.ones((2, 3, 3)), "value": None, "precision": "float32",
      "alibi_slopes": [1e35], "query_offset": [0, 10**6]}),
    # heads and layout
    ("Usage", "kv_heads splits packed keys and values: give heads, too", None,
     {"kv_heads": 1}),
    ("Usage", "kv_heads splits packed keys and values; with 4 axes they have one for the heads",
     "leave kv_heads out", {"query": HEADS, "key": HEADS, "value": None, "kv_heads": 1}),
    ("Usage", "heads: expected a whole number of at least 1; found 0", None, {"heads": 0}),
    ("Usage", "heads: expected a whole number of at least 1; found 1.5", None, {"heads": 1.5}),
    ("Usage", "heads: expected a whole number of at least 1; found True", None, {"heads": True}),
    ("Shape", "query: the width 3 cannot be cut into 2 heads of equal width", None, {"heads": 2}),
    ("Usage", "layout 'hsd' is for 3 axes; query has 2", "for 2 axes: sd", {"layout": "hsd"}),
    # numbers and words
    ("Usage", "scale: expected a finite number; found inf", None, {"scale": np.inf}),
    ("Usage", "scale: expected a finite number; found 'big'", None, {"scale": "big"}),
    ("Usage", "scale: expected a finite number; found [1.0, 2.0]", None,
     {"scale": np.array([1.0, 2.0])}),
    ("Usage", "softcap: expected a number above 0; found -1", None, {"softcap": -1}),
    ("Usage", "rope_base: expected a number above 0; found 0", None,
     {"rope": "half", "rope_base": 0}),
    ("Usage", "rope_base is only for rope", "give rope half or interleaved", {"rope_base": 500.0}),
    ("Usage", "rope_frequencies is only for rope", "give rope half or interleaved",
     {"rope_frequencies": [1.0]}),
    ("Usage", "rope_base and rope_frequencies both say how fast pairs turn: give one", None,
     {"rope": "half", "rope_base": 10, "rope_frequencies": [1.0]}),
    ("Shape", ("rope_frequencies: expected a number for each pair of components, at most 1 for "
     "width 3; found 2"), None, {"rope": "half", "rope_frequencies": [1.0, 0.5]}),
    ("Data", ("rope_frequencies: expected numbers up to 1e+06, in radians; found 1e+308 at index "
     "(0,)"), None, {"rope": "half", "rope_frequencies": [1e308]}),
    ("Data", "rope_frequencies: expected finite numbers; found inf at index (0,)", None,
     {"rope": "half", "rope_frequencies": [np.inf]}),
    ("Usage", "rope: expected one of half, interleaved; found 'full'", None, {"rope": "full"}),
    ("Shape", "rope turns pairs of components: expected an even width; found 3", None,
     {"rope": "half"}),
    ("Usage", "precision: expected one of float32, float64; found 'float16'", None,
     {"precision": "float16"}),
    ("Usage", "causal: expected true or false; found 'yes'",
     "write true or false, without quotes", {"causal": "yes"}),
    ("Usage", "causal: expected true or false; found 1", None, {"causal": 1}),
    ("Usage", "score: expected one of dot, cosine, general, additive; found 'cos'",
     "did you mean cosine?", {"score": "cos"}),
    ("Usage", "layout: expected one of sd, bsd, hsd, sbd, shd, bhsd, bshd, sbhd; found 'bhds'",
     None, {"layout": "bhds"}),
    ("Usage", "layout: expected one of sd, bsd, hsd, sbd, shd, bhsd, bshd, sbhd; found 'BTNH'",
     "here it is bshd", {"layout": "BTNH"}),
    ("Usage", ("score general needs its matrix W, of shape (3, 3): give score_weight "
     "(--score-weight)"), None, {"score": "general"}),
    ("Shape", "score_weight: expected shape (3, 3), the widths of query and key; found (2, 2)",
     None, {"score": "general", "score_weight": np.eye(2)}),
    ("Data", "score_weight: expected finite numbers; found nan at index (0, 0)", None,
     {"score": "general", "score_weight": np.full((3, 3), np.nan)}),
    ("Usage", "score_weight is only for score general", None, {"score_weight": np.eye(3)}),
    ("Usage", "score_vector is only for score additive", None, {"score_vector": [1, 2, 3]}),
    ("Shape", "score_vector: expected 3 numbers, the width of query and key; found 2", None,
     {"score": "additive", "score_vector": [1, 2]}),
    ("Data", "score_vector: expected finite numbers; found nan at index (1,)", None,
     {"score": "additive", "score_vector": [1, np.nan, 2]}),
    # one number a head
    ("Shape", "sinks: expected one number for each query head (1); found 2", None,
     {"sinks": [1, 2]}),
    ("Data", "sinks: expected finite numbers; found nan at index (0,)", None, {"sinks": np.nan}),
    ("Data", "sinks: expected numbers; found words", None, {"sinks": ["a"]}),
    ("Data", ("sinks: expected numbers up to 8.50706e+37, a quarter of the range of float32; "
     "found 1e+38 at index (0,)"), None, {"sinks": [1e38], "precision": "float32"}),
    ("Data", ("softcap: expected a number from 1.17549e-38 to 8.50706e+37 for float32; "
     "found 1e+38"), None, {"softcap": 1e38, "precision": "float32"}),
    ("Data", ("softcap: expected a number from 2.22507e-308 to 4.49423e+307 for float64; "
     "found 1e-310"), None, {"softcap": 1e-310}),
    ("Data", ("alibi_slopes: expected numbers up to 4.99359e+306 in float64, because keys lie "
     "up to 9 away; found -1e+307"), None,
     {"alibi_slopes": [-1e307], "query_offset": 8}),
    ("Shape", "alibi_slopes: expected a list of numbers; found an array of shape (2, 2)", None,
     {"alibi_slopes": np.eye(2)}),
    ("Data", "bias: expected numbers, which are added to the scores; found booleans",
     "what says which keys are seen are a mask (--mask)", {"bias": [[True, False]]}),
    ("Data", "query: expected an array of numbers; found a masked array",
     "give its data, and say which keys are hidden with mask or key_padding_mask",
     {"query": np.ma.masked_array(X, X > 1)}),
    ("Data", "query: expected an array of numbers; found a masked array",
     "give its data, and say which keys are hidden with mask or key_padding_mask",
     {"query": [np.ma.masked_array(X, X > 1)] * 2}),
    ("Usage", "scale: expected a finite number; found a number of thousands of digits", None,
     {"scale": 10**5000}),
    ("Usage", ("heads: expected a whole number of at least 1; "
     "found a number of thousands of digits"),
     None, {"heads": -(10**5000)}),
    ("Usage", ("window: expected whole numbers of at least 0, or −1 for unbounded; found a "
     "number of thousands of digits"), None, {"window": (-(10**5000), 1)}),
    ("Data", ("scale: expected 0, or a size from 1.17549e-38 to 3.40282e+38 for float32; "
     "found 1e-50"), "compute in float64 (--precision float64)",
     {"scale": 1e-50, "precision": "float32"}),
    ("Data", ("scale: expected 0, or a size from 2.22507e-308 to 1.79769e+308 for float64; "
     "found -1e-310"), None, {"scale": -1e-310}),
    # masks
    ("Data", "mask: expected booleans, or 0 and 1; found 0.5 at index (0, 1)",
     "numbers that are added to the scores are a bias: give them as bias (--bias)",
     {"mask": [[1, 0.5], [1, 1]]}),
    ("Data", "mask: expected booleans, or 0 and 1; found nan at index (0, 0)",
     "numbers that are added to the scores are a bias: give them as bias (--bias)",
     {"mask": [[np.nan, 1], [1, 1]]}),
    ("Data", "mask: expected booleans, or 0 and 1; found words", None, {"mask": [["a"]]}),
    ("Shape", ("mask: expected a shape that broadcasts to the weights' (2, 4), (…, queries, keys); "
     "found (4, 2)"), "it looks transposed: rows are queries, columns are keys",
     {"key": np.ones((4, 3)), "value": None, "mask": np.ones((4, 2))}),
    ("Shape", ("mask: expected a shape that broadcasts to the weights' (5, 2, 4), (…, queries, "
     "keys); found (5, 4)"), ("a mask with one row for each batch entry is a "
     "key_padding_mask (--key-padding-mask)"),
     {"query": np.ones((5, 2, 3)), "key": np.ones((5, 4, 3)), "value": None,
      "mask": np.ones((5, 4))}),
    ("Shape", ("mask: expected a shape that broadcasts to the weights' (2, 4, 5, 5), (…, queries, "
     "keys); found (2, 5, 5)"),
     "one matrix for each batch entry needs an axis for the heads: (B, 1, L, S)",
     {"query": HEADS, "mask": np.ones((2, 5, 5))}),
    ("Shape", ("mask: expected a shape that broadcasts to the weights' (2, 4, 5, 5), (…, queries, "
     "keys); found (8, 5, 5)"),
     "split its first axis, as nn.MultiheadAttention does: reshape to (B, H, L, S)",
     {"query": HEADS, "mask": np.ones((8, 5, 5))}),
    ("Shape", ("mask: expected a shape that broadcasts to the weights' (2, 4), (…, queries, keys); "
     "found (2, 3)"), ("if it hides the keys behind its last one, as in ONNX, pad it: a mask with "
     "false, a bias with −inf"),
     {"key": np.ones((4, 3)), "value": None, "mask": np.ones((2, 3))}),
    ("Shape", ("bias: expected a shape that broadcasts to the weights' (2, 4, 5, 5), (…, queries, "
     "keys); found (4, 1, 2)"), ("if it hides the keys behind its last one, as in ONNX, pad it: a "
     "mask with false, a bias with −inf"),
     {"query": HEADS, "bias": np.ones((4, 1, 2))}),
    ("Shape", ("bias: expected a shape that broadcasts to the weights' (5, 2, 4), (…, queries, "
     "keys); found (5, 4)"), ("a bias with one row for each batch entry is reshaped to (B, 1, S), "
     "or with heads to (B, 1, 1, S)"),
     {"query": np.ones((5, 2, 3)), "key": np.ones((5, 4, 3)), "value": None,
      "bias": -np.ones((5, 4))}),
    ("Shape", ("bias: expected a shape that broadcasts to the weights' (2, 4, 5, 5), (…, queries, "
     "keys); found (3, 2)"), None, {"query": HEADS, "bias": np.ones((3, 2))}),
    ("Usage", "mask_means: expected one of keep, drop; found 'hide'", None,
     {"mask": np.ones((2, 2)), "mask_means": "hide"}),
    ("Usage", "mask_means says how a mask is read, but there is no mask", None,
     {"mask_means": "drop"}),
    ("Shape", "key_padding_mask: expected shape (1, 2) or (2,), batch and keys; found (3,)", None,
     {"key_padding_mask": [1, 1, 0]}),
    ("Data", "bias: expected finite numbers or −inf; found inf at index (0, 1)", None,
     {"bias": [[0, np.inf]]}),
    ("Shape", ("bias: expected a shape that broadcasts to the weights' (2, 2), (…, queries, keys); "
     "found (1, 2, 2)"), None, {"bias": np.ones((1, 2, 2))}),
    # lengths and positions
    ("Usage", "kv_lengths: expected whole numbers from 0 to 2; found 3", None, {"kv_lengths": 3}),
    ("Usage", "query_lengths: expected whole numbers; found 1.5", None, {"query_lengths": 1.5}),
    ("Shape", "kv_lengths: expected one number, or one for each batch entry (1); found 2", None,
     {"kv_lengths": [1, 2]}),
    ("Shape", ("segment_ids: expected shape (1, 2) or (2,), one number for each of the tokens; "
     "found (3,)"), None, {"segment_ids": [0, 0, 1]}),
    ("Shape", ("segment_ids: expected shape (1, 2) or (2,), one number for each of the tokens; "
     "found (3,)"), ("it looks like cu_seqlens, the ends of the sequences: give the number of the "
     "sequence that each token belongs to, np.repeat(np.arange(n), np.diff(cu_seqlens))"),
     {"segment_ids": [0, 1, 2]}),
    ("Data", ("segment_ids: expected whole numbers from -9007199254740992 to 9007199254740992; "
     "found 0.5 at index (1,)"), None, {"segment_ids": [0, 0.5]}),
    *(("Data", ("segment_ids: expected whole numbers from -9007199254740992 to 9007199254740992; "
       f"found {found} at index (1,)"), None, {"segment_ids": ids})
      for found, ids in (
          ("inf", np.array([0, np.inf], np.float16)),
          ("-9.22337e+18", np.array([0, -(2**63)])),
          ("1e+30", [0, 10**30]),
          ("-inf (null in JSON and YAML)", [0, -np.inf]),
      )),
    ("Data", "segment_ids: expected whole numbers; found words", None, {"segment_ids": ["a", "b"]}),
    ("Shape", ("segment_ids: expected kv_segment_ids beside it, as there are 2 queries and "
     "3 keys"), None, {"key": np.ones((3, 3)), "value": None, "segment_ids": [0, 1]}),
    ("Shape", ("kv_segment_ids: expected shape (1, 2) or (2,), one number for each of the keys; "
     "found (2, 2)"), None, {"segment_ids": [0, 1], "kv_segment_ids": np.zeros((2, 2))}),
    ("Usage", ("kv_segment_ids says which sequence each key belongs to, but nothing says it of "
     "the queries"), "give segment_ids, too, or in its place where it is that of both",
     {"kv_segment_ids": [0, 1]}),
    ("Usage", "window: expected one number or a pair (left, right); found 3 numbers", None,
     {"window": [1, 2, 3]}),
    ("Usage", ("query_offset: expected whole numbers from -9007199254740992 to 9007199254740992; "
     f"found {10**30}"), None, {"causal": True, "query_offset": 10**30}),
    ("Usage", ("query_offset: expected whole numbers from -9007199254740992 to 9007199254740992; "
     "found 9007199254740993"), None, {"causal": True, "query_offset": 2**53 + 1}),
    ("Usage", ("query_offset: expected whole numbers from -9007199254740992 to 9007199254740992; "
     "found 1e+30"), None, {"causal": True, "query_offset": 1e30}),
    ("Usage", ("query_offset: expected whole numbers from -9007199254740992 to 9007199254740992; "
     f"found 1{'0' * 58}…"), None, {"causal": True, "query_offset": 10**400}),
    ("Usage", "query_offset: expected whole numbers; found inf", None,
     {"causal": True, "query_offset": np.inf}),
    ("Usage", "window: expected whole numbers of at least 0, or −1 for unbounded; found -2", None,
     {"window": (-2, 1)}),
    ("Usage", "causal_align: expected one of top-left, bottom-right; found 'left'",
     "did you mean top-left?", {"causal": True, "causal_align": "left"}),
    ("Usage", "window: expected one number or a pair (left, right); found bytes", None,
     {"window": b"xy"}),
    ("Usage", "window: expected one number or a pair (left, right); found '12'", None,
     {"window": "12"}),
    ("Usage", "rope_frequencies is only for rope", "give rope half or interleaved",
     {"rope_frequencies": False}),
    ("Usage", "causal_align says where the queries stand among the keys, but no rule depends on it",
     "it goes with causal, window, alibi_slopes or rope", {"causal_align": "top-left"}),
    ("Usage", "query_offset says where the queries stand among the keys, but no rule depends on it",
     "it goes with causal, window, alibi_slopes or rope", {"query_offset": 1}),
    ("Usage", "causal_align and query_offset both say where the queries stand",
     "give one of the two; --without query_offset leaves a problem file's out",
     {"causal": True, "causal_align": "top-left", "query_offset": 1}),
    ("Shape", f"{PACKED}; found 16 and 4",
     "if heads lie side by side: heads and kv_heads (--heads H --kv-heads G)", SHARED),
    ("Shape", f"{PACKED} of a head; found 4 and 1",
     "if key and value have fewer heads than the query: kv_heads 1 (--kv-heads 1)",
     {**SHARED, "heads": 4}),
    ("Shape", f"{PACKED} of a head; found 8 and 2",
     "a head is at most as wide as all keys, 4: give 4 heads (--heads) or more",
     {**SHARED, "heads": 2}),
    ("Shape", f"{PACKED} of a head; found 8 and 4",
     "a head is at most as wide as all keys, 4: give 4 heads (--heads) or more",
     {**SHARED, "heads": 2, "kv_heads": 1}),
    ("Usage", "wo projects heads that lie side by side; layout 'bhsd' has a head axis",
     "give packed inputs, and split them with heads (--heads)",
     {"query": HEADS, "key": HEADS, "value": HEADS, "wo": np.ones((24, 6))}),
    # labels
    ("Shape", "key_labels: expected 2 labels, one for each key; found 1",
     "give labels as a,b,c or as the lines of a file", {"key_labels": ["a"]}),
    ("Shape", "key_labels: expected 2 labels, one for each key; found 3",
     "the last label is empty: delete the empty line at the end of the file",
     {"key_labels": ["a", "b", ""]}),
    ("Shape", "key_labels: expected 2 labels, one for each key; found 3", None,
     {"key_labels": ["a", "b", "c"]}),
    ("Shape", "key_labels: expected 2 labels, one for each key; found 3",
     "if the first label, 'Token', is a header, delete its line",
     {"key_labels": ["Token", "b", "c"]}),
    ("Shape", "key_labels: expected 2 labels, one for each key; found 4", None,
     {"key_labels": ["token", "b", "c", "d"]}),
    ("Usage", "query_labels: expected a list of labels; found 'ab'", None, {"query_labels": "ab"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "message", "hint", "given"),
    CASES,
    ids=[f"{n} {c[1][:40]}" for n, c in enumerate(CASES)],
)
def test_an_error_says_what_is_wrong(
    kind: str, message: str, hint: str | None, given: dict[str, Any]
) -> None:
    arguments = {"query": X, "key": X, "value": X} | given
    if "query" in given and "value" not in given:
        arguments["value"] = None
    if np.ndim(given.get("query")) == 4 and "key" not in given:
        arguments["key"] = given["query"]
    with pytest.raises(attncli.AttnError) as caught:
        pose(**arguments)
    assert type(caught.value).__name__ == f"{kind}Error"
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert isinstance(caught.value, ValueError)


def test_an_error_names_the_file_of_its_argument() -> None:
    with pytest.raises(attncli.ShapeError) as caught:
        pose(X, X.T, sources={"query": "q.csv", "key": "dump.npz#k"})
    assert caught.value.message == (
        "query (q.csv) has shape (2, 3) and key (dump.npz#k) (3, 2): expected the same width; "
        "found 3 and 2"
    )


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(attncli.UsageError) as caught:
        pose(X, X, scale="x" * 1000)
    assert len(caught.value.message) < 120


# --- warnings: right, but probably not what was meant ---------------------------------------


def advice(**arguments: Any) -> list[str]:
    with pytest.warns(attncli.AttnWarning) as caught:
        pose(**arguments)
    # The line that is blamed is the caller's, not one of attncli's.
    assert {warning.filename for warning in caught} == {__file__}
    return [str(warning.message) for warning in caught]


def test_causal_without_an_alignment_names_the_two_readings() -> None:
    (message,) = advice(query=X, key=np.ones((5, 3)), causal=True)
    assert message.startswith("2 queries and 5 keys, and no alignment given: query i is aligned w")
    assert "it is aligned with key i + 3. Choose with causal_align (--causal-align)" in message


@pytest.mark.parametrize(
    "rule", [{"alibi_slopes": [1.0]}, {"rope": "half", "query": np.ones((2, 4))}, {"window": 1}]
)
def test_so_does_every_rule_of_positions(rule: dict[str, Any]) -> None:
    query = rule.get("query", X)
    (message,) = advice(**{"query": query, "key": np.ones((5, query.shape[1])), **rule})
    assert "it is aligned with key i + 3." in message


def test_the_other_reading_counts_real_keys() -> None:
    five = np.ones((5, 3))
    (message,) = advice(query=X, key=five, causal=True, kv_lengths=4)
    assert "it is aligned with key i + 2." in message
    batch = np.ones((3, 2, 3)), np.ones((3, 5, 3))
    (message,) = advice(query=batch[0], key=batch[1], causal=True, kv_lengths=[4, 1, 5])
    assert "it is aligned with key i − 1 to i + 3, batch by batch." in message
    # Where both readings are the same there is nothing to say.
    pose(X, five, causal=True, kv_lengths=2)
    pose(X, five, window=(-1, -1))


def test_an_inverted_mask_is_suspected() -> None:
    mask = np.zeros((1, 30))
    mask[0, 0] = 1
    (message,) = advice(query=np.ones((1, 2)), key=np.ones((30, 2)), mask=mask)
    assert message.startswith("mask lets only 3.3 % of the pairs attend: is it inverted?")
    assert "mask_means drop (--mask-means drop) reads the opposite" in message


def test_a_mask_whose_polarity_was_stated_is_told_the_other_one() -> None:
    given = {"query": np.ones((1, 2)), "key": np.ones((30, 2)), "mask_means": "drop"}
    (message,) = advice(**given, mask=np.ones((1, 30)))
    assert "Here true means is hidden, because mask_means is drop" in message
    assert message.endswith("mask_means keep (--mask-means keep) reads the opposite")


def test_an_inverted_padding_mask_is_suspected() -> None:
    pose(np.ones((1, 2)), np.ones((30, 2)), key_padding_mask=np.arange(30) < 2)  # a short text
    batch = np.ones((2, 30, 2))
    left = np.arange(30) >= np.array([[28], [29]])
    pose(batch, batch, key_padding_mask=left)  # short texts that are padded on the left
    (message,) = advice(query=batch, key=batch, key_padding_mask=left * [[1], [0]])
    assert message.startswith("key_padding_mask lets only 3.3 % of the keys be seen: is it")
    padding = np.arange(30) > 28
    (message,) = advice(query=np.ones((1, 2)), key=np.ones((30, 2)), key_padding_mask=padding)
    assert message.startswith("key_padding_mask lets only 3.3 % of the keys be seen: is it")


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_an_ambiguous_matrix_of_three_axes_is_said_how_it_is_read(name: str) -> None:
    (message,) = advice(query=SQUARE, key=SQUARE, **{name: np.ones((2, 3, 3))})
    message = message.replace(name, "mask")
    assert message.startswith("mask of shape (2, 3, 3) is read as one matrix per head, (H, L, S)")
    assert message.endswith("four axes: (1, H, L, S), or (B, 1, L, S) for one per batch entry")
    pose(SQUARE, SQUARE, **{name: np.ones((1, 2, 3, 3))})


def test_exchanged_head_and_sequence_axes_are_suspected() -> None:
    array = np.ones((1, 100, 8, 4))
    (message,) = advice(query=array, key=array)
    assert message.startswith("layout bhsd reads 100 heads of 8 keys each")
    assert "layout bshd (--layout bshd) reads them the other way" in message


def test_what_is_clear_gets_no_advice() -> None:
    """Warnings are errors in this suite: each of these must be silent."""
    pose(X, X, causal=True)
    pose(X, np.ones((5, 3)), causal=True, causal_align="top-left")
    pose(X, np.ones((5, 3)), causal=True, query_offset=3)
    pose(SQUARE, SQUARE, mask=np.ones((2, 1, 3, 3)))
    pose(X, X, mask=[[1, 0], [0, 1]])
    pose(X, with_value(X, (1, 0), np.nan), key_padding_mask=[1, 0])


def of_the_authors(heads: int) -> list[float]:
    """The slopes as the recursion in the authors' repository gives them."""
    if math.log2(heads).is_integer():
        first = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [first * first**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return of_the_authors(closest) + of_the_authors(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("asked", [True, np.True_])
def test_slopes_of_the_paper_for_any_number_of_heads(asked: object) -> None:
    for heads in range(1, 40):
        inputs = np.ones((2, heads, 2, 3))
        slopes = pose(inputs, inputs, alibi_slopes=asked).alibi_slopes
        np.testing.assert_allclose(slopes, of_the_authors(heads), rtol=1e-14)


def test_no_slopes() -> None:
    for given in (None, False, np.False_):
        assert pose(X, X, alibi_slopes=given).alibi_slopes is None


def test_what_scalars_and_windows_may_be() -> None:
    problem = pose(X, X, scale=np.float32(0.5), window=np.array([1]), heads=np.int64(3))
    assert problem.scale == 0.5
    assert problem.visible.window == (1, 1)
    assert pose(X, X, window=[1, None]).visible.window == (1, None)
    assert pose(X, X, window=(-1, 1e99)).visible.window == (None, None)
    assert pose(X, X).scale == pytest.approx(3**-0.5)
    assert pose(X, X, score="cosine").scale == 1


def test_bottom_right_beside_padded_queries_names_what_flash_attention_does() -> None:
    many = np.ones((2, 6, 3)), np.ones((2, 8, 3))
    rules = {"query_lengths": [3, 6], "kv_lengths": [7, 8], "causal": True}
    (message,) = advice(query=many[0], key=many[1], causal_align="bottom-right", **rules)
    assert message.endswith("kv_length - query_length: query_offset [4, 2] (--query-offset 4,2)")
    problem = pose(*many, query_offset=[4, 2], **rules)
    assert problem.visible.offsets == (4, 2)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
@pytest.mark.parametrize(("means", "read"), [("keep", "may attend"), ("drop", "is hidden")])
def test_a_mask_whose_opposite_leaves_no_query_without_keys(
    means: str, read: str, size: int
) -> None:
    # The mask of nn.Transformer's generate_square_subsequent_mask, true above the diagonal.
    upper = np.triu(np.ones((size, size), bool), 1)
    inverted = upper if means == "keep" else ~upper
    square = np.ones((size, 3))
    with pytest.warns(attncli.AttnWarning) as caught:
        attncli.attention(square, square, square, mask=inverted, mask_means=means)
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"1 of {size} queries sees no key: weights and context are 0 there")
    assert f"is it inverted? Here true means {read}" in message


def test_a_mask_that_may_be_meant_as_it_is_is_not_doubted() -> None:
    square = np.ones((6, 3))
    # Where both readings leave a query without keys, neither is the likelier one.
    both = np.eye(6, dtype=bool)
    both[0], both[1] = False, True
    both[2:, :3] = True
    with pytest.warns(attncli.AttnWarning) as caught:
        attncli.attention(square, square, square, mask=both)
    assert "inverted" not in str(caught[0].message)
    # A small mask that lets a query see itself may hide another from all keys.
    with pytest.warns(attncli.AttnWarning) as caught:
        attncli.attention(*np.ones((3, 3, 3)), mask=[[0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert "inverted" not in str(caught[0].message)


def test_a_bias_of_ones_and_zeros_may_be_meant_as_a_mask() -> None:
    square = np.ones((3, 2))
    (message,) = advice(query=square, key=square, bias=np.tril(np.ones((3, 3))))
    assert message.startswith("bias holds only 0 and 1, which are added to the scores")
    assert "is a mask (--mask)" in message
    (message,) = advice(query=square, key=np.ones((4, 2)), bias=np.uint8([1, 1, 0, 0]))
    assert "is a mask (--mask)" in message
    masked = np.triu(np.full((3, 3), -1e9), 1)
    for usual in (
        np.zeros((3, 3)),
        np.ones((3, 3)),
        masked,
        np.eye(3),
        [1, 1, 0],
        [[0, 2, 1]],
        [[1, 0, 0]] * 3,
    ):
        pose(square, square, bias=usual)


@pytest.mark.parametrize(("kept", "warned"), [(1, True), (2, False)])
def test_a_mask_that_keeps_a_tenth_is_doubted(kept: int, warned: bool) -> None:
    square, mask = np.ones((10, 3)), np.zeros((10, 10), bool)
    mask[:, :kept] = True
    if warned:
        (message,) = advice(query=square, key=square, mask=mask)
        assert message.startswith("mask lets only 10 % of the pairs attend: is it inverted?")
    else:
        pose(square, square, mask=mask)


def test_a_mask_of_a_sequence_that_comes_first_names_the_layout():
    inputs = np.ones((5, 2, 4))
    with pytest.raises(ShapeError, match=r"weights' \(5, 2, 2\).*found \(5, 5\)") as caught:
        pose(inputs, inputs, mask=np.eye(5, dtype=bool))
    assert caught.value.hint == (
        "if the sequence comes before the batch, (L, B, D), give layout sbd (--layout sbd)"
    )


@pytest.mark.parametrize(
    "problem",
    [
        # Every query is real, so that all of them stand where the last keys are.
        {
            "query": np.ones((2, 3, 1)),
            "key": np.ones((2, 5, 1)),
            "causal": True,
            "causal_align": "bottom-right",
            "query_lengths": [3, 3],
            "kv_lengths": [4, 5],
        },
        # Padding on both sides is none that kv_lengths could say.
        {
            "query": np.ones((1, 2, 1)),
            "key": np.ones((1, 4, 1)),
            "causal": True,
            "causal_align": "bottom-right",
            "key_padding_mask": [0, 1, 1, 0],
        },
        # One head and one batch entry leave one reading.
        {
            "query": np.ones((1, 1, 2, 1)),
            "key": np.ones((1, 1, 3, 1)),
            "mask": np.ones((1, 2, 3), bool),
        },
        # More heads than queries, but fewer than keys.
        {"query": np.ones((1, 65, 2, 1)), "key": np.ones((1, 65, 70, 1))},
    ],
)
def test_what_is_clear_is_not_doubted(problem: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pose(**problem)


@pytest.mark.parametrize(
    ("problem", "unsaid"),
    [
        (
            {
                "query": np.ones((2, 2, 1)),
                "key": np.ones((2, 3, 1)),
                "mask": np.ones((2, 2), bool),
            },
            "sbd",
        ),
        (
            {"query": np.ones((2, 4)), "key": np.ones((3, 2)), "value": np.ones((3, 5))},
            "kv_heads",
        ),
    ],
)
def test_a_hint_that_would_not_help_is_not_given(problem: dict[str, Any], unsaid: str) -> None:
    with pytest.raises(ShapeError) as caught:
        pose(**problem)
    assert unsaid not in (caught.value.hint or "")


def test_frequencies_are_limited_in_both_directions() -> None:
    for frequency in (1e7, -1e7):
        with pytest.raises(attncli.AttnError, match=r"rope_frequencies: .*1e\+06"):
            pose(np.ones((1, 2)), np.ones((1, 2)), rope="half", rope_frequencies=[frequency])


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("option", ["scale", "softcap", "bias", "sinks"])
def test_limits_as_errors_name_them_are_within(option: str, precision: Any) -> None:
    def asked(number: float) -> None:
        pose(X, X, precision=precision, **{option: [number] if option == "sinks" else number})

    for beyond in (1e-320, 1.7e308):
        if beyond < 1 and option in ("bias", "sinks"):
            continue  # which may be as small as they like
        try:
            asked(beyond)
        except attncli.AttnError as error:
            limits = re.findall(r"\d\.\d+e[+-]\d+", str(error).partition(";")[0])
            assert limits
            for limit in limits:
                asked(float(limit))


def test_numbers_for_padding_are_a_bias_of_four_axes() -> None:
    query, key = np.ones((2, 2, 4)), np.ones((2, 5, 4))
    padding = np.where(np.arange(5) < [[3], [5]], 0, -np.inf)
    with pytest.raises(attncli.AttnError) as caught:
        pose(query, key, key_padding_mask=padding)
    assert (caught.value.hint or "").endswith(
        "reshaped to (B, 1, S), or with heads to (B, 1, 1, S)"
    )
    weights = attncli.attention(query, key, bias=padding[:, None]).weights
    np.testing.assert_array_equal(weights[0, 0], [1 / 3, 1 / 3, 1 / 3, 0, 0])


def test_the_usual_base_may_be_said_without_a_rotary_embedding_and_beside_frequencies():
    x = np.ones((2, 4))
    assert pose(x, x, rope_base=10000.0).rope is None
    both = pose(x, x, rope="half", rope_base=10000, rope_frequencies=[0.5]).rope
    assert both is not None
    assert both.frequencies == (0.5,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"query": np.ones((3, 3)), "value": None, "segment_ids": [0, 1, 1]},
            "segment_ids: expected kv_segment_ids beside it, as there are 3 queries and 2 keys",
        ),
        (
            {name: np.ones((3, 2, 2)) for name in ("query", "key", "value")}
            | {"segment_ids": np.zeros((2, 2))},
            (
                "segment_ids: expected shape (3, 2) or (2,), one number for each of the tokens; "
                "found (2, 2)"
            ),
        ),
        (
            {"segment_ids": [0, 1, 3]},
            (
                "segment_ids: expected shape (1, 2) or (2,), one number for each of the tokens; "
                "found (3,)"
            ),
        ),
        (
            {"segment_ids": [-1, 1, 2]},
            (
                "segment_ids: expected shape (1, 2) or (2,), one number for each of the tokens; "
                "found (3,)"
            ),
        ),
        (
            {"segment_ids": [0, 0, 2]},
            (
                "segment_ids: expected shape (1, 2) or (2,), one number for each of the tokens; "
                "found (3,)"
            ),
        ),
    ],
)
def test_sequences_that_do_not_fit_and_are_no_ends(given: dict[str, Any], message: str) -> None:
    with pytest.raises(attncli.ShapeError) as caught:
        pose(**({"query": X[:2], "key": np.ones((2, 3)), "value": None} | given))
    assert (caught.value.message, caught.value.hint) == (message, None)


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1), (1, 1, 2)])
def test_one_row_of_numbers_of_sequences_may_have_axes_of_length_1(shape: tuple[int, ...]) -> None:
    x = np.ones((3, 2, 2))
    posed = pose(x, x, segment_ids=np.arange(2).reshape(shape))
    assert posed.visible.segment_ids is not None
    assert posed.visible.segment_ids.queries.tolist() == [[0, 1]]


@pytest.mark.parametrize("number", [1e300, np.inf, -(2**53) - 2])
def test_numbers_of_sequences_have_bounds(number: float) -> None:
    with pytest.raises(attncli.DataError, match="segment_ids: expected whole numbers from -9007"):
        pose(X, X, segment_ids=[0, number])


PACKED = "the packed sequences of the queries have other lengths than those of the keys"


@pytest.mark.parametrize("rule", [{"causal": True}, {"window": (2, 0)}, {"alibi_slopes": [0.5]}])
@pytest.mark.parametrize(
    ("queries", "keys", "doubted"),
    [
        ([0, 0, 0, 1], [0, 1, 1, 1], True),
        ([0, 0, 1], [0, 0, 0, 1], True),
        ([0, 0, 1], [0, 0, 1], False),
        # Only padding has other numbers.
        ([0, 0, 1, 1, 9], [0, 0, 1, 1, 8], False),
        ([5, 5, 7, 7], [0, 0, 1, 1], False),
        ([0, 0, 1], [1, 0, 0], True),
    ],
)
def test_positions_in_packed_sequences_of_other_lengths_are_doubted(
    rule: dict[str, Any], queries: list[int], keys: list[int], doubted: bool
) -> None:
    ids = {"segment_ids": queries, "kv_segment_ids": keys}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pose(np.ones((len(queries), 2)), np.ones((len(keys), 2)), **ids, **rule)
    words = [str(each.message) for each in caught]
    assert len(words) == doubted
    assert all(each.startswith(PACKED) for each in words)


def test_packed_sequences_of_other_lengths_without_a_rule_of_position_are_clear() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pose(np.ones((3, 2)), np.ones((4, 2)), segment_ids=[0, 0, 1], kv_segment_ids=[0, 1, 1, 1])


@pytest.mark.parametrize(
    ("others", "here"),
    [
        ("blhd", "bshd"),
        ("bhld", "bhsd"),
        ("bld", "bsd"),
        ("lbd", "sbd"),
        ("thd", "shd"),
        # JAX: N heads of width H; einops: N tokens; PyTorch: a batch of N.
        ("btnh", "bshd"),
        ("bnth", "bhsd"),
        ("bhnd", "bhsd"),
        ("nlhd", "bshd"),
        ("lne", "shd or sbd"),
    ],
)
def test_a_layout_in_the_letters_of_others_is_named_in_ours(others, here):
    with pytest.raises(UsageError) as caught:
        pose(HEADS, HEADS, layout=others)
    assert caught.value.hint == f"here it is {here}"
