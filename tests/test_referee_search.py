"""Pairs of conventions, slices of large problems, the time limit, and where errors begin."""

import math
import re
import time
import tracemalloc
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, softmax
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

from attncli import attention, pose, solve
from attncli.referee import candidates, check, fit, search, topics
from attncli.referee.evaluation import evaluate
from attncli.referee.groups import best_of
from attncli.referee.registry import CONVENTIONS

L = 6
I, J = np.indices((L, L))
SLOPES = np.array([0.5, 0.25, 0.125, 1.0])[:, None, None]


def product(q, k, scale=8**-0.5):
    return q.astype("f8") @ k.swapaxes(-1, -2) * scale


def hide(scores, keep=I >= J):
    return np.where(keep, scores, -np.inf)


PAIRS = [
    ("unscaled+causal_missing", {"causal": True}, lambda q, k: softmax(product(q, k, 1))),
    (
        "one_over_width+softmax_base_2",
        {},
        lambda q, k: softmax(product(q, k, 1 / 8) * np.log(2)),
    ),
    (
        "query_key_exchanged+diagonal_hidden",
        {"causal": True},
        lambda q, k: np.nan_to_num(softmax(hide(product(k, q), J < I))),
    ),
    (
        "alibi_ignored+causal_one_late",
        {"causal": True, "alibi_slopes": SLOPES.ravel()},
        lambda q, k: softmax(hide(product(q, k), J <= I + 1)),
    ),
    (
        "softcap_missing+sinks_ignored",
        {"softcap": 0.9, "sinks": SLOPES.ravel(), "causal": True},
        lambda q, k: softmax(hide(product(q, k))),
    ),
    (
        "causal_reversed+softmax_over_heads",
        {"causal": True},
        lambda q, k: np.nan_to_num(softmax(hide(product(q, k), J >= I), axis=1)),
    ),
    (
        "diagonal_hidden+blind_rows_nan",
        {"causal": True},
        lambda q, k: softmax(hide(product(q, k), J < I)),
    ),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("names", "options", "weights"), long_but(PAIRS, *PAIRS[1:3], PAIRS[4]))
def test_two_deviations_at_once(seed, names, options, weights):
    q, k, v = draw(seed, *[(1, 4, L, 8)] * 3)
    assert named(ask((q, k, v), weights(q, k) @ v, **options)) == {names}


@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float32"))
def test_tiled_heads_without_scale(dtype):
    q, k, v = draw(0, (2, 6, L, 8), (2, 3, L, 8), (2, 3, L, 8))
    wrong = np.stack([plain(q[:, h], k[:, h % 3], v[:, h % 3], scale=1) for h in range(6)], axis=1)
    assert named(ask((q, k, v), wrong, dtype=dtype)) == {"heads_tiled+unscaled"}


LARGE = (1, 2, 190, 8)


