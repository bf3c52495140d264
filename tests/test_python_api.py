"""What Python users give and see: tensors, labels, texts, names of other libraries."""

from __future__ import annotations

import inspect
import pydoc
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import attention_oracle
from process import ROOT

import attncli
from attncli import AttnWarning, DataError, UsageError

X = np.array([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0]])  # exact in bfloat16
SENTENCE = str(ROOT / "samples/sentence.yaml")

# --- tensors --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch")


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_are_arrays(torch, kind: str) -> None:
    x = torch.tensor(X, dtype=getattr(torch, kind))
    answer = attncli.attention(x, x[:, :], x, sinks=x[0, :1])
    expected = attention_oracle(X, X, X, sinks=[1.0])
    np.testing.assert_allclose(answer.context, expected["context"], rtol=1e-5)
    assert answer.context.dtype == (np.float64 if kind == "float64" else np.float32)


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_a_tensor_with_a_gradient_is_taken(torch, kind: str) -> None:
    x = torch.tensor(X, dtype=getattr(torch, kind), requires_grad=True)
    expected = attention_oracle(X, X, X)["context"]
    for key in (x, 1 * x):  # a leaf of the graph, and one inside it
        answer = attncli.attention(X, key, X)
        np.testing.assert_allclose(answer.context, expected, rtol=1e-5)
        attncli.assert_attention(x.new_tensor(expected), X, key, X)
    assert x.requires_grad


def test_a_tensor_without_numbers_is_refused(torch) -> None:
    with pytest.raises(DataError, match=r"value: .* found a tensor that NumPy does not read"):
        attncli.attention(X, X, torch.ones(3, 2, device="meta"))
    with pytest.raises(DataError, match="Sparse"):
        attncli.attention(X, X, torch.eye(3).to_sparse())


def test_an_answer_can_be_checked_as_it_is() -> None:
    problem = attncli.pose(X, X, X)
    answer = attncli.solve(problem, outputs=("weights", "lse"))
    report = attncli.check(answer, problem)
    assert report.passed
    assert {verdict.name for verdict in report.verdicts} == {"weights", "lse"}
    scaled = attncli.solve(attncli.pose(X, X, X, scale=1), outputs=("weights",))
    assert not attncli.check(scaled, problem, diagnose=False).passed


# --- texts ----------------------------------------------------------------------------------


def test_a_query_is_explained_by_its_label_and_printed_as_the_program_does(attncli_run) -> None:
    way = attncli.explain(attncli.load(SENTENCE), query="cat")
    assert way.query == 1
    assert isinstance(way, attncli.Explanation)
    told = attncli_run("explain", SENTENCE, "--query", "cat").good().text
    assert str(way).splitlines() == [line.rstrip() for line in told.splitlines()]
    with pytest.raises(UsageError, match="found 'dog'"):
        attncli.explain(attncli.load(SENTENCE), query="dog")


@pytest.fixture
def attncli_run(request: pytest.FixtureRequest):
    return request.getfixturevalue("attncli")


