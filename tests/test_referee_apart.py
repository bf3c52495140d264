"""What is said to distinguish explanations that make the same numbers does so."""

import re

import numpy as np
import pytest
from referee_numpy import ask, draw, named, plain

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