def test_a_large_problem_is_diagnosed_on_slices():
    # Of one head, too, some queries are more than a slice.
    q, k, v = draw(0, *[(1, 2, 190, 8)] * 3)
    i, j = np.indices((190, 190))
    for names, wrong, options in [
        ({"unscaled"}, plain(q, k, v, scale=1), {}),
        ({"causal_unasked"}, plain(q, k, v, j <= i), {}),
        ({"diagonal_hidden"}, plain(q, k, v, j < i), {"causal": True}),
        ({"softmax_over_heads"}, softmax(product(q, k), axis=1) @ v, {}),
        ({"softmax_over_queries"}, softmax(product(q, k), axis=-2) @ v, {}),
        ({"axes_blhx"}, plain(q, k, v).transpose(0, 2, 1, 3), {}),
        ({"embedding_scale"}, plain(q, k, v, scale=1 / 4), {}),
    ]:
        report = ask((q, k, v), wrong, **options)
        assert named(report) == names
        assert report.diagnosis.scope == "slices"


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize(
    ("align", "offset", "name"),
    long_but(
        [("bottom-right", 0, "top_left"), ("top-left", 25, "bottom_right")],
        ("top-left", 25, "bottom_right"),
    ),
)
def test_positions_of_a_slice_are_those_of_the_whole(align, offset, name):
    # Only the last queries differ, so that the slice cannot begin at the first.
    q, k, v = draw(0, (1, 1, 75, 8), (1, 1, 100, 8), (1, 1, 100, 8))
    i, j = np.indices((75, 100))
    far = np.abs(i - j)
    wrong = softmax(product(q, k) - 0.04 * far) @ v
    report = ask((q, k, v), wrong, alibi_slopes=[0.04], query_offset=25)
    assert named(report) == {"alibi_without_offset"}
    right = plain(q, k, v, j <= i + (25 - offset))
    wrong = plain(q, k, v, j <= i + offset)
    right[:, :, 62:] = wrong[:, :, 62:]
    assert named(ask((q, k, v), wrong, causal=True, causal_align=align)) == {f"causal_{name}"}
    # Right before row 62, wrong after it: the first rows belie the name, slices do not see.
    report = ask((q, k, v), right, causal=True, causal_align=align)
    assert "only queries 62 to 74 of 75 are wrong" in report.diagnosis.findings


@pytest.mark.usefixtures("one_mistake", "small_slices")
def test_what_an_explanation_does_not_explain_is_told():
    q, k, v = draw(0, *[(2, 3, 30, 8)] * 3)
    wrong, right = plain(q, k, v, scale=1), plain(q, k, v)
    (explanation,) = ask((q, k, v), wrong).diagnosis.explanations
    assert (explanation.name, explanation.fails_at) == ("unscaled", "")
    for other, words, summary in (
        (right, "it is true of a part only: the file is right at", "the wrong part is explained"),
        (
            1.3 * right,
            "it does not explain everything: it fails at",
            "some of the numbers are explained",
        ),
    ):
        wrong[1, 2] = other[1, 2]
        report = ask((q, k, v), wrong)
        (explanation,) = report.diagnosis.explanations
        assert explanation.name == "unscaled"
        assert explanation.fails_at.startswith("batch 1, head 2, queries ")
        assert explanation.right_there == (other is right)
        assert bool(explanation.options) != explanation.right_there
        assert f"{words} {explanation.fails_at}, for example" in str(report)
        assert f"diagnosis: {summary}" in str(report)


@pytest.mark.usefixtures("small_slices")
def test_what_is_true_of_some_heads_alone_is_not_the_end_of_the_search():
    """Of tiled heads the first one reads the right keys: there the other mistake is alone."""
    q, k, v = draw(0, (1, 32, 4, 8), (1, 8, 50, 8), (1, 8, 50, 8))
    tiled = [np.tile(array, (1, 4, 1, 1)) for array in (k, v)]
    report = ask((q, k, v), plain(q, *tiled, scale=1))
    assert report.diagnosis.scope == "slices"
    assert named(report) == {"heads_tiled+unscaled"}


