"""When a name is given and when not, where it is true, and the options that reproduce it."""

from __future__ import annotations

import numpy as np
import pytest
from referee.case import CASES, chosen, names_of, posed, stored
from referee.corpus import pair
from referee.plain import Given, draw, softmax

import attncli

SHAPE = (2, 4, 24, 8)
# A search that finds nothing tries all: with one head it takes half as long.
ONE_HEAD = (6, 8)
_PARTS = ("scale", "causal", "window", "rope", "lengths", "softcap")
NAMED = [
    case.name
    for case in chosen()
    if case.names and case.part in _PARTS and all(len(parts) == 1 for parts in case.names)
]


def report_of(inputs, output, dtype="float32", **options):
    return attncli.check(stored(output, dtype), posed(inputs, options), time_limit=100)


# Nothing is named that is not there.


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        pytest.param({"causal": True}, marks=pytest.mark.long),
        pytest.param({"rope": "half", "softcap": 2.0}, marks=pytest.mark.long),
    ],
    ids=["", "causal", "rope"],
)
def test_noise_has_no_name(seed, rules):
    inputs = draw(seed, *[ONE_HEAD] * 3)
    right = attncli.attention(*inputs, **rules, precision="float64").context
    for noise in (draw(seed + 9, ONE_HEAD)[0], right * (1 + 0.05 * draw(seed + 8, ONE_HEAD)[0])):
        assert names_of(report_of(inputs, noise, **rules)) == []


def test_weights_that_are_noise_have_no_name():
    inputs = draw(0, *[ONE_HEAD] * 3)
    noise = softmax(draw(7, (6, 6))[0])
    assert names_of(report_of(inputs, {"weights": noise})) == []


@pytest.mark.parametrize("number", [0, 0.5, np.nan])
def test_one_number_everywhere_names_no_mistake(number):
    inputs = draw(0, *[ONE_HEAD] * 3)
    report = report_of(inputs, np.full(ONE_HEAD, number), causal=True)
    assert not report.passed
    assert names_of(report) in ([], ["rows_not_written"], ["rows_of_nan"])


@pytest.mark.parametrize(("rows", "name"), [(1, "another_scale"), (12, "scale_by_query")])
def test_as_many_numbers_as_were_fitted_tell_nothing(rows, name):
    """A query of two keys has one number to show, whatever its scale was."""
    inputs = draw(0, (rows, 8), (2, 8), (2, 8))
    g = Given(inputs)
    factors = np.random.default_rng(1).uniform(0.2, 3, (rows, 1))
    report = report_of(inputs, g.attend(scores=factors * g.scores()))
    assert names_of(report) == []
    assert not report.diagnosis.tells
    # With a third key they do.
    inputs = draw(0, (12, 8), (3, 8), (3, 8))
    g = Given(inputs)
    wrong = g.attend(scores=np.resize(factors, (12, 1)) * g.scores())
    assert name in names_of(report_of(inputs, wrong))


@pytest.mark.parametrize("wrong", [[[0.9, 0.1]], [[0.7071, 0.2929]]])
def test_two_keys_tell_no_mistake(wrong):
    """Of two keys, some scale gives any weights whose order is right."""
    report = attncli.check({"weights": wrong}, posed(([[1.0]], [[2.0], [1.0]]), {"scale": 1}))
    assert not report.passed
    assert names_of(report) == []


def test_nothing_explains_the_weights_of_the_tutorials():
    # softmax(2, 1, 1) is (0.5761, 0.2119, 0.2119); a comment that is often copied says this.
    inputs = [[1.0]], [[2.0], [1.0], [1.0]]
    report = attncli.check({"weights": [[0.7071, 0.1464, 0.1464]]}, posed(inputs, {"scale": 1}))
    assert not report.passed
    assert names_of(report) == []


def test_two_wrong_numbers_name_no_mistake():
    inputs = draw(0, *[(2, 6, 8)] * 3)
    wrong = Given(inputs).attend()
    wrong[1, 3, 5] += 1
    wrong[0, 4, 2] += 0.5
    report = report_of(inputs, wrong)
    assert names_of(report) == []
    assert report.diagnosis.findings


def test_what_leaves_half_of_the_error_is_no_explanation():
    inputs = draw(0, (40, 8), (40, 8), (40, 8), dtype="float64")
    g = Given(inputs)
    lost = g.attend(g.j < 39) - g.attend()
    assert names_of(report_of(inputs, g.attend() + lost, "float64")) == ["last_key_lost"]
    twice = names_of(report_of(inputs, g.attend() + 2 * lost, "float64"))
    assert "last_key_lost" not in twice


def test_right_outputs_have_no_diagnosis():
    inputs = draw(0, *[SHAPE] * 3)
    report = report_of(inputs, Given(inputs).attend())
    assert report.passed
    assert report.diagnosis is None


# Where it is true.


@pytest.mark.parametrize(
    ("place", "words"), [(np.s_[..., 8:, :], "queries 0 to 7"), (np.s_[1], "batch 0")]
)
def test_a_mistake_of_a_part_is_told_of_it(place, words):
    inputs = draw(0, *[(2, 1, 12, 8)] * 3)
    g = Given(inputs)
    wrong = g.attend(g.tril)
    wrong[place] = g.attend(g.tril, scale=1)[place]
    (cause,) = report_of(inputs, wrong, causal=True).diagnosis.explanations
    assert cause.name == "unscaled"
    assert cause.right_there
    assert not cause.options, "no option is true of a part"
    assert words in cause.fails_at