def test_a_report_and_an_explanation_have_one_line_each() -> None:
    q, k, v = np.random.default_rng(0).normal(size=(3, 3, 4))
    problem = attncli.pose(q, k, v, query_labels=["The", "cat", "sat"])
    assert repr(attncli.explain(problem, query=1)) == "<Explanation: query 1 (cat), 3 keys>"
    unscaled = attention_oracle(q, k, v, scale=1)["context"]
    report = attncli.check({"context": unscaled}, problem)
    assert repr(report) == "<CheckReport: context MISMATCH; unscaled>"
    right = attention_oracle(q, k, v, scale=0.5)
    report = attncli.check({"context": right["context"], "lse": right["lse"]}, problem)
    assert repr(report) == "<CheckReport: context ok, lse ok>"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"head": 2}, "head: expected an index from -2 to 1; found 2"),
        ({"batch": -2}, "batch: expected an index from -1 to 0; found -2"),
        ({"rows": (2, 2)}, "rows: expected (start, stop) between 0 and 3, start first"),
        ({"rows": 3}, "rows: expected (start, stop) between 0 and 3, start first; found 3"),
        ({"rows": (0, 1, 2)}, "rows: expected (start, stop) between 0 and 3"),
    ],
)
def test_a_part_of_a_problem_is_within_it(part: dict[str, Any], message: str) -> None:
    problem = attncli.pose(*np.zeros((3, 1, 2, 3, 4)))
    with pytest.raises(UsageError, match=re.escape(message)):
        problem.select(**part)


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("attn_mask", "here it is mask"),
        ("zzz", "'zzz'$"),
        ("head", r"hint: problem\.select\(head=1\) takes a part of it"),
        ("threads", r"hint: attncli\.solve\(problem, threads=…\) takes it"),
    ],
)
def test_load_answers_an_unknown_option_with_a_known_one(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=meant):
        attncli.load(SENTENCE, **{name: True})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("is_causal", "here it is causal"),
        ("num_heads", "here it is heads"),
        ("cauzal", "did you mean causal?"),
    ],
)
@pytest.mark.parametrize("function", ["attention", "pose"])
def test_an_unknown_argument_is_answered_with_a_known_one(function, name, hint) -> None:
    with pytest.raises(attncli.AttnError) as caught:
        getattr(attncli, function)(X, X, **{name: True})
    assert isinstance(caught.value, TypeError)
    assert caught.value.message == f"{function}() got an unexpected keyword argument {name!r}"
    assert (caught.value.hint or "").startswith(hint)
    assert bool(caught.value.hint) == bool(hint)


def test_without_a_value_there_are_the_weights() -> None:
    answer = attncli.attention(X, X)
    np.testing.assert_allclose(answer.weights.sum(-1), 1)
    assert answer.context is None
    assert repr(answer) == f"<Attention: weights: float64 {answer.weights.shape}>"
    assert attncli.attention(X, X, X).context.shape == X.shape


def test_a_dtype_in_vain_is_told(folder: Path) -> None:
    np.save("x.npy", X)
    with pytest.warns(AttnWarning, match="bfloat16 changes nothing"):
        attncli.load("x.npy", "x.npy", dtype="bfloat16")


def test_arrays_that_are_given_as_options_are_the_problem() -> None:
    problem = attncli.load(query=7 * np.eye(3), key=np.eye(3))
    assert problem.value is None
    powers = np.exp(7 / 3**0.5)
    weights = attncli.solve(problem, ("weights",)).weights
    np.testing.assert_allclose(np.diag(weights), powers / (powers + 2))
    made = attncli.load(x=X, wq=np.eye(2), wk=np.eye(2))
    np.testing.assert_array_equal(made.query[0, 0], X)
    with pytest.raises(UsageError, match="key is missing"):
        attncli.load(query=X)


# --- wrong arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outputs", [5, True, "contexts", np.array("weights"), [["lse"]], iter(["lse"])]
)
def test_outputs_are_names_in_a_collection(outputs: Any) -> None:
    with pytest.raises(UsageError, match="outputs: expected names of weights, context"):
        attncli.attention(X, X, X, outputs=outputs)


HUGE = 10**5000