@pytest.mark.usefixtures("one_mistake", "small_slices")
def test_what_is_true_of_some_rows_alone_is_not_the_end_of_the_search():
    """A window that is rounded to blocks: only some of the rows see more than they should."""
    q, k, v = draw(0, *[(64, 16)] * 3)
    i, j = np.arange(64)[:, None], np.arange(64)
    # In the slice of the first 32 rows nothing else tells it from no window at all.
    block = (j <= i) & (j >= (i - 24) // 8 * 8)
    report = ask((q, k, v), plain(q, k, v, block), causal=True, window=(24, 0))
    assert named(report) == {"another_mask"}
    assert "query 25 sees keys 0 to 25, not keys 1 to 25" in str(report)


@pytest.mark.usefixtures("small_slices")
def test_slices_know_where_they_start():
    # The first 50 queries see nothing, so that every slice begins far from the first query.
    q, k, v = draw(0, *[(1, 1, 75, 8)] * 3)
    i, j = np.indices((75, 75))
    rows = i >= 50
    far = np.abs(i - j)
    for wrong, options, name in [
        (plain(q, k, v, rows & (j <= i)), {"causal": True, "query_offset": 10}, "causal_top_left"),
        (plain(q, k, v, rows & (j <= i)), {}, "causal_unasked"),
        (
            np.nan_to_num(softmax(np.where(rows, product(q, k) - 0.04 * far, -np.inf))) @ v,
            {"alibi_slopes": [0.04], "query_offset": 10},
            "alibi_without_offset",
        ),
    ]:
        report = ask((q, k, v), wrong, mask=rows, **options)
        assert named(report) == {name}
        assert report.diagnosis.findings[0] == "the first wrong row is batch 0, head 0, query 50"


@pytest.mark.usefixtures("small_slices")
def test_padding_on_queries_of_a_slice():
    q, k, v = draw(0, *[(1, 1, 75, 8)] * 3)
    real = np.arange(75) < 72
    wrong = plain(q, k, v, real[:, None] & real)
    report = ask((q, k, v), wrong, key_padding_mask=real)
    assert named(report) == {"key_padding_mask_on_queries_too"}


def test_only_the_best_of_several_that_fit_is_named():
    # 1/8 and 1/√56 are so near that both are within a generous tolerance.
    q, k, v = draw(0, *[(2, 7, L, 8)] * 3)
    made = {"one_over_width": plain(q, k, v, scale=1 / 8)}
    made["embedding_scale"] = plain(q, k, v, scale=56**-0.5)
    atol = 1.01 * np.abs(made["one_over_width"] - made["embedding_scale"]).max()
    for name, wrong in made.items():
        assert named(check(wrong, pose(q, k, v), atol=atol)) == {name}


def test_an_error_that_is_everywhere_is_not_placed():
    q, k, v = draw(0, *[(1, 1, L, 8)] * 3)
    report = ask((q, k, v), plain(q, k, v, scale=1))
    assert report.diagnosis.findings == ("the first wrong row is batch 0, head 0, query 0",)


@pytest.mark.usefixtures("small_slices")
def test_results_too_large_to_be_computed_again_are_still_reshaped():
    shape = (1, 4, 200, 4)
    q, k, v = draw(0, shape, shape, shape)
    context = plain(q, k, v).astype("f4")
    assert named(ask((q, k, v), context.transpose(0, 2, 1, 3))) == {"axes_blhx"}
    packed = [a.transpose(0, 2, 1, 3).reshape(1, 200, 16) for a in (q, k, v)]
    wrong = context.reshape(1, 200, 16)
    assert named(ask(packed, wrong, heads=4)) == {"heads_reshaped_out"}


def test_what_a_small_part_rules_out_is_not_computed_as_a_whole(monkeypatch):
    sizes = []

    def counted(recipe, **known):
        outputs = evaluate(recipe, **known)
        sizes.append(outputs["weights"].size)
        return outputs

    monkeypatch.setattr(fit, "evaluate", counted)
    shape = (64, 16)
    q, k, v = draw(0, shape, shape, shape)
    noise = plain(q, k, v) * (1 + 0.1 * draw(1, shape)[0])
    report = ask((q, k, v), noise)
    assert named(report) == set()
    whole = [size for size in sizes if size > 64 * 64 // 2]
    assert len(whole) < report.diagnosis.tried / 4
    sizes.clear()
    assert named(ask((q, k, v), plain(q, k, v, scale=1))) == {"unscaled"}
    # What is said of all was tried on all.
    assert 64 * 64 in sizes


def test_other_shapes_are_explained_where_the_shape_is_another_alone(monkeypatch):
    reshaping = tuple(convention for convention in CONVENTIONS if convention.reshapes)
    monkeypatch.setattr(candidates, "CONVENTIONS", reshaping)
    monkeypatch.setattr(search, "FITTED", ())
    monkeypatch.setattr(search, "SHOWN", ())
    q, k, v = draw(0)
    assert ask((q, k, v), plain(q, k, v, scale=1)).diagnosis.tried == 0
    assert named(ask((q, k, v), plain(q, k, v)[:, :, None])) == {"axes_of_length_1"}


class Clock:
    """The time that a search reads, which goes on only where it is told to."""

    def __init__(self, monkeypatch):
        self.now = time.monotonic()
        monkeypatch.setattr(search, "time", self)

    def monotonic(self):
        return self.now


def test_no_more_is_tried_once_the_time_is_over(monkeypatch):
    clock, attempt = Clock(monkeypatch), search.Search._try
    started = clock.now

    def slow(searching, group):
        clock.now += 1
        return attempt(searching, group)

    monkeypatch.setattr(search.Search, "_try", slow)
    q, k, v = draw(0, LARGE, LARGE, LARGE)
    report = check(draw(1, LARGE)[0], pose(q, k, v, causal=True), time_limit=30)
    # What the comparison took came off it.
    assert 20 <= clock.now - started <= 31
    assert not report.diagnosis.complete
    assert "time limit" in str(report)


def test_what_is_found_last_is_still_tried_elsewhere(monkeypatch):
    clock, explained = Clock(monkeypatch), search.Search._explained

    def in_the_last_moment(searching, **options):
        for found in explained(searching, **options):
            if found:
                clock.now = searching.deadline + 0.01
            yield found

    monkeypatch.setattr(search.Search, "_explained", in_the_last_moment)
    q, k, v = draw(0, LARGE, LARGE, LARGE)
    half = LARGE[2] // 2
    wrong = plain(q, k, v)
    wrong[..., :half, :] = plain(q, k, v, scale=1)[..., :half, :]
    report = check(wrong.astype("f4"), pose(q, k, v), time_limit=1000)
    (explanation,) = report.diagnosis.explanations
    assert explanation.name == "unscaled"
    assert explanation.fails_at


def test_no_diagnosis_where_none_is_asked_for():
    q, k, v = draw(0)
    report = check(plain(q, k, v, scale=1).astype("f4"), pose(q, k, v), diagnose=False)
    assert not report.passed
    assert report.diagnosis is None


@pytest.mark.parametrize(
    ("place", "finding"),
    [
        (np.s_[1], "only batch entry 1 is wrong"),
        (np.s_[:, 2], "only head 2 is wrong"),
        (np.s_[:, 1:3], "only heads 1, 2 are wrong"),
        (np.s_[:, :, 5:9], "only queries 5 to 8 of 20 are wrong"),
        (np.s_[..., 3], "only one of the components is wrong: 3"),
        (np.s_[0, 1, 7, 2], "the first wrong row is batch 0, head 1, query 7"),
    ],
)
def test_where_the_error_begins(place, finding):
    shape = (2, 4, 20, 8)
    q, k, v = draw(0, shape, shape, shape)
    wrong = plain(q, k, v)
    wrong[place] += draw(1, wrong[place].shape)[0] + 3
    report = check(wrong.astype("f4"), pose(q, k, v), time_limit=0.05)
    assert named(report) == set()
    assert finding in report.diagnosis.findings


def test_the_kind_of_a_row_with_one_wrong_number_is_not_told():
    """Which is that of the only query that sees every key, or of the only one that sees one."""
    q, k, v = draw(0, *[(1, 1, 5, 4)] * 3)
    wrong = plain(q, k, v, np.tri(5, dtype=bool))
    wrong[..., 4, 2] += 0.3
    found = check(wrong.astype("f4"), pose(q, k, v, causal=True), time_limit=0.05)
    assert "only one of the queries is wrong: 4" in found.diagnosis.findings
    assert not any("see" in words for words in found.diagnosis.findings)
    wrong[..., 4, 1] += 0.3
    found = check(wrong.astype("f4"), pose(q, k, v, causal=True), time_limit=0.05)
    assert any("queries that see every key" in words for words in found.diagnosis.findings)


def queries_found_wrong(rows, bad):
    """Return the findings of a problem of so many queries, some of which are wrong."""
    q, k, v = draw(0, *[(1, 1, rows, 4)] * 3)
    wrong = plain(q, k, v)
    wrong[..., bad, :] += draw(1, wrong[..., bad, :].shape)[0] + 3
    return check(wrong.astype("f4"), pose(q, k, v), time_limit=0.05).diagnosis.findings


@pytest.mark.parametrize(
    ("rows", "first", "block"),
    [(256, 192, 64), (256, 128, 128), (150, 128, 128), (128, 96, 32), (128, 112, 16)],
)
def test_which_block_the_error_fills(rows, first, block):
    text = f"only queries of the last block of {block} are wrong, from {first} on"
    assert text in queries_found_wrong(rows, np.s_[first:])


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (np.s_[200:], "only queries 200 to 255 of 256 are wrong"),
        (np.s_[192:250], "only queries 192 to 249 of 256 are wrong"),
        ([200, 202, 240], "only queries from 200 on are wrong, 3 of 56"),
    ],
)
def test_errors_at_the_end_that_fill_no_block(bad, text):
    assert text in queries_found_wrong(256, bad)


