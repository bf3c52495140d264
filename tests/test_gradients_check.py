"""`check` of gradients: right ones pass, and mistakes of a plain backward pass are named."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from backward_plain import ALIKE, CASES, FORMATS, Problem, backward
from process import long_but
from referee.case import stored

import attncli


def judged(p, made, **options):
    """Return the report on gradients that were made of a problem."""
    inputs = [stored(array, p.dtype) for array in (p.query, p.key, p.value)]
    files = {name: stored(array, p.dtype) for name, array in made.items()}
    dlse = p.dlse if p.has_dlse else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = attncli.pose(*inputs, **p.rules)
    return attncli.check(files, problem, dcontext=p.dcontext, dlse=dlse, **options)


def names_of(report):
    found = report.diagnosis
    return [] if found is None else [cause.name for cause in found.explanations]


def alike(name):
    """Return the names that explain a mistake equally well: its own, nearly always."""
    return next((names for names in ALIKE if name in names), {name})


def named(name, seed=0, dtype="float32"):
    """Return the report on a case with a mistake, and whether the mistake is its only name."""
    p = Problem(seed, dtype=dtype, **CASES[name])
    made = backward(p, name)
    outputs = {one: made.pop(one) for one in ("weights", "context") if one in made}
    report = judged(p, {**outputs, **made})
    return report, [one for one in names_of(report) if one in CASES or not outputs]


@pytest.mark.parametrize("name", long_but(CASES, *[*CASES][::5]))
def test_a_mistake_of_the_backward_pass_is_named(name):
    report, names = named(name)
    assert not report.passed
    assert {*names} == alike(name)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", CASES)
def test_mistakes_are_named_in_other_problems(name, seed):
    assert {*named(name, seed)[1]} == alike(name)


@pytest.mark.parametrize("dtype", ["float32", "float64", *FORMATS])
def test_right_gradients_pass(dtype):
    rules = {"causal": True, "softcap": 3.0, "sinks": [0.5, -1.0, 0.0, 2.0], "rope": "half"}
    for seed in range(3):
        p = Problem(seed, dtype=dtype, dlse=True, **rules)
        assert judged(p, backward(p)).passed


def test_a_mistake_of_the_forward_pass_has_its_usual_name():
    p, other = Problem(0, softcap=2.0, causal=True), Problem(0, causal=True)
    report = judged(p, backward(other))
    assert names_of(report) == ["softcap_missing"]
    assert "softcap" in report.diagnosis.explanations[0].options[0]


def test_what_is_right_narrows_the_search_and_is_said():
    p = Problem(0, causal=True)
    report = judged(p, backward(p, "delta_missing"))
    verdicts = {verdict.name: verdict.passed for verdict in report.verdicts}
    assert verdicts == {"dquery": False, "dkey": False, "dvalue": True}
    assert "dvalue is right" in str(report)


def test_a_name_must_explain_every_gradient():
    p = Problem(0)
    made = backward(p, "scale_missing_in_dquery")
    made["dvalue"] = backward(p, "heads_of_a_group_averaged")["dvalue"]
    report = judged(p, made)
    assert names_of(report) == []
    assert "no known mistake" in str(report)


def test_few_numbers_are_no_evidence():
    p = Problem(0, shape=(1, 1, 1, 1, 2, 1), scale=0.5)
    report = judged(p, {"dquery": backward(p, "scale_missing_in_dquery")["dquery"]})
    assert not report.passed
    assert names_of(report) == []


def test_gradients_are_judged_beside_outputs():
    p = Problem(0, causal=True)
    right = attncli.attention(p.query, p.key, p.value, causal=True)
    problem = attncli.pose(p.query, p.key, p.value, causal=True)
    made = {"context": right.context, "dq": backward(p)["dquery"]}
    report = attncli.check(made, problem, dcontext=p.dcontext)
    assert [verdict.name for verdict in report.verdicts] == ["context", "dquery"]
    assert report.passed


def test_a_tolerance_of_the_user_holds_for_outputs_and_gradients():
    p = Problem(0)
    inputs = p.query, p.key, p.value
    context = attncli.attention(*inputs).context
    named = {"dquery": backward(p)["dquery"] + 1e-3, "context": context + 1e-3}
    problem = attncli.pose(*inputs)
    assert attncli.check(named, problem, dcontext=p.dcontext, atol=2e-3)
    report = attncli.check(named, problem, dcontext=p.dcontext, atol=5e-4)
    assert [verdict.passed for verdict in report.verdicts] == [False, False]


def test_a_large_problem_is_judged_and_says_that_no_name_is_looked_for():
    p = Problem(0, shape=(1, 1, 1, 2100, 2100, 4))
    made = {"dvalue": attncli.gradients(p.query, p.key, p.value, p.dcontext).value}
    assert judged(p, made).passed
    report = judged(p, {"dvalue": 2 * made["dvalue"]})
    assert not report.passed
    assert "too large" in str(report)


# --- Python and the command line ------------------------------------------------------------------


def test_an_assertion_names_the_mistake():
    p = Problem(0, causal=True)
    inputs = p.query, p.key, p.value
    made = {f"grad_{name[1:]}": array for name, array in backward(p).items()}
    attncli.assert_attention(made, *inputs, dcontext=p.dcontext, causal=True)
    made["grad_query"] = made["grad_query"] / p.scale
    with pytest.raises(AssertionError, match="scale_missing_in_dquery"):
        attncli.assert_attention(made, *inputs, dcontext=p.dcontext, causal=True)


def test_without_a_gradient_of_the_context_there_is_nothing_to_begin_with():
    p = Problem(0)
    with pytest.raises(attncli.UsageError, match="context") as error:
        attncli.check({"dquery": p.query}, attncli.pose(p.query, p.key, p.value))
    assert "--grad" in error.value.hint


@pytest.fixture
def files(folder):
    """A layer with gradients in several spellings, and one without."""
    p = Problem(0, causal=True, bias=lambda r, p: r.normal(size=(p.heads, 1, p.keys)))
    made, whole = backward(p), {"query": p.query, "key": p.key, "value": p.value}
    whole |= {"causal": True, "bias": p.rules["bias"]}
    np.savez(folder / "bare.npz", **whole)
    held = {"grad_query": made["dquery"], "key.grad": made["dkey"], "dV": made["dvalue"]}
    np.savez(folder / "layer.npz", **whole, do=p.dcontext, **held)
    for name, array in {"do": p.dcontext, **made}.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "wrong.npy", made["dquery"] / p.scale)
    return made


def test_gradients_are_computed_and_saved(files, attncli):
    ran = attncli("compute", "layer.npz", "--save", "dquery=q.npy", "--show", "dkey,dbias")
    assert ran.code == 0
    assert "dbias · head 3" in ran.text
    np.testing.assert_allclose(np.load("q.npy"), files["dquery"], atol=1e-12)
    told = attncli("compute", "bare.npz", "--grad", "do.npy", "--show", "dvalue,dbias", "--json")
    numbers = json.loads(told.out)
    np.testing.assert_allclose(numbers["dvalue"], files["dvalue"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(numbers["dbias"], files["dbias"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compute", "bare.npz", "--show", "dquery"], "--grad"),
        (["compute", "bare.npz", "--grad", "do.npy"], "no gradient is asked for"),
        (["compute", "layer.npz", "--show", "dsinks"], "no sinks"),
        (["compute", "layer.npz", "--show", "dquery", "--head", "0"], "--head"),
        (["compute", "bare.npz", "--grad", "dvalue.npy", "--show", "dkey"], "shape of the context"),
        (["check", "bare.npz", "--expect", "dquery=dquery.npy"], "--grad"),
    ],
)
def test_errors_say_what_is_missing(files, attncli, words, said):
    ran = attncli(*words)
    assert ran.code == 2
    assert said in ran.err.decode()


def test_gradients_are_judged(files, attncli):
    words = ["check", "bare.npz", "--grad", "do.npy", "--expect", "dkey=dkey.npy"]
    assert attncli(*words, "--expect", "dbias=dbias.npy").code == 0
    ran = attncli(*words, "--expect", "dq=wrong.npy", "--json")
    assert ran.code == 1
    told = json.loads(ran.out)["diagnosis"]["explanations"]
    assert [cause["name"] for cause in told] == ["scale_missing_in_dquery"]
    ran = attncli(*words[:4], "--expect", "dquery=dvalue.npy")
    assert ran.code == 1
    assert "shape that of the query" in ran.text


def test_a_dump_with_gradients_is_judged(files, attncli):
    assert attncli("check", "layer.npz", "--json").code == 0
    ran = attncli("check", ".", "--json")
    told = {one["file"]: one for one in json.loads(ran.out)["files"]}
    verdicts = told["layer.npz"]["report"]["outputs"]
    assert [one["name"] for one in verdicts] == ["dquery", "dkey", "dvalue"]
    assert all(one["passed"] for one in verdicts)
