"""Heads and batch entries in the places of others are found, in outputs, keys and values."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

SHAPE = (3, 4, 10, 8)


ORDERS = {
    (0, 2, 1, 3): "in the file head 1 is head 2; head 2 is head 1 of the answer",
    (0, 0, 0, 0): "head 1 is head 0; head 2 is head 0; head 3 is head 0 of the answer",
}
BY_DTYPE = [
    (*item, dtype) for item in ORDERS.items() for dtype in ("float32", "float64", "float16")
]


@pytest.mark.parametrize(("order", "words", "dtype"), long_but(BY_DTYPE, BY_DTYPE[0], BY_DTYPE[-1]))
def test_heads_of_the_output(order, words, dtype):
    inputs = [array.astype(dtype) for array in draw(0, *[SHAPE] * 3)]
    convention = only(ask(inputs, plain(*inputs)[:, list(order)], dtype))
    assert convention.name == "outputs_misplaced"
    assert words in convention.meaning


def test_batch_entries_of_the_output():
    inputs = draw(0, *[SHAPE] * 3)
    convention = only(ask(inputs, plain(*inputs)[[2, 1, 0]]))
    assert "batch entry 0 is batch entry 2; batch entry 2 is batch entry 0" in convention.meaning


@pytest.mark.parametrize("order", list(ORDERS))
def test_heads_and_rows_of_an_lse(order):
    q, k, v = draw(0, *[SHAPE] * 3)
    lse = np.log(np.exp(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8)).sum(-1))
    convention = only(ask((q, k, v), {"lse": lse[:, list(order)]}))
    assert convention.name == "outputs_misplaced"
    assert ORDERS[order] in convention.meaning
    assert only(ask((q, k, v), {"lse": lse[..., [1, 0, *range(2, 10)]]})).name == "rows_misplaced"


def test_heads_and_batch_entries_that_are_exchanged_in_memory():
    inputs = draw(0, *[SHAPE] * 3)
    wrong = plain(*inputs).reshape(4, 3, 10, 8).swapaxes(0, 1)
    convention = only(ask(inputs, wrong))
    assert "head 1 of batch entry 0 is head 3 of batch entry 0" in convention.meaning
    assert "; and " in convention.meaning


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_and_values_of_another_entry(seed):
    q, k, v = draw(seed, *[(3, 2, 10, 8)] * 3)
    order = [1, 2, 0]
    both = only(ask((q, k, v), plain(q, k[order], v[order])))
    assert both.name == "inputs_misplaced"
    assert "batch entry 0 reads the keys and values of batch entry 1" in both.meaning
    assert "reads the keys of" in only(ask((q, k, v), plain(q, k[order], v))).meaning
    assert "reads the values of" in only(ask((q, k, v), plain(q, k, v[order]))).meaning


def test_a_group_of_heads_reads_another_head_of_the_keys():
    q, k, v = draw(0, SHAPE, (3, 2, 10, 8), (3, 2, 10, 8))
    read = [1, 0, 0, 1]
    convention = only(ask((q, k, v), plain(q, k[:, read], v[:, read])))
    assert (
        "query head 0 reads the keys and values of key head 1; query head 2" in convention.meaning
    )
    assert "query head 3" not in convention.meaning
    assert "query head 2 reads the keys and values of key head 0" in convention.meaning
    assert convention.meaning.endswith("(to query head h belongs key head h // 2)")


@pytest.mark.parametrize("seed", SEEDS)
def test_sinks_of_other_heads_and_others(seed):
    inputs, sinks = draw(seed, *[(1, 4, 10, 8)] * 3), np.array([0.5, -1.0, 2.0, 1.5])
    turned = only(ask(inputs, with_sinks(*inputs, sinks[::-1]), sinks=sinks))
    assert turned.name == "inputs_misplaced"
    assert "head 0 reads the sink of head 3; head 1 reads the sink of head 2" in turned.meaning
    other = only(ask(inputs, with_sinks(*inputs, [0.5, -1.0, 0.75, 1.25]), sinks=sinks))
    assert other.name == "another_sink"
    assert other.meaning.endswith(": head 2 takes 0.75 for 2; head 3 takes 1.25 for 1.5")


@pytest.mark.parametrize("seed", SEEDS)
def test_sinks_that_nobody_stated(seed):
    inputs, sinks = draw(seed, *[(1, 4, 10, 8)] * 3), [0.5, -1.0, 0.75, 1.25]
    report = ask(inputs, with_sinks(*inputs, sinks))
    found = only(report)
    assert found.name == "another_sink"
    assert "head 0 has 0.5; head 1 has -1" in found.meaning
    assert report.diagnosis.explanations[0].options == ("--sinks=0.5,-1,0.75,1.25",)
    wrong = with_sinks(*inputs, [0.5, 0.0, -1.2345678, 1.25])
    (option,) = ask(inputs, wrong).diagnosis.explanations[0].options
    assert option.startswith("--sinks=0.5,0,-1.2345")
    read = [float(number) for number in option.removeprefix("--sinks=").split(",")]
    assert ask(inputs, wrong, sinks=read).passed
    assert only(ask(inputs, with_sinks(*inputs, [0.0] * 4))).name == "sinks_unasked"


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
def test_smaller_numbers_are_not_those_of_other_sinks(seed):
    inputs = draw(seed, *[(1, 4, 10, 8)] * 3)
    report = ask(inputs, 0.9 * plain(*inputs), sinks=[0.5, -1.0, 2.0, 1.5])
    assert named(report) <= {"another_factor"}


@pytest.mark.usefixtures("one_mistake")
def test_heads_of_nobody_have_no_name():
    inputs = draw(0, *[(2, 3, 6, 8)] * 3)
    wrong = plain(*inputs)
    wrong[1, 2] = np.random.default_rng(0).normal(size=(6, 8))
    assert named(ask(inputs, wrong)) == set()


def test_masks_of_another_entry():
    """Heads come first in memory, and each entry's mask is repeated for neighbours instead."""
    inputs = draw(0, *[SHAPE] * 3)
    mask = np.random.default_rng(0).random((3, 1, 10, 10)) < 0.7
    wrong = plain(*inputs, np.repeat(mask[:, 0], 4, 0).reshape(4, 3, 10, 10).swapaxes(0, 1))
    convention = only(ask(inputs, wrong, mask=mask))
    assert convention.name == "inputs_misplaced"
    assert "head 2 of batch entry 0 reads the mask of batch entry 1;" in convention.meaning


