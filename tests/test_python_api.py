"""What Python users give and see: tensors, labels, texts, names of other libraries."""

from __future__ import annotations

import inspect
import pydoc
import re
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import attention_oracle
from process import ROOT

import attncli
from attncli import AttnWarning, DataError, UsageError
from attncli.numerics.dtypes import as_bfloat16

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


def test_a_tensor_on_another_device_is_taken(torch, monkeypatch) -> None:
    """A tensor of another device, which NumPy refuses, comes by way of its copy on the CPU."""
    elsewhere = torch.ones(3, 2, device="meta")
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda self: torch.tensor(X) if self.is_meta else self.to("cpu")
    )
    answer = attncli.attention(X, elsewhere, X)
    np.testing.assert_allclose(answer.context, attention_oracle(X, X, X)["context"], rtol=1e-5)


def test_a_tensor_without_numbers_is_refused(torch) -> None:
    with pytest.raises(DataError, match=r"value: .* found a tensor that NumPy does not read"):
        attncli.attention(X, X, torch.ones(3, 2, device="meta"))
    with pytest.raises(DataError, match="Sparse"):
        attncli.attention(X, X, torch.eye(3).to_sparse())


def test_a_tensor_without_axes_is_a_number(torch) -> None:
    problem = attncli.pose(X, X, scale=torch.tensor(0.5), causal=torch.tensor(True))
    assert problem.scale == 0.5
    assert problem.visible.causal is True
    assert attncli.pose(X, X, window=torch.tensor(1)).visible.window == (1, 1)
    with pytest.raises(UsageError, match="expected a finite number"):
        attncli.pose(X, X, scale=torch.tensor(0.5, device="meta"))


def test_a_list_of_bfloat16_tensors_is_stacked(torch) -> None:
    rows = [torch.ones(2, dtype=torch.bfloat16)] * 3
    made, right = (attncli.attention(x, X, X).context for x in (rows, torch.stack(rows)))
    np.testing.assert_array_equal(made, right)


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


def test_a_problem_is_printed_in_one_line() -> None:
    assert repr(attncli.load(SENTENCE)) == (
        "<Problem: query (1, 1, 3, 4), key (1, 1, 3, 4), value (1, 1, 3, 2); "
        "layout sd, float64, scale 0.5, causal>"
    )
    x = np.ones((2, 4, 6), np.float32)
    given = {"mask": np.ones((4, 4)), "softcap": 2, "kv_lengths": [4, 3], "scale": 2}
    assert str(attncli.pose(x, x, heads=3, **given)) == (
        "<Problem: query (2, 3, 4, 2), key (2, 3, 4, 2); "
        "layout bsd, float32, scale 2, mask, kv_lengths, softcap>"
    )


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
        ({"rows": (0, 4)}, "rows: expected (start, stop) between 0 and 3, start first"),
        ({"head": 0.5}, "head: expected a whole number; found 0.5"),
        ({"rows": 3}, "rows: expected (start, stop) between 0 and 3, start first; found 3"),
        ({"rows": (0, 1, 2)}, "rows: expected (start, stop) between 0 and 3"),
        ({"rows": (0.0, 2.0)}, "rows: expected (start, stop) between 0 and 3"),
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
        ("causual", "did you mean causal"),
        ("zzz", "'zzz'$"),
        ("head", r"hint: problem\.select\(head=1\) takes a part of it"),
        ("batch", r"hint: problem\.select\(batch=1\) takes a part of it"),
        ("average_heads", r"hint: attncli\.check\(…, average_heads=True\) judges"),
        ("average_attn_weights", r"hint: attncli\.check\(…, average_heads=True\) judges"),
        ("threads", r"hint: attncli\.solve\(problem, threads=…\) takes it"),
        # Their names are like those of options that have nothing to do with them.
        *((name, f"'{name}'$") for name in ("quiet", "color", "out", "save", "minus", "format")),
    ],
)
def test_load_answers_an_unknown_option_with_a_known_one(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=meant):
        attncli.load(SENTENCE, **{name: True})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("is_causal", "here it is causal"),
        ("attn_mask", "here it is mask"),
        ("num_heads", "here it is heads"),
        ("cauzal", "did you mean causal?"),
        ("zzz", ""),
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