def test_what_an_explanation_does_not_explain_is_told():
    inputs = draw(0, *[(2, 130, 8)] * 3)
    g = Given(inputs)
    wrong = g.attend(scale=1)
    wrong[1, 100:103] = 1.3 * g.attend()[1, 100:103]
    (cause,) = report_of(inputs, wrong).diagnosis.explanations
    assert cause.name == "unscaled"
    assert "batch 1" in cause.fails_at
    assert not cause.right_there


def test_each_output_may_have_its_own_explanation():
    inputs = draw(0, *[ONE_HEAD] * 3)
    g = Given(inputs)
    report = report_of(inputs, {"context": g.attend(), "weights": g.weights(scale=1)})
    assert [verdict.passed for verdict in report.verdicts] == [True, False]
    (cause,) = report.diagnosis.explanations
    assert (cause.name, cause.outputs) == ("unscaled", ("weights",))


def test_an_output_that_nothing_explains_is_told():
    inputs = draw(0, *[ONE_HEAD] * 3)
    lse = np.exp(Given(inputs).scores()).sum(-1)
    report = report_of(inputs, {"lse": lse, "context": draw(1, ONE_HEAD)[0]})
    assert names_of(report) == ["lse_not_logarithm"]
    assert report.diagnosis.unexplained == ("context",)


def test_an_output_that_is_right_refutes_explanations_of_another():
    inputs = draw(0, *[(2, 6, 8)] * 3)
    g = Given(inputs)
    turned = g.weights().swapaxes(-1, -2)
    alone = report_of(inputs, {"weights": turned})
    assert set(names_of(alone)) == {"weights_transposed", "axes_bhxl"}
    assert alone.diagnosis.apart
    both = report_of(inputs, {"weights": turned, "context": g.attend()})
    assert names_of(both) == ["axes_bhxl"]
    wrong = report_of(inputs, {"weights": turned, "context": turned @ g.v})
    assert names_of(wrong) == ["weights_transposed"]


def test_several_that_agree_are_all_named_and_told_apart():
    # With H = D the scale of the embedding, 1/√(H·D), is 1/D.
    inputs = draw(0, *[(1, 4, 5, 4)] * 3)
    report = report_of(inputs, Given(inputs).attend(scale=1 / 4))
    assert set(names_of(report)) == {"one_over_width", "embedding_scale"}
    assert report.diagnosis.apart


@pytest.mark.parametrize(
    ("place", "finding"),
    [
        (np.s_[1], "batch entry 1"),
        (np.s_[:, 2], "head 2"),
        (np.s_[:, :, 5:9], "queries 5 to 8 of 24"),
        (np.s_[..., 3], "components"),
        (np.s_[0, 1, 7, 2], "batch 0, head 1, query 7"),
    ],
)
def test_where_the_error_is_is_found(place, finding):
    inputs = draw(0, *[SHAPE] * 3)
    wrong = Given(inputs).attend()
    wrong[place] += draw(1, wrong[place].shape)[0] + 3
    report = attncli.check(stored(wrong, "float32"), posed(inputs, {}), time_limit=0.05)
    assert any(finding in words for words in report.diagnosis.findings)


# The options that reproduce a mistake.

TAKEN = {
    "--scale": ("scale", float),
    "--rope-base": ("rope_base", float),
    "--softcap": ("softcap", float),
    "--rope": ("rope", str),
    "--causal-align": ("causal_align", str),
    "--query-offset": ("query_offset", int),
    "--window": ("window", lambda text: tuple(int(n) for n in text.split(","))),
    "--kv-lengths": ("kv_lengths", lambda text: [int(n) for n in text.split(",")]),
}


def options_of(words):
    """Return what an advice of options and their values means to `pose`; None if it is in words."""
    told, tokens = {}, " ".join(words).replace("=", " ").split()
    while tokens:
        name = tokens.pop(0)
        if name == "--causal":
            told["causal"] = True
        elif name in TAKEN and tokens:
            known, read = TAKEN[name]
            told[known] = read(tokens.pop(0))
        else:
            return None
    if "window" in told and len(told["window"]) == 1:
        told["window"] = told["window"][0]
    return told


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if at % 24 == 0 else pytest.mark.long)
        for at, name in enumerate(NAMED)
    ],
)
def test_the_options_make_attncli_do_the_same(name):
    case = CASES[name]
    problem, output, _ = case.make(0)
    report = attncli.check(output, problem, time_limit=100)
    causes = report.diagnosis.explanations
    told = [options_of(cause.options) for cause in causes if cause.options and not cause.fails_at]
    stated = case.stated(0)
    for options in filter(None, told):
        again = posed(stated[0], stated[1] | options)
        assert attncli.check(output, again, diagnose=False).passed, options


# The search.


def test_identical_calls_give_identical_names():
    case = pair("unscaled+causal_missing")
    first, again = (names_of(case.report()) for _ in range(2))
    assert first == again != []


def test_without_time_it_is_said_that_more_may_be_found():
    inputs = draw(0, *[SHAPE] * 3)
    report = attncli.check(stored(draw(1, SHAPE)[0], "float32"), posed(inputs, {}), time_limit=0)
    assert not report.diagnosis.complete


def test_no_diagnosis_where_none_is_asked_for():
    inputs = draw(0, *[SHAPE] * 3)
    wrong = stored(Given(inputs).attend(scale=1), "float32")
    report = attncli.check(wrong, posed(inputs, {}), diagnose=False)
    assert not report.passed
    assert report.diagnosis is None


def test_a_mistake_beside_the_mean_of_the_heads_is_named_in_slices_too():
    inputs = draw(0, *[(2, 4, 70, 8)] * 3)
    weights = Given(inputs).weights(scale=1).mean(1).astype("f4")
    report = attncli.check({"weights": weights}, posed(inputs, {}), average_heads=True)
    assert names_of(report) == ["unscaled"]