def test_biases_and_slopes_of_other_heads():
    q, k, v = inputs = draw(0, *[SHAPE] * 3)
    bias = np.random.default_rng(0).normal(size=(4, 10, 10))
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8)
    order = [0, 3, 2, 1]
    words = "head 1 reads the bias of head 3; head 3 reads the bias of head 1"
    assert words in only(ask(inputs, softmax(scores + bias[order]) @ v, bias=bias)).meaning
    slopes = np.array([0.1, 0.7, 0.3, 0.2])
    apart = np.abs(np.arange(10)[:, None] - np.arange(10))
    wrong = softmax(scores - slopes[order][:, None, None] * apart) @ v
    assert words.replace("bias", "slopes") in only(ask(inputs, wrong, alibi_slopes=slopes)).meaning


def with_sinks(q, k, v, sinks):
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8)
    rest = np.broadcast_to(np.reshape(sinks, (-1, 1, 1)), (*scores.shape[:-1], 1))
    return softmax(np.concatenate([scores, rest], -1))[..., :-1] @ v


@pytest.mark.parametrize("causal", long_but([False, True], True))
def test_rows_of_the_output(causal):
    inputs = draw(0, *[(1, 2, 10, 8)] * 3)
    right = plain(*inputs, np.tri(10, dtype=bool) if causal else True)
    late = only(ask(inputs, np.roll(right, 1, axis=2), causal=causal))
    assert late.name == "rows_misplaced"
    assert late.meaning.endswith("each is that of the query 1 before it, the ends joined")
    early = only(ask(inputs, np.roll(right, -2, axis=2), causal=causal))
    assert early.meaning.endswith("each is that of the query 2 after it, the ends joined")
    mixed = right[:, :, [0, 5, 1, 6, 2, 7, 3, 8, 9, 4]]
    words = "in the file row 1 is row 5; row 2 is row 1; row 3 is row 6; row 4 is row 2; and 5 more"
    assert words in only(ask(inputs, mixed, causal=causal)).meaning


def test_rows_that_move_in_one_head_are_told_of_that_head():
    inputs = draw(0, *[SHAPE] * 3)
    wrong = plain(*inputs)
    wrong[0, 1] = wrong[0, 1, ::-1]
    report = ask(inputs, wrong)
    assert named(report) == {"rows_misplaced"}
    assert report.diagnosis.explanations[0].fails_at.startswith("batch 0, head 0")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_sink_of_one_head_that_nobody_stated(dtype):
    inputs = [array.astype("f2").astype(dtype) for array in draw(0, *[(1, 4, 24, 8)] * 3)]
    sinks = np.array([-np.inf, 0.5, -np.inf, -np.inf])
    convention = only(ask(inputs, with_sinks(*inputs, sinks), dtype))
    assert convention.name == "another_sink"
    assert "head 0 has none; head 1 has 0.5; head 2 has none" in convention.meaning


COLUMNS = {
    "each is that of the column 4 after it, the ends joined": np.roll(np.arange(8), -4),
    "each is that of the column 1 before it, the ends joined": np.roll(np.arange(8), 1),
    "the first column is the last, and so on": np.arange(8)[::-1],
    "in the file column 1 is column 4; column 2 is column 1": [*(0, 4, 1, 5, 2, 6, 3, 7)],
}


@pytest.mark.parametrize("words", COLUMNS)
@pytest.mark.parametrize("dtype", long_but(["float32", "float16"], "float16"))
def test_columns_of_other_places(words, dtype):
    inputs = [array.astype("f2").astype(dtype) for array in draw(0)]
    convention = only(ask(inputs, plain(*inputs)[..., COLUMNS[words]], dtype))
    assert convention.name == "columns_misplaced"
    assert words in convention.meaning


def test_keys_of_weights_in_other_places():
    q, k, v = draw(0)
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2) * 8**-0.5)
    convention = only(ask((q, k, v), {"weights": np.roll(weights, 2, axis=-1)}))
    assert "each is that of the key 2 before it, the ends joined" in convention.meaning
    behind = draw(0, (2, 6, 24))[0]
    report = ask((behind,) * 3, plain(*(behind,) * 3)[..., ::-1], heads=1)
    assert "columns_misplaced" in named(report)