def test_wrong_rows_here_and_there_are_not_told_as_those_from_one_on():
    findings = queries_found_wrong(10, [1, 5, 9])
    assert not any("from 1 on" in finding for finding in findings)


def test_how_many_of_a_kind_of_rows_are_wrong():
    q, k, v = draw(0, *[(1, 1, 20, 8)] * 3)
    keep = np.ones((20, 20), bool)
    keep[10:, 15:] = False
    wrong = plain(q, k, v, keep)
    wrong[..., [0, 1, 3, 4, 6, 8], :] += 3
    findings = check(wrong, pose(q, k, v, mask=keep), time_limit=0.05).diagnosis.findings
    assert "only queries that see every key are wrong, 60 % of them" in findings


def test_of_one_wrong_row_among_hundreds_its_kind_is_not_told():
    q, k, v = draw(0, *[(1, 1, 256, 4)] * 3)
    wrong = plain(q, k, v, np.tri(256, dtype=bool))
    wrong[..., 100, :] += 3
    findings = check(wrong, pose(q, k, v, causal=True), time_limit=0.05).diagnosis.findings
    assert not any("hidden" in finding for finding in findings)
    assert "only one of the queries is wrong: 100" in findings


def test_of_one_wrong_row_a_number_that_is_right_by_chance_and_its_kind_are_not_told():
    q, k, v = draw(0, *[(1, 8, 16, 8)] * 3)
    wrong = plain(q, k, v, np.tri(16, dtype=bool))
    wrong[0, 3, 15, 1:] += 3
    findings = check(wrong, pose(q, k, v, causal=True), time_limit=0.05).diagnosis.findings
    assert not any("see every key" in finding for finding in findings)
    assert not any("components" in finding for finding in findings)
    wrong[0, 3, 15, 1:4] -= 3
    findings = check(wrong, pose(q, k, v, causal=True), time_limit=0.05).diagnosis.findings
    assert "only components 4 to 7 of 8 are wrong" in findings


