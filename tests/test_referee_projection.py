"""Mistakes in the output projection are named, each made by its own line of NumPy."""

import numpy as np
import pytest
from referee_numpy import SEEDS, draw, named, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import pose
from attncli.referee import check


def made(seed):
    """Return query, key and value of two heads, packed, and what their contexts are, joined."""
    q, k, v = draw(seed, *[(2, 5, 6)] * 3)
    heads = [array.reshape(2, 5, 2, 3).transpose(0, 2, 1, 3).astype("f8") for array in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(-1, -2) / np.sqrt(3)
    joined = (softmax(scores) @ heads[2]).transpose(0, 2, 1, 3).reshape(2, 5, 6)
    return (q, k, v), joined


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("output_projection_missing", lambda joined, weight, bias: joined),
        ("output_projection_transposed", lambda joined, weight, bias: joined @ weight.T + bias),
        ("output_bias_missing", lambda joined, weight, bias: joined @ weight),
        (
            "output_projection_transposed+output_bias_missing",
            lambda joined, weight, bias: joined @ weight.T,
        ),
    ],
)
def test_mistakes_of_an_output_projection(seed, name, wrong):
    inputs, joined = made(seed)
    weight, bias = draw(seed + 10, (6, 6), (6,))
    problem = pose(*inputs, heads=2, wo=weight, bo=bias)
    assert check((joined @ weight + bias).astype("f4"), problem).passed
    assert named(check(wrong(joined, weight, bias).astype("f4"), problem)) == {name}


SHAPES = [
    ("", lambda heads: heads.reshape(2, 5, 6)),
    ("+axes_joined", lambda heads: heads),
    ("+heads_not_joined", lambda heads: heads.transpose(0, 2, 1, 3)),
]


@pytest.mark.parametrize("width", [6, 4])
@pytest.mark.parametrize(("shape", "shaped"), SHAPES)
def test_a_missing_projection_whose_heads_lie_in_any_way(shape, shaped, width):
    inputs, joined = made(0)
    problem = pose(*inputs, heads=2, wo=draw(1, (6, width))[0])
    wrong = shaped(joined.reshape(2, 5, 2, 3)).astype("f4")
    assert named(check(wrong, problem, time_limit=100)) == {f"output_projection_missing{shape}"}


@pytest.mark.usefixtures("one_mistake")
def test_a_projection_to_another_width_has_no_transpose():
    inputs, joined = made(0)
    weight = draw(1, (6, 4))[0]
    problem = pose(*inputs, heads=2, wo=weight)
    wrong = check((joined @ weight * 2).astype("f4"), problem, time_limit=1)
    assert named(wrong) == {"another_factor"}
    turned = draw(2, (4, 6))[0]
    assert named(check((joined @ turned.T).astype("f4"), problem, time_limit=1)) == set()


@pytest.mark.parametrize("width", [6, 5])
def test_a_projected_context_that_is_cut_into_heads_again(width):
    inputs, joined = made(0)
    weight = draw(1, (6, width))[0]
    right = (joined @ weight).astype("f4")
    problem = pose(*inputs, heads=2, wo=weight)
    if width % 2 == 0:
        right = right.reshape(2, 5, 2, 3).transpose(0, 2, 1, 3)
        assert named(check(right, problem)) == {"heads_not_joined"}
    else:
        assert named(check(right[..., None, :].repeat(2, -2), problem, time_limit=1)) == set()
