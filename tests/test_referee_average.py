"""Weights that are the mean of the heads: judged as such where the user says so."""

import numpy as np
import pytest
from referee_numpy import draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import UsageError, check, pose

L = 6
TRIL = np.tri(L, dtype=bool)


def weights(q, k, scale=None, keep=True):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q.astype("f8") @ k.astype("f8").swapaxes(-1, -2) * scale
    return softmax(np.where(keep, scores, -np.inf))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 4, L, 8), (4, L, 8), (1, 4, 200, 16)])
def test_the_mean_of_the_heads_passes(shape, dtype):
    q, k, _ = draw(0, shape, shape, shape)
    made = weights(q, k).mean(axis=-3).astype(dtype)
    problem = pose(q, k, layout="hsd" if len(shape) == 3 else None)
    assert check({"weights": made}, problem, average_heads=True).passed
    made[..., 3, 2] += 0.02
    report = check({"weights": made}, problem, average_heads=True, diagnose=False)
    (verdict,) = report.verdicts
    assert not verdict.passed
    assert verdict.shape == verdict.expected_shape == made.shape
    assert (verdict.largest.head, verdict.largest.query, verdict.largest.column) == (None, 3, 2)
    assert report.difference("weights").shape == made.shape


@pytest.mark.parametrize("rows", [L, 70])
def test_what_is_wrong_in_every_head_is_named_from_the_mean(rows):
    q, k, v = draw(0, *[(2, 4, rows, 8)] * 3)
    mean = weights(q, k, scale=1).mean(axis=1).astype("f4")
    problem = pose(q, k, v)
    assert named(check({"weights": mean}, problem, average_heads=True)) == {"unscaled"}
    both = {"weights": mean, "context": plain(q, k, v, scale=1).astype("f4")}
    assert named(check(both, problem, average_heads=True)) == {"unscaled"}


@pytest.mark.usefixtures("one_mistake")
def test_a_wrong_mean_beside_a_right_context():
    q, k, v = draw(0, *[(1, 2, L, 8)] * 3)
    mean = weights(q, k, scale=1).mean(axis=1).astype("f4")
    one = {"weights": mean, "context": plain(q, k, v).astype("f4")}
    report = check(one, pose(q, k, v), average_heads=True)
    assert [verdict.passed for verdict in report.verdicts] == [False, True]
    (explanation,) = report.diagnosis.explanations
    assert (explanation.name, explanation.outputs) == ("unscaled", ("weights",))


def test_the_mean_over_packed_heads_under_a_mask():
    q, k, v = draw(0, *[(2, L, 32)] * 3)
    cut = [a.reshape(2, L, 4, 8).transpose(0, 2, 1, 3) for a in (q, k)]
    problem = pose(q, k, v, heads=4, causal=True)
    mean = weights(*cut, keep=TRIL).mean(axis=1).astype("f4")
    assert check({"weights": mean}, problem, average_heads=True).passed
    late = weights(*cut, keep=np.tri(L, k=1, dtype=bool)).mean(axis=1).astype("f4")
    assert named(check({"weights": late}, problem, average_heads=True)) == {"causal_one_late"}


def test_each_side_is_told_of_the_other():
    q, k, _ = draw(0)
    each = weights(q, k).astype("f4")
    report = check({"weights": each.mean(axis=1)}, pose(q, k))
    (explanation,) = report.diagnosis.explanations
    assert (explanation.name, explanation.options) == ("weights_averaged", ("--average-heads",))
    report = check({"weights": each}, pose(q, k), average_heads=True)
    assert not report.passed
    assert "leave --average-heads out" in str(report)


def test_there_must_be_weights_and_heads():
    q, k, v = draw(0)
    with pytest.raises(UsageError, match="about the weights"):
        check(plain(q, k, v), pose(q, k, v), average_heads=True)
    with pytest.raises(UsageError, match="no head axis"):
        check({"weights": np.eye(L)}, pose(q[0, 0], k[0, 0]), average_heads=True)


@pytest.mark.peer
def test_the_default_weights_of_pytorch_pass():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    x = torch.randn(2, L, 16)
    with torch.no_grad():
        _, made = layer(x, x, x)
        packed = (x @ layer.in_proj_weight.T).numpy()
    problem = pose(*np.split(packed, 3, axis=-1), heads=4)
    assert check({"weights": made.numpy()}, problem, average_heads=True).passed


@pytest.mark.parametrize(
    ("given", "made", "other"),
    [
        ("context", (2, 4, 5, 7), "weights"),
        ("context", (2, 4, 5), "lse"),
        ("weights", (2, 4, 5, 3), "context"),
        ("context", (2, 4, 9, 9), None),
    ],
)
def test_the_shape_of_another_output_is_recognised(given, made, other):
    q, k, v = draw(0, (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3))
    report = check({given: np.ones(made)}, pose(q, k, v), diagnose=False)
    assert report.verdicts[0].shape_of == other
    hint = f"this is the shape of {other}: --expect {other}=FILE"
    assert (hint in str(report)) is (other is not None)


def test_the_shape_of_mean_weights_is_recognised():
    """As `torch.nn.MultiheadAttention` returns them beside its context."""
    q, k, v = draw(0, *[(2, L, 16)] * 3)
    report = check(np.ones((2, L, L)), pose(q, k, v, heads=4), diagnose=False)
    assert report.verdicts[0].shape_of == "mean weights"
    told = "this is the shape of the mean weights: --expect weights=FILE --average-heads"
    assert told in str(report)