def test_errors_of_one_kind_of_row():
    q, k, v = draw(0, *[(1, 2, 150, 8)] * 3)
    keep = np.ones((150, 150), bool)
    keep[40, 3:] = False
    keep[90] = False
    wrong = plain(q, k, v, keep)
    wrong[..., [40, 90], :] += draw(1, (2, 8))[0] + 3
    report = check(wrong.astype("f4"), pose(q, k, v, mask=keep), time_limit=0.05)
    text = "only queries from which some key is hidden are wrong, all of them"
    assert text in report.diagnosis.findings
    wrong = plain(q, k, v, keep)
    wrong[..., 90, :] = np.nan
    wrong[..., 90, 0] = 7
    report = check(wrong.astype("f4"), pose(q, k, v, mask=keep), time_limit=0.05)
    assert "only queries that see no key are wrong, all of them" in report.diagnosis.findings


def test_errors_of_the_last_block_of_keys():
    q, k, v = draw(0, *[(1, 2, 150, 8)] * 3)
    i, j = np.indices((150, 150))
    wrong = plain(q, k, v, j <= i)
    wrong[..., 128:, :] += draw(1, (22, 8))[0] + 3
    report = check(wrong.astype("f4"), pose(q, k, v, causal=True), time_limit=0.05)
    text = "only queries that see a key of the last block of 128 (from key 128 on) are wrong"
    assert any(finding.startswith(text) for finding in report.diagnosis.findings)


