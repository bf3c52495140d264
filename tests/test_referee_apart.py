"""What is said to distinguish explanations that make the same numbers does so."""

import re

import numpy as np
import pytest
from referee_numpy import as_bfloat16 as rounded
from referee_numpy import ask, draw, named, plain

from attncli import pose
from attncli.numerics.dtypes import as_bfloat16
from attncli.referee import check

I, J = np.indices((12, 12))


def window(left, right, causal=True):
    return (I - left <= J) & (I + right >= J) & ((J <= I) | (not causal))


@pytest.mark.parametrize(("left", "right"), [(2, 0), (2, 2)])
def test_a_window_that_is_too_short_or_halved_needs_another_size(left, right):
    """Of 2 keys to the left a half is 1, and so is one less: it takes another window to tell."""
    q, k, v = draw(0, *[(1, 2, 12, 8)] * 3)
    wrong = plain(q, k, v, window(left - 1, right))
    report = ask((q, k, v), wrong, causal=True, window=(left, right))
    assert named(report) == {"window_left_short", "window_halved"}
    apart = report.diagnosis.apart
    other = re.fullmatch(
        r"the same inputs with another window, --window (\d+),(\d+), would distinguish them", apart
    )
    left, right = map(int, other.groups())
    short, half = window(left - 1, right), window(left // 2, right // 2)
    assert not np.allclose(plain(q, k, v, short), plain(q, k, v, half))


def test_what_the_causal_rule_hides_shows_without_it():
    """Ignored, or bounded on the right only: no size of it shows that beside the causal rule."""
    q, k, v = draw(0, *[(1, 2, 12, 8)] * 3)
    report = ask((q, k, v), plain(q, k, v, J <= I), causal=True, window=(4, 0))
    assert named(report) == {"window_ignored", "window_right_only"}
    assert report.diagnosis.apart == "the same inputs without --causal would distinguish them"
    ignored, right_only = window(20, 20, causal=False), window(20, 0, causal=False)
    assert not np.allclose(plain(q, k, v, ignored), plain(q, k, v, right_only))


def test_a_mistake_that_all_share_is_not_said_to_distinguish_them():
    """With H = D the scale of the embedding, 1/√(H·D), is 1/D."""
    q, k, v = draw(0, *[(1, 4, 8, 4)] * 3)
    report = ask((q, k, v), plain(q, k, v, scale=1 / 4), causal=True)
    assert named(report) == {"one_over_width+causal_missing", "embedding_scale+causal_missing"}
    assert report.diagnosis.apart == (
        "they give the same numbers here, but may differ on other inputs: one_over_width shows "
        "with almost any input; embedding_scale shows with more than one head"
    )


def test_higher_scores_tell_a_missing_cap_from_a_clipped_one():
    q, k, v = draw(0, *[(1, 2, 12, 8)] * 3)
    report = ask((q, k, v), plain(q, k, v), softcap=30)
    assert named(report) == {"softcap_missing", "softcap_clipped"}
    found = re.fullmatch(
        r"the same inputs with all queries multiplied by (\d+) would distinguish them",
        report.diagnosis.apart,
    )
    scores = int(found[1]) * q @ k.swapaxes(-1, -2) / np.sqrt(8)
    assert (np.abs(scores) > 30).any()


def test_inputs_of_16_bits_are_changed_too():
    q, k, v = draw(0, *[(1, 2, 12, 8)] * 3)
    stored = [as_bfloat16((rounded(array).view("u4") >> 16).astype("u2")) for array in (q, k, v)]
    wrong = plain(*map(rounded, (q, k, v))).astype("f4")
    report = check(wrong, pose(*stored, softcap=30))
    assert named(report) == {"softcap_missing", "softcap_clipped"}
    assert "with all queries multiplied by" in report.diagnosis.apart


def test_other_sinks_tell_forgotten_ones_from_those_of_the_other_sign():
    """Both are next to nothing in the denominator, where they stand against many keys."""
    q, k, v = draw(0, *[(1, 2, 160, 8)] * 3)
    report = ask((q, k, v), plain(q, k, v).astype("f2"), "float16", sinks=[4.0, 5.0])
    assert named(report) == {"sinks_ignored", "sinks_negated"}
    assert report.diagnosis.apart == (
        "the same inputs with sinks of the other sign would distinguish them"
    )


def test_a_smaller_window_tells_where_a_larger_one_hides_nothing():
    q, k, v = (array[:, :, :9] for array in draw(0, *[(1, 2, 12, 8)] * 3))
    report = ask((q, k, v), plain(q, k, v), window=(3, 8))
    assert named(report) == {"window_right_only", "window_ignored"}
    assert report.diagnosis.apart == (
        "the same inputs with another window, --window 3,4, would distinguish them"
    )
    i, j = np.indices((9, 9))
    assert not np.allclose(plain(q, k, v, j <= i + 4), plain(q, k, v))