class _Shy:
    """What cannot be shown."""

    def __repr__(self) -> str:
        raise KeyError("no")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: attncli.attention(x, x, x, heads=HUGE), "query: the width 4 cannot be split"),
        (lambda x: attncli.pose(x, x).select(rows=(0, HUGE)), "rows: expected (start, stop)"),
        (lambda x: attncli.pose(x, x, sources=3), "sources: expected a mapping of names; found 3"),
        (
            lambda x: attncli.solve(attncli.pose(x, x), ("weights",), into=[1]),
            "into: expected a mapping of arrays",
        ),
        (
            lambda x: attncli.solve(attncli.pose(x, x), progress=5),  # type: ignore[arg-type]
            "progress: expected a function; found 5",
        ),
        (
            lambda x: attncli.load("x.npy", dtype=[]),  # type: ignore[arg-type]
            "dtype: expected 'bfloat16' or nothing; found '[]'",
        ),
        (
            lambda x: attncli.load("x.npy", without=np.array(1.0)),
            "without: expected names of entries",
        ),
        (
            lambda x: attncli.attention(x, x, scale=_Shy()),  # type: ignore[arg-type]
            "found something of type _Shy",
        ),
    ],
)
def test_arguments_that_are_no_numbers_of_any_use(call: Any, message: str) -> None:
    with pytest.raises(attncli.AttnError, match=re.escape(message)):
        call(np.ones((1, 1, 4)))


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ({"lse": np.empty((1, 1, 3))}, "expected outputs that are asked for; found 'lse'"),
        ({"weights": np.empty((1, 1, 3, 4))}, "and of shape \\(1, 1, 3, 3\\) for weights"),
        ({"weights": np.empty((1, 1, 3, 3), int)}, "expected a writable array of float64"),
        ({"weights": np.broadcast_to(0.0, (1, 1, 3, 3))}, "expected a writable array"),
        ({"weights": [1.0]}, "expected a writable array"),
    ],
)
def test_an_array_that_cannot_hold_an_output_is_refused(into: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attncli.solve(attncli.pose(X, X), ("weights",), into=into)


def test_outputs_are_computed_into_arrays_that_hold_them() -> None:
    weights = np.empty((1, 1, 3, 3))
    found = attncli.solve(attncli.pose(X, X), ("weights",), into={"weights": weights}).weights
    assert np.shares_memory(found, weights)
    assert np.array_equal(weights[0, 0], attncli.solve(attncli.pose(X, X), ("weights",)).weights)


# --- what is no problem, and no file ----------------------------------------------------------


@pytest.mark.parametrize("other", [(X, X, X), X, None, SENTENCE], ids=type)
def test_what_nobody_posed_is_refused(other: Any) -> None:
    words = f"found {type(other).__name__}"
    for call in (
        lambda: attncli.solve(other),
        lambda: attncli.check(X, other),
        lambda: attncli.explain(other, query=0),
    ):
        with pytest.raises(UsageError, match=words):
            call()


def test_an_array_is_no_file() -> None:
    with pytest.raises(UsageError, match="the name of a file; found ndarray") as caught:
        attncli.load(X, wq=np.eye(2), wk=np.eye(2))
    assert "x=" in str(caught.value.hint)
    assert attncli.load(x=X, wq=np.eye(2), wk=np.eye(2)).query.shape == (1, 1, 3, 2)


@pytest.mark.parametrize("threads", [0, -1, "x", 1.5])
def test_threads_are_a_number(threads: Any) -> None:
    problem = attncli.pose(X, X, X)
    for call in (
        lambda: attncli.solve(problem, threads=threads),
        lambda: attncli.check(X, problem, threads=threads),
        lambda: attncli.explain(problem, query=0, threads=threads),
    ):
        with pytest.raises(UsageError, match="threads: expected a whole number of at least 1"):
            call()


def test_advice_points_at_the_line_that_asked() -> None:
    """Also where the asking module has a name that begins as that of the package."""
    import importlib.util

    beside = Path(attncli.__file__).parent.parent / "attncli_beside.py"
    code = "import attncli\ndef ask(q, k):\n    return attncli.attention(q, k, k, causal=True)\n"
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("attncli_beside", loader=None)
    )
    exec(compile(code, str(beside), "exec"), module.__dict__)
    with pytest.warns(AttnWarning) as caught:
        module.ask(X, np.ones((5, 2)))
    assert [(Path(w.filename).name, w.lineno) for w in caught] == [("attncli_beside.py", 3)]


def test_a_value_is_checked_though_only_weights_are_asked_for() -> None:
    ones = np.ones((2, 3))
    with pytest.raises(DataError, match="value"):
        attncli.attention(ones, ones, np.full((2, 3), np.nan), outputs="weights")


def test_the_signature_shows_every_rule_once() -> None:
    shown = inspect.signature(attncli.attention).parameters
    assert [*shown][:4] == ["query", "key", "value", "scale"]
    assert shown["mask_means"].default == "keep"
    assert {"window", "threads", "outputs"} < {*shown}
    assert not any(p.kind == p.VAR_KEYWORD for p in shown.values())
    posed = inspect.signature(attncli.pose).parameters
    assert {*shown} - {*posed} == {"threads", "outputs"}
    described = pydoc.render_doc(attncli.attention)
    assert all(re.search(rf"^    .*\b{name}\b.* :", described, re.MULTILINE) for name in shown)