@pytest.mark.parametrize("rule", long_but(["mask", "causal"], "causal"))
def test_pairs_of_which_one_says_nothing_more_end_the_search(rule):
    q, k, v = draw(0, *[(6, 8)] * 3)
    i, j = np.indices((6, 6))
    keep = j <= i if rule == "causal" else (draw(3, (6, 6))[0] > -0.5) | (j == 0)
    # Kept keys became large, not hidden ones small.
    scores = np.where(keep, 1e9, q @ k.swapaxes(-1, -2) / np.sqrt(8))
    given = {"causal": True} if rule == "causal" else {"mask": keep}
    report = ask((q, k, v), {"scores": scores}, **given)
    assert not report.passed
    assert report.diagnosis.complete


def test_every_convention_has_a_test():
    """A convention that no test names is one that nobody has seen named."""
    folder = Path(__file__).parent
    text = "\n".join(path.read_text("utf-8") for path in folder.glob("test_referee_*.py"))
    seen = set(chain.from_iterable(m.split("+") for m in re.findall(r'"([a-z0-9_+]+)"', text)))
    names = {c.name for c in CONVENTIONS if c.topic is not topics.AXES}
    # Those of blocks, parts, heads and formats are asked for by tests that make their names.
    generated = {
        name
        for name in names
        if re.search(r"_\d+(_|$)|_(u?int|b?float16|tf32|float8_|mxfp|nvfp)", name)
    }
    assert names - generated - seen == set()


def test_names_are_unique_and_sentences_are_whole():
    names = [convention.name for convention in CONVENTIONS]
    assert len(set(names)) == len(names)
    for convention in CONVENTIONS:
        for text in (convention.meaning, convention.fix, convention.shows):
            assert text
            assert not text.endswith(".")


@pytest.mark.usefixtures("small_slices")
def test_what_is_too_large_to_be_tried_is_told():
    q, k, v = draw(0, *[(1, 1, 400, 2)] * 3)
    noise = plain(q, k, v) * (1 + 0.1 * draw(1, v.shape)[0])
    for options in ({}, {"mask": np.ones((400, 400), bool)}):
        report = check(noise.astype("f4"), pose(q, k, v, **options), time_limit=0.2)
        told = report.diagnosis.too_large
        assert {"softmax_over_queries", "query_key_exchanged"} < set(told)
        assert ("mask_transposed" in told) is ("mask" in options)
        assert not {"bias_transposed", "unscaled"} & set(told)
        words = f"{', '.join(told[:5])} and {len(told) - 5} more; a smaller one"
        assert f"not tried, as they need too much of the problem at once: {words}" in str(report)
    # What was found needs no such excuse.
    report = check(plain(q, k, v, scale=1).astype("f4"), pose(q, k, v))
    assert named(report) == {"unscaled"}
    assert "not tried" not in str(report)


