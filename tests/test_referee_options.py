"""The option that reproduces a mistake fits what the problem says already."""

import numpy as np
import pytest
from referee_numpy import ask, draw, plain, softmax

from attncli import pose
from attncli.referee.options import together

L = 6
I, J = np.indices((L, L))
MASK = np.random.default_rng(5).random((L, L)) < 0.6
MASK |= I == J
PADS = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]], bool)
KEYS = PADS[:, None, None]
SLOPES = [0.5, 0.25, 0.125, 1.0]


def shown(inputs, wrong, **options):
    """Return the options of the one explanation."""
    (explanation,) = ask(inputs, wrong, **options).diagnosis.explanations
    return explanation.options


@pytest.mark.parametrize(("given", "advised"), [("keep", "drop"), ("drop", "keep")])
@pytest.mark.parametrize(
    ("name", "keep", "masks"),
    [
        ("mask_inverted", ~MASK, {"mask": MASK}),
        ("key_padding_mask_inverted", ~KEYS, {"key_padding_mask": PADS}),
        ("masks_inverted", ~MASK & ~KEYS, {"mask": MASK, "key_padding_mask": PADS}),
    ],
)
def test_the_opposite_of_the_polarity_that_was_given(given, advised, name, keep, masks):
    q, k, v = draw(0)
    written = {name: ~mask if given == "drop" else mask for name, mask in masks.items()}
    wrong = plain(q, k, v, keep)
    (explanation,) = ask((q, k, v), wrong, mask_means=given, **written).diagnosis.explanations
    assert (explanation.name, explanation.options) == (name, (f"--mask-means {advised}",))
    assert ask((q, k, v), wrong, mask_means=advised, **written).passed


@pytest.mark.parametrize(
    ("inverted", "keep"), [("mask", ~MASK & KEYS), ("key-padding-mask", MASK & ~KEYS)]
)
def test_no_polarity_inverts_one_mask_of_two(inverted, keep):
    q, k, v = draw(0)
    given = {"mask": MASK, "key_padding_mask": PADS}
    (option,) = shown((q, k, v), plain(q, k, v, keep), **given)
    assert option == f"give --{inverted} inverted (--mask-means is of both masks)"


def test_a_polarity_goes_with_its_only_mask():
    q, k, v = draw(0)
    options = {"mask": ~MASK, "mask_means": "drop"}
    assert shown((q, k, v), plain(q, k, v), **options) == ("leave --mask and --mask-means out",)
    options["key_padding_mask"] = ~PADS
    assert shown((q, k, v), plain(q, k, v, KEYS), **options) == ("leave --mask out",)


SHAPES = (2, 4, 4, 8), (2, 4, 7, 8), (2, 4, 7, 8)
SI, SJ = np.indices((4, 7))


@pytest.mark.parametrize(
    ("given", "keep", "option", "meant"),
    [
        ({"causal": True}, True, "leave --causal and --causal-align, where it is given, out", {}),
        (
            {"causal": True, "causal_align": "bottom-right"},
            True,
            "leave --causal and --causal-align or --query-offset out",
            {},
        ),
        (
            {"causal": True, "query_offset": 2},
            True,
            "leave --causal and --query-offset out",
            {},
        ),
        ({}, SJ <= SI, "--causal --causal-align top-left", {"causal": True}),
        (
            {},
            SJ <= SI + 3,
            "--causal --causal-align bottom-right",
            {"causal": True, "causal_align": "bottom-right"},
        ),
        (
            {"causal": True, "causal_align": "bottom-right"},
            SJ <= SI,
            "--causal-align top-left (without --query-offset)",
            {"causal": True, "causal_align": "top-left"},
        ),
        (
            {"causal": True, "query_offset": 2},
            SJ <= SI,
            "--query-offset 0",
            {"causal": True, "query_offset": 0},
        ),
        (
            {"causal": True, "query_offset": 2},
            SJ <= SI + 3,
            "--causal-align bottom-right (without --query-offset)",
            {"causal": True, "causal_align": "bottom-right"},
        ),
        (
            {"window": 2, "causal_align": "bottom-right"},
            (abs(SI + 3 - SJ) <= 2) & (SJ <= SI + 3),
            "--causal",
            {"window": 2, "causal_align": "bottom-right", "causal": True},
        ),
        ({"window": (3, 2)}, abs(SI - SJ) <= 2, "--window 2,2", {"window": 2}),
        ({"window": (2, 3)}, SJ <= SI + 3, "--window -1,3", {"window": (-1, 3)}),
        ({"window": (2, 3)}, True, "leave --window and --causal-align, where it is given, out", {}),
    ],
)  # fmt: skip
def test_rules_of_position(given, keep, option, meant):
    q, k, v = draw(1, *SHAPES)
    wrong = plain(q, k, v, keep)
    found = [e.options for e in ask((q, k, v), wrong, **given).diagnosis.explanations]
    assert (option,) in found
    assert ask((q, k, v), wrong, **meant).passed


def test_no_alignment_is_advised_that_would_move_something_else_too():
    q, k, v = draw(1, *SHAPES)
    bias = -np.array(SLOPES)[:, None, None] * abs(SI - SJ)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8) + bias
    wrong = softmax(np.where(SJ <= SI + 3, scores, -np.inf)) @ v
    assert shown((q, k, v), wrong, causal=True, alibi_slopes=SLOPES) == ()