@pytest.mark.parametrize(
    "call",
    [
        lambda problem: attncli.solve(problem, output=("weights",)),
        lambda problem: attncli.check({"weights": X}, problem, tol=1),
        lambda problem: attncli.explain(problem, qery=0),
        lambda problem: attncli.project(X, wz=X),
    ],
)
def test_every_function_refuses_unknown_arguments(call) -> None:
    with pytest.raises(attncli.UsageError, match="got an unexpected keyword argument"):
        call(attncli.pose(X, X))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: attncli.attention(X), "attention(): missing a required argument: 'key'"),
        (lambda: attncli.attention(X, X, X, 1.0), "attention(): too many positional arguments"),
        (lambda: attncli.pose(X, X, query=X), "pose(): multiple values for argument 'query'"),
        (lambda: attncli.check(X), "check(): missing a required argument: 'problem'"),
    ],
)
def test_arguments_in_wrong_places_are_errors_of_the_package(call, words) -> None:
    with pytest.raises(attncli.AttnError) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)
    assert caught.value.message == words
    assert caught.value.hint.startswith("by place it takes ")


def test_without_a_value_there_are_the_weights() -> None:
    answer = attncli.attention(X, X)
    np.testing.assert_allclose(answer.weights.sum(-1), 1)
    assert answer.context is None
    assert repr(answer) == f"<Attention: weights: float64 {answer.weights.shape}>"
    assert attncli.attention(X, X, X).context.shape == X.shape


def test_one_output_needs_no_tuple() -> None:
    alone, tuple_of_it = (attncli.attention(X, X, X, outputs=o) for o in ("lse", ("lse",)))
    np.testing.assert_array_equal(alone.lse, tuple_of_it.lse)
    assert repr(alone) == f"<Attention: lse: float64 ({len(X)},)>"
    with pytest.raises(UsageError, match="did you mean weights"):
        attncli.attention(X, X, outputs="wieghts")


def test_a_dtype_in_vain_is_told(folder: Path) -> None:
    np.save("x.npy", X)
    with pytest.warns(AttnWarning, match="bfloat16 changes nothing"):
        attncli.load("x.npy", "x.npy", dtype="bfloat16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plain": True, "scale": 3}, "both plain and scale are given"),
        ({"scale": 3, "plain": True}, "both plain and scale are given"),
        ({"key": [[1.0]]}, "key is given twice: in the files and as key="),
    ],
)
def test_what_is_given_twice_is_refused(options, message, tutorial):
    with pytest.raises(attncli.UsageError) as caught:
        attncli.load("q.csv", "k.csv", "v.csv", **options)
    assert caught.value.message == message


def test_an_argument_takes_the_place_of_an_entry_of_a_file(folder: Path) -> None:
    np.savez("p.npz", query=np.ones((3, 2)), key=np.ones((3, 2)))
    problem = attncli.load("p.npz", query=X)
    np.testing.assert_array_equal(problem.query[0, 0], X)


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


def test_a_mask_may_be_bfloat16() -> None:
    ones = np.array([[1.0, 0.0, 1.0]], np.float32).view(np.uint32) >> 16
    mask = as_bfloat16(ones.astype(np.uint16))
    seen = attncli.attention(X, X, X, mask=mask).weights > 0
    assert seen.tolist() == [[True, False, True]] * 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_arrays_of_mlx(dtype: str) -> None:
    mx = pytest.importorskip("mlx.core")
    numbers = mx.array(np.arange(12, dtype="f4").reshape(3, 4) / 3).astype(getattr(mx, dtype))
    right = np.array(numbers.astype(mx.float32))
    made = attncli.attention(numbers, numbers, numbers)
    np.testing.assert_array_equal(made.context, attncli.attention(right, right, right).context)


def test_subnormal_float16_where_the_processor_takes_small_numbers_for_0(torch: Any) -> None:
    x, value = np.ones((2, 3, 4), "f4"), np.full((2, 3, 4), 3e-5, np.float16)
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor cannot")
    try:
        context = attncli.attention(x, x, value).context
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(context, np.full((2, 3, 4), np.float32(np.float16(3e-5))))


HUGE = 10**5000


class _Shy:
    """What cannot be shown."""

    def __repr__(self) -> str:
        raise KeyError("no")