def test_nothing_is_prepared_before_the_first_mistake_is_tried(monkeypatch):
    """Of a long cache, what some mistakes need takes longer than there may be time."""
    applied = []

    def noted(convention, needs):
        def apply(recipe):
            applied.append(convention.name)
            return convention.apply(recipe)

        return replace(convention, apply=apply, needs=frozenset(needs))

    by_name = {convention.name: convention for convention in CONVENTIONS}
    slow = noted(by_name["softmax_base_2"], {"batch", "heads", "rows"})
    monkeypatch.setattr(candidates, "CONVENTIONS", (slow, noted(by_name["unscaled"], ())))
    q, k, v = draw(0, *[(2, 4, 100, 8)] * 3)
    assert named(ask((q, k, v), plain(q, k, v, scale=1))) == {"unscaled"}
    assert applied[0] == "unscaled"


def test_what_leaves_half_of_the_error_is_no_explanation():
    """The file is twice as far off as a lost last key would make it; a tolerance that is given
    takes what that leaves.
    """
    rng = np.random.default_rng(0)
    query = rng.standard_normal((1, 8)) + 0.05 * rng.standard_normal((40, 8))
    key, value = rng.standard_normal((40, 8)), 0.3 * rng.standard_normal((40, 8))
    key[-1], value[-1] = 0.2 * query.mean(0), value[-1] + 5
    problem, right = pose(query, key, value), attention(query, key, value).context
    lost = attention(query, key, value, kv_lengths=39).context - right
    exact = check(right + lost, problem)
    assert exact.diagnosis.explanations[0].name == "last_key_lost"
    report = check(right + 2 * lost, problem, atol=1.001 * np.abs(lost).max())
    assert not report.passed
    assert "last_key_lost" not in [cause.name for cause in report.diagnosis.explanations]


def test_keys_in_the_place_of_one_query_are_not_tried(monkeypatch):
    """For 1,500 keys and one query there would be 2,250,000 scores, for each of many mistakes."""
    cells = []

    def recorded(recipe, *args, **options):
        cells.append(math.prod(recipe.problem.shape))
        return evaluate(recipe, *args, **options)

    monkeypatch.setattr("attncli.referee.fit.evaluate", recorded)
    q, k, v = draw(0, (2, 1, 8), (2, 1500, 8), (2, 1500, 8))
    assert named(ask((q, k, v), plain(q, k, v, scale=0.5))) == {"another_scale"}
    assert max(cells) < 2**21


def test_conventions_are_variants_of_such_as_there_are():
    folder = Path(search.__file__).parent / "fitted"
    fitted = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    names = {convention.name for convention in CONVENTIONS}
    others = {name for convention in CONVENTIONS for name in convention.variant_of} - names
    assert {name for name in others if f'"{name}"' not in fitted} == set()


def test_a_variant_gives_way_only_to_what_fits_about_as_well():
    def item(rms, *names, of=()):
        parts = (SimpleNamespace(name=n, variant_of=of, topic=topics.SCALE) for n in names)
        return SimpleNamespace(rms=rms), tuple(parts)

    variant = item(0.1, "narrow", of=("wide",))
    assert best_of([item(1.0, "wide"), variant], 0.0) == [variant]
    wide = item(0.1, "wide", "other")
    assert best_of([item(1.0, "wide"), variant, wide], 0.0) == [wide]
    assert best_of([wide, variant, item(1.0, "wide")], 0.0) == [wide]


def test_what_was_tried_is_not_kept():
    """Of thousands of tries, most with arrays of their own."""
    random = np.random.default_rng(0)
    q, k, v = random.normal(size=(3, 1, 2048, 64)).astype("f4")
    problem = pose(q, k, v, layout="hsd", causal=True)
    wrong = solve(problem).context + random.normal(scale=0.01, size=v.shape)
    tracemalloc.start()
    report = check(wrong.astype("f4"), problem, time_limit=0.6)
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.diagnosis.tried > 30
    assert largest < 300e6
