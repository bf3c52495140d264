"""The classic ways to hide keys wrongly are named, whichever rule hides them."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain, scaled, softmax

from attncli.referee import candidates, search

L = 6
I, J = np.indices((L, L))
TRIL = J <= I
PADS = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]], bool)
KEYS = PADS[:, None, None]
RULES = {
    "mask": ({"mask": TRIL}, TRIL),
    "causal": ({"causal": True}, TRIL),
    "window": ({"window": (1, 1)}, abs(I - J) <= 1),
    "kv_lengths": ({"kv_lengths": [4, 5]}, KEYS),
    "key_padding_mask": ({"key_padding_mask": PADS}, KEYS),
    "all_rules": ({"causal": True, "kv_lengths": [4, 5]}, TRIL & KEYS),
}
# Written out, because a list of names made of parts would hide one that nobody tests.
NAMES = {
    "mask": ["mask_inverted", "mask_added", "mask_multiplied"],
    "causal": ["causal_inverted", "causal_added", "causal_multiplied"],
    "window": ["window_inverted", "window_added", "window_multiplied"],
    "kv_lengths": ["kv_lengths_inverted", "kv_lengths_added", "kv_lengths_multiplied"],
    "key_padding_mask": [
        "key_padding_mask_inverted",
        "key_padding_mask_added",
        "key_padding_mask_multiplied",
    ],
    "all_rules": ["all_rules_inverted", "all_rules_added", "all_rules_multiplied"],
}
WAYS = {
    "inverted": lambda s, m: np.nan_to_num(softmax(np.where(m, -np.inf, s))),
    "added": lambda s, m: softmax(s + m),
    "multiplied": lambda s, m: softmax(np.where(m, s, 0)),
    "multiplied with 1e-9 for −1e9": lambda s, m: softmax(np.where(m, s, 1e-9)),
}


def ways():
    """Return every rule in every way; a tiny number for zero is the same to all rules."""
    cases = [(rule, way) for rule in RULES for way in WAYS]
    return long_but(cases, *(case for case in cases if case[0] == "mask" or "1e-9" not in case[1]))


@pytest.mark.parametrize("digits", [None, 4])
@pytest.mark.parametrize(("rule", "way"), ways())
def test_a_rule_that_hides_wrongly(rule, way, digits):
    q, k, v = draw(1)
    options, keep = RULES[rule]
    wrong = WAYS[way](scaled(q, k), keep) @ v
    name = f"{rule}_{way.split()[0]}"
    assert name in NAMES[rule]
    if digits is None:
        report = ask((q, k, v), wrong, **options)
    else:
        report = ask((q, k, v), wrong.round(digits), dtype="float64", **options)
    assert named(report) == {name}


@pytest.mark.parametrize(
    ("name", "fill"),
    [("causal_inverted+hidden_finite", -1e9), ("causal_inverted+blind_rows_nan", -np.inf)],
)
@pytest.mark.parametrize("dtype", long_but(["float32", "float64"], "float32"))
def test_an_inverted_triangle_leaves_the_last_query_nothing(name, fill, dtype):
    q, k, v = draw(1, *[(L, 8)] * 3)
    wrong = softmax(np.where(TRIL, fill, scaled(q, k))) @ v
    report = ask((q, k, v), wrong, dtype=dtype, causal=True)
    assert named(report) == {name}
    told = "the NaN rows are queries that see no key" in str(report)
    assert told is (fill == -np.inf)


@pytest.mark.parametrize("rule", long_but(RULES, "causal"))
def test_the_ones_of_the_hidden_keys_are_added(rule):
    q, k, v = draw(2, *[(2, 1, L, 8)] * 3)
    options, keep = RULES[rule]
    wrong = softmax(scaled(q, k) + ~keep) @ v
    assert named(ask((q, k, v), wrong, **options)) == {f"{rule}_inverted+{rule}_added"}


def test_a_lost_sign_in_a_file_that_shows_it():
    q, k, v = draw(1)
    wrong = softmax(np.where(TRIL, scaled(q, k), 1e-9)) @ v
    assert named(ask((q, k, v), wrong, dtype="float64", causal=True)) == {"hidden_tiny"}


def test_one_rule_of_two_is_inverted():
    q, k, v = draw(1)
    report = ask((q, k, v), plain(q, k, v, ~TRIL & KEYS), causal=True, kv_lengths=[4, 5])
    assert named(report) == {"causal_inverted"}


def test_nan_rows_of_the_right_mask_are_told_beside_another_mistake(monkeypatch):
    # It is said of the file, whatever may explain the rest.
    monkeypatch.setattr(candidates, "CONVENTIONS", ())
    for kind in ("FITTED", "SHOWN"):
        monkeypatch.setattr(search, kind, ())
    q, k, v = draw(1)
    keep = TRIL & (I != 2)
    wrong = softmax(np.where(keep, scaled(q, k), -np.inf)) @ v
    wrong[0, 0, 4] += draw(3, (8,))[0]
    report = ask((q, k, v), wrong, mask=keep)
    assert "the NaN rows are queries that see no key" in report.diagnosis.findings
    wrong[0, 0, 4] = np.nan
    report = ask((q, k, v), wrong, mask=keep)
    assert "the NaN rows are queries that see no key" not in report.diagnosis.findings


def test_a_large_causal_problem_is_diagnosed_on_slices():
    q, k, v = draw(1, *[(1, 1, 190, 8)] * 3)
    i, j = np.indices((190, 190))
    wrong = softmax(np.where(j <= i, -np.inf, scaled(q, k))) @ v
    assert named(ask((q, k, v), np.nan_to_num(wrong), causal=True)) == {"causal_inverted"}
    wrong = softmax(scaled(q, k) * (j <= i)) @ v
    assert named(ask((q, k, v), wrong, causal=True)) == {"causal_multiplied"}


@pytest.mark.parametrize("rule", long_but(["mask", "causal", "kv_lengths"], "causal", "kv_lengths"))
@pytest.mark.parametrize("number", long_but([-3, -10], -10))
def test_hidden_scores_that_are_not_low_enough(number, rule):
    q, k, v = draw(0, *[(2, 2, L, 8)] * 3)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8)
    options, seen = RULES[rule]
    lowered = ask((q, k, v), softmax(np.where(seen, scores, scores + number)) @ v, **options)
    assert named(lowered) == {"hidden_scores_lowered"}
    assert f"adds about {number} to" in str(lowered)
    put = ask((q, k, v), softmax(np.where(seen, scores, number)) @ v, **options)
    assert named(put) == {"hidden_scores_set"}
    assert f"set to about {number}, not" in str(put)


def test_masks_that_are_added_one_by_one_leave_scores_in_rows_without_keys():
    """−10,000 for each: what both hide lies lower than what only one does."""
    q, k, v = draw(0, *[(2, 2, L, 8)] * 3)
    pads = np.arange(L) >= np.array([0, 3])[:, None]
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8)
    wrong = softmax(scores + np.where(TRIL, 0, -1e4) + np.where(pads[:, None, None], 0, -1e4)) @ v
    report = ask((q, k, v), wrong, causal=True, key_padding_mask=pads)
    assert named(report) == {"hidden_scores_lowered"}


@pytest.mark.parametrize(
    ("rule", "block", "name"),
    [
        ("kv_lengths", None, "kv_lengths_as_zeros"),
        ("kv_lengths", 8, "zeros_in_last_block_of_8"),
        ("key_padding_mask", None, "key_padding_mask_as_zeros"),
    ],
)
def test_keys_beyond_the_length_that_are_loaded_as_zeros(rule, block, name):
    """As by a kernel that masks its loads, and not its scores."""
    lengths = [3, 13]
    q, k, v = draw(0, (2, 3, 5, 8), (2, 3, 20, 8), (2, 3, 20, 8))
    real = np.arange(20) < np.array(lengths)[:, None, None, None]
    zeros = [np.where(real.swapaxes(2, 3), array, 0) for array in (k, v)]
    ends = [20, 20] if block is None else [8, 16]
    seen = np.arange(20) < np.array(ends)[:, None, None, None]
    given = {"kv_lengths": lengths} if rule == "kv_lengths" else {rule: real[:, 0, 0]}
    found = named(ask((q, k, v), plain(q, *zeros, seen), **given))
    assert found == {name}