def _nested(depth: int) -> object:
    made: object = 1.0
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: attncli.attention(x, x, x, heads=HUGE), "query: the width 4 cannot be cut"),
        (lambda x: attncli.pose(x, x).select(batch=HUGE), "batch: expected an index from -1 to 0"),
        (lambda x: attncli.pose(x, x).select(rows=(0, HUGE)), "rows: expected (start, stop)"),
        (lambda x: attncli.pose(x, x, sources=3), "sources: expected a mapping of names; found 3"),
        (
            lambda x: attncli.solve(attncli.pose(x, x), ("weights",), into=[1]),
            "into: expected a mapping of arrays",
        ),
        (
            lambda x: attncli.solve(attncli.pose(x, x), ("weights",), into=x),
            "into: expected a mapping of arrays",
        ),
        (
            lambda x: attncli.solve(attncli.pose(x, x), progress=5),  # type: ignore[arg-type]
            "progress: expected a function; found 5",
        ),
        (
            lambda x: attncli.pose(x, x, unread=x),  # type: ignore[arg-type]
            "unread: expected true or false",
        ),
        (
            lambda x: attncli.check(x, attncli.pose(x, x, x), printed=x),  # type: ignore[arg-type]
            "printed: expected a mapping with names of context; found [[[1.0, 1.0, 1.0, 1.0]]]",
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
            lambda x: attncli.attention(x, x, scale=_nested(50_000)),  # type: ignore[arg-type]
            "found something of type list",
        ),
        (
            lambda x: attncli.attention(x, x, scale=_Shy()),  # type: ignore[arg-type]
            "found something of type _Shy",
        ),
        (
            lambda x: attncli.attention(
                x, x, x, alibi_slopes=[1e300], precision="float32", heads=1
            ),
            "alibi_slopes: expected numbers up to 8.50706e+37 in float32",
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
        (
            {"weights": np.empty((1, 1, 3, 4))},
            "of float64 and of shape \\(1, 1, 3, 3\\) for weights",
        ),
        ({"weights": np.empty((1, 1, 3, 3), int)}, "expected a writable array of float64"),
        ({"weights": np.broadcast_to(0.0, (1, 1, 3, 3))}, "expected a writable array"),
        ({"weights": [1.0]}, "expected a writable array"),
    ],
)
def test_outputs_are_computed_into_arrays_that_hold_them(into: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attncli.solve(attncli.pose(X, X), ("weights",), into=into)


def test_outputs_are_views_of_the_arrays_that_are_given() -> None:
    room = np.empty((1, 1, 3, 3))
    answer = attncli.solve(attncli.pose(X, X), ("weights",), into={"weights": room})
    assert np.shares_memory(answer.weights, room)
    assert np.array_equal(answer.weights, attncli.solve(attncli.pose(X, X), ("weights",)).weights)


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


@pytest.mark.parametrize(("dtype", "most"), [("i1", 0.1), ("u1", 0.1), ("f4", 1.1), ("i8", 1.1)])
def test_a_mask_of_numbers_is_not_copied_more_than_once(dtype: str, most: float) -> None:
    mask, rows = np.tri(2000, dtype=dtype), np.ones((2000, 1))
    tracemalloc.start()
    problem = attncli.pose(rows, rows, rows, mask=mask)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A number is checked in pieces, and held as one byte.
    assert peak < most * mask.size + 2**20
    np.testing.assert_array_equal(problem.visible.mask[0, 0], mask == 1)


def test_a_masked_array_that_masks_nothing_is_an_array() -> None:
    given = np.ma.masked_array(X, np.zeros(X.shape, bool))
    assert np.array_equal(attncli.pose(given, X).query, attncli.pose(X, X).query)


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


def test_outputs_may_not_share_an_array_to_compute_into():
    problem = attncli.pose(*np.random.default_rng(0).standard_normal((3, 300, 16)))
    room = np.empty((1, 1, 300, 300))
    with pytest.raises(attncli.UsageError):
        attncli.solve(problem, ("weights", "scores"), into={"weights": room, "scores": room})


@pytest.mark.parametrize(
    ("option", "shape", "rules"),
    [
        ("bias", (2, 2), {}),
        ("score_weight", (2, 2), {"score": "general"}),
        ("wo", (2, 3), {"value": np.ones((2, 2))}),
    ],
)
def test_no_output_may_be_computed_into_any_input(
    option: str, shape: tuple[int, ...], rules: dict[str, Any]
) -> None:
    room = np.zeros(8)
    given = {option: room[: np.prod(shape)].reshape(shape)}
    problem = attncli.pose(np.ones((2, 2)), np.ones((2, 2)), **rules, **given)
    into = {"weights": room[:4].reshape(1, 1, 2, 2)}
    with pytest.raises(UsageError, match="the array for weights shares memory with an input"):
        attncli.solve(problem, "weights", into=into)


def test_results_have_the_byte_order_of_the_machine() -> None:
    swapped = np.ones((2, 2), ">f4")
    assert attncli.attention(swapped, swapped).weights.dtype == np.dtype("=f4")


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