def test_an_alignment_that_moves_all_is_advised_where_all_is_moved():
    q, k, v = draw(1, *SHAPES)
    bias = -np.array(SLOPES)[:, None, None] * abs(SI + 3 - SJ)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8) + bias
    moved = softmax(np.where(SJ <= SI + 3, scores, -np.inf)) @ v
    given = {"causal": True, "alibi_slopes": SLOPES}
    assert shown((q, k, v), moved, **given) == ("--causal-align bottom-right",)
    assert ask((q, k, v), moved, causal_align="bottom-right", **given).passed


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (True, "leave --alibi out"),
        (SLOPES, "leave --alibi-slopes out"),
    ],
)
def test_alibi_under_the_name_that_was_given(given, option):
    q, k, v = draw(0)
    assert shown((q, k, v), plain(q, k, v), alibi_slopes=given) == (option,)


@pytest.mark.parametrize(
    ("given", "option"),
    [({}, "leave --rope out"), ({"rope_base": 500.0}, "leave --rope and --rope-base out")],
)
def test_the_base_goes_with_the_rope(given, option):
    q, k, v = draw(0)
    assert shown((q, k, v), plain(q, k, v), rope="half", **given) == (option,)


@pytest.mark.parametrize("given", [{"kv_lengths": [4, 5]}, {"key_padding_mask": PADS}])
def test_the_lengths_of_queries_are_those_of_keys(given):
    q, k, v = draw(0)
    wrong = plain(q, k, v, PADS[:, None, :, None] & KEYS)
    assert shown((q, k, v), wrong, **given) == ("--query-lengths 4,5",)
    assert ask((q, k, v), wrong, query_lengths=[4, 5], **given).passed


@pytest.mark.parametrize(
    ("given", "scale", "option"),
    [
        (0.7, 8**-0.5, "leave --scale out"),
        (1, 8**-0.5, "leave --plain or --scale out"),
        (1, 1 / 8, "--scale 0.125 (without --plain)"),
        (0.7, 1, "--scale 1"),
    ],
)
def test_scales_where_one_was_given(given, scale, option):
    q, k, v = draw(0)
    found = ask((q, k, v), plain(q, k, v, scale=scale), scale=given).diagnosis.explanations
    assert (option,) in [explanation.options for explanation in found]


def test_two_options_that_contradict_each_other_are_none():
    problem = pose([[1.0]], [[1.0]], [[1.0]])
    assert together(["--scale 1", "--scale 2"], problem) == ()
    assert together(["--scale 1", "", "--scale 1"], problem) == ("--scale 1",)
    two = ("leave --mask out", "--scale 1")
    assert together(two, problem) == two


def test_what_places_the_queries_goes_with_the_last_rules_that_ask_for_it():
    q, k, v = draw(1, *SHAPES)
    given = {"causal": True, "rope": "half", "causal_align": "bottom-right"}
    assert shown((q, k, v), plain(q, k, v), **given) == (
        "leave --rope out",
        "leave --causal out",
        "leave --causal-align or --query-offset out",
    )


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (True, "to reproduce both mistakes with attncli: --scale 1; leave --causal out\n"),
        (J <= I + 1, "to reproduce one of the two mistakes with attncli: --scale 1\n"),
    ],
)
def test_how_much_the_options_reproduce_is_said(keep, words):
    q, k, v = draw(0)
    assert words in str(ask((q, k, v), plain(q, k, v, keep, scale=1), causal=True))


@pytest.mark.parametrize(
    ("keys", "kept", "name"),
    [
        (7, 6, "last_key_lost"),
        (30, 24, "last_block_of_8_lost"),
        (11, 6, "splits_of_2_first_kept"),
        (19, 14, "splits_of_3_last_lost"),
    ],
)
def test_keys_that_are_lost_at_the_end_are_reproduced_as_padding(keys, kept, name):
    q, k, v = draw(0, (2, 3, 5, 8), (2, 3, keys, 8), (2, 3, keys, 8))
    wrong = plain(q, k, v, np.arange(keys) < kept)
    (explanation,) = ask((q, k, v), wrong).diagnosis.explanations
    assert (explanation.name, explanation.options) == (name, (f"--kv-lengths {kept}",))
    assert ask((q, k, v), wrong, kv_lengths=kept).passed


def test_lengths_reproduce_nothing_where_they_would_move_the_queries():
    q, k, v = draw(0, *SHAPES)
    corner = {"causal": True, "causal_align": "bottom-right"}
    assert shown((q, k, v), plain(q, k, v, (SI + 3 >= SJ) & (SJ < 6)), **corner) == ()


def test_lengths_that_are_stated_stay_where_they_are_shorter():
    q, k, v = draw(0, *SHAPES)
    wrong = plain(q, k, v, np.arange(7) < np.array([4, 6])[:, None, None, None])
    assert shown((q, k, v), wrong, kv_lengths=[4, 7]) == ("--kv-lengths 4,6",)
    assert ask((q, k, v), wrong, kv_lengths=[4, 6]).passed
