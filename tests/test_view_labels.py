"""Widths of texts: one rule for all that Rich lays out, and another that terminals have."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.view.labels import clusters, shorten, shorten_all, text_width
from attncli.view.limits import Limits

HEART = "\u2764\ufe0f"
FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
SEQUENCES = ["नमस्ते", "தமிழ்", "ไทยน้ำ", HEART, FAMILY, "1\ufe0f\u20e3", "e\u0301", "中文", "\x1b[1m"]


@pytest.mark.parametrize("text", SEQUENCES)
@pytest.mark.parametrize("room", range(8))
def test_what_is_shortened_or_wrapped_fits(text: str, room: int) -> None:
    assert text_width(shorten(text * 3, room)) <= room
    assert "".join(clusters(text * 3)) == text * 3


def test_ascii_stands_for_the_same_signs_everywhere() -> None:
    text = "a · b … −1 × 2 ≤ 3 ≥ 4 → “c”"
    plain = Limits(unicode=False)
    assert plain.known(text) == 'a, b ... -1 x 2 <= 3 >= 4 -> "c"'
    assert plain.formula("q · k … −1") == "q * k ... -1"


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.text("abc中é ", max_size=4), min_size=1, max_size=6),
    st.text("xyz中 ", max_size=12),
    st.text("uvw", max_size=12),
    st.integers(8, 20),
)
def test_shortened_labels_fit_and_differ_where_the_labels_do(middles, before, behind, room):
    labels = [f"{before}{middle}.{behind}" for middle in middles]
    made = shorten_all(labels, room)
    assert all(text_width(short) <= room for short in made)
    assert all(short == label for short, label in zip(made, labels, strict=True)
               if text_width(label) <= room)  # fmt: skip
    if max(map(text_width, middles)) <= room // 4:
        assert len(set(made)) == len(set(labels))


@pytest.mark.parametrize(
    ("label", "shown", "titled"), [(" ", "␣", "“␣”"), ("  ", "␣␣", "“␣␣”"), ("", '""', '""')]
)
def test_a_label_without_letters_is_seen_wherever_labels_are(label, shown, titled, folder, attncli):
    """A space alone is a token of many models, and would be a row without a name."""
    (folder / "words.json").write_text(json.dumps(["The", label, "cat"]))
    (folder / "p.yaml").write_text("q: [[1], [2], [3]]\nk: [[1], [2], [3]]\n")
    asked = ("p.yaml", "--tokens", "words.json")
    assert f"\n{shown:>3}  " in attncli("compute", *asked, "--show", "weights").good().text
    assert f"\n1 {shown} " in attncli("compute", *asked, "--show", "top").good().text
    assert f"\n{shown:>3} " in attncli("heatmap", *asked).good().text
    assert f"\nquery 1, {shown} (one of 3)" in attncli("heatmap", *asked, "--rows", "1").good().text
    told = attncli("explain", *asked, "--query", "1").good().text
    assert f"How query 1 {titled} attends" in told
    assert f"({shown} → cat)" in told
    assert f"\n1 {shown} " in told
    assert attncli("compute", *asked, "-f", "json").good().json["key_labels"][1] == label
