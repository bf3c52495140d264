"""Blocks on the diagonal that a causal mask gets wrong beside others that are right."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

SHAPE = (1, 2, 72, 8)
I, J = np.indices((72, 72))
CAUSAL = J <= I


def diagonal(size, blocks):
    """Return the pairs of query and key in some blocks on the diagonal."""
    return (I // size == J // size) & np.isin(I // size, blocks)


UNMASKED = {
    "in every odd block of 8 queries": (8, [1, 3, 5, 7]),
    "in every even block of 12 queries": (12, [0, 2, 4]),
    "in the block of queries 64 to 71": (16, [4]),
    "in every block but the first of 12 queries": (12, [1, 2, 3, 4, 5]),
    "in every block but the last of 24 queries": (24, [0, 1]),
    "in blocks 2, 3, 6 of 8 queries": (8, [2, 3, 6]),
    "in the block of queries 24 to 47": (24, [1]),
}
# What the first block loses leaves rows with no key, and the last one loses a block of keys.
LOST = {words: item for words, item in UNMASKED.items() if item[1][0] not in (0, 4)}


@pytest.mark.parametrize("words", long_but(UNMASKED, *list(UNMASKED)[::3]))
@pytest.mark.parametrize("dtype", long_but(["float32", "float16", "float64"], "float32"))
def test_some_blocks_are_not_masked(words, dtype):
    inputs = [array.astype("f2").astype(dtype) for array in draw(0, *[SHAPE] * 3)]
    wrong = plain(*inputs, CAUSAL | diagonal(*UNMASKED[words]))
    convention = only(ask(inputs, wrong, dtype, causal=True))
    assert convention.name == "some_diagonal_blocks_unmasked"
    assert convention.meaning.startswith(f"{words} the block of keys on the ")
    assert "diagonal is seen to its end" in convention.meaning


@pytest.mark.parametrize("words", long_but(LOST, *list(LOST)[::3]))
@pytest.mark.parametrize("output", long_but(["context", "weights"], "weights"))
def test_some_blocks_are_left_out(words, output):
    q, k, v = inputs = draw(0, *[SHAPE] * 3)
    wrong = plain(q, k, np.eye(72) if output == "weights" else v, CAUSAL & ~diagonal(*LOST[words]))
    convention = only(ask(inputs, {output: wrong}, causal=True))
    assert convention.name == "some_diagonal_blocks_lost"
    assert convention.meaning.startswith(f"{words} the block of keys on the ")
    assert "diagonal is not seen at all" in convention.meaning


@pytest.mark.usefixtures("small_slices")
def test_in_a_problem_of_many_slices():
    q, k, v = inputs = draw(0, (1, 2, 128, 8), *[(1, 1, 128, 8)] * 2)
    i, j = np.indices((128, 128))
    odd = i // 16 % 2 == 1
    wrong = plain(q, k, v, (j <= i) | ((i // 16 == j // 16) & odd))
    convention = only(ask(inputs, wrong, causal=True))
    assert "in every odd block of 16 queries the block of keys" in convention.meaning


def test_beside_a_window_sinks_slopes_and_an_output_projection():
    inputs = draw(0, *[(72, 16)] * 3)
    weight, sinks, slopes = draw(1, (16, 16))[0], np.array([0.3, -0.5]), np.array([0.1, 0.02])
    heads = [array.reshape(72, 2, 8).swapaxes(0, 1).astype("f8") for array in inputs]
    scores = heads[0] @ heads[1].swapaxes(-1, -2) * 8**-0.5
    scores -= slopes[:, None, None] * np.abs(I - J)
    keep = (CAUSAL | diagonal(8, [1, 4])) & (I - J <= 20)
    exponentials = np.where(keep, np.exp(scores), 0)
    weights = exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])
    wrong = (weights @ heads[2]).swapaxes(0, 1).reshape(72, 16) @ weight
    report = ask(
        inputs,
        wrong,
        heads=2,
        causal=True,
        window=(20, None),
        sinks=sinks,
        alibi_slopes=slopes,
        wo=weight,
    )
    assert "in blocks 1, 4 of 8 queries" in only(report).meaning


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "kind",
    long_but(["a block beside the diagonal", "torn blocks", "noise"], "torn blocks", "noise"),
)
def test_what_is_no_such_block_has_another_name_or_none(kind, seed):
    inputs = draw(seed, *[SHAPE] * 3)
    right = plain(*inputs, CAUSAL)
    assert ask(inputs, right, causal=True).passed
    beside = (I // 8 == 2) & (J // 8 == 1)
    torn = CAUSAL | (diagonal(8, [1, 3]) & (J % 8 < 6))
    noise = np.random.default_rng(seed).normal(size=SHAPE) * (I[:, 0] // 8 % 2)[:, None]
    wrong = {
        "a block beside the diagonal": plain(*inputs, CAUSAL & ~beside),
        "torn blocks": plain(*inputs, torn),
        "noise": right + noise,
    }[kind]
    report = ask(inputs, wrong, causal=True)
    assert not report.passed
    assert not named(report) & {"some_diagonal_blocks_unmasked", "some_diagonal_blocks_lost"}


def test_a_prefix_and_blocks_that_are_all_wrong_have_names_of_their_own():
    inputs = draw(0, *[SHAPE] * 3)
    first = plain(*inputs, CAUSAL | diagonal(8, [0]))
    assert named(ask(inputs, first, causal=True)) == {"prefix_unasked"}
    every = ask(inputs, plain(*inputs, CAUSAL | (I // 8 == J // 8)), causal=True)
    assert named(every) == {"causal_by_blocks_of_8"}
