"""Tokens in the order of ranks that share a sequence: in outputs, in inputs and in a causal mask.

The orders are written as a kernel's caller does it: chunks put together, or every n-th token.
"""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

COUNT = 48
SHAPE = (1, 2, COUNT, 8)
TRIL = np.tri(COUNT, dtype=bool)


def zigzag(count, ranks):
    chunks = np.split(np.arange(count), 2 * ranks)
    return np.concatenate([chunks[i] for r in range(ranks) for i in (r, 2 * ranks - 1 - r)])


def striped(count, ranks):
    return np.concatenate([np.arange(count)[r::ranks] for r in range(ranks)])


ORDERS = {
    "the zigzag order of 2 ranks (rank r holds chunks r and 3 − r of 4)": zigzag(COUNT, 2),
    "the zigzag order of 4 ranks (rank r holds chunks r and 7 − r of 8)": zigzag(COUNT, 4),
    "the striped order of 2 ranks (rank r holds tokens r, r + 2, r + 4 and": striped(COUNT, 2),
    "the striped order of 3 ranks (rank r holds tokens r, r + 3, r + 6 and": striped(COUNT, 3),
}
THERE = long_but(ORDERS, *list(ORDERS)[1::2])


@pytest.mark.parametrize("words", THERE)
@pytest.mark.parametrize("causal", long_but([False, True], False))
def test_rows_that_stay_in_the_order(words, causal):
    inputs = draw(0, *[SHAPE] * 3)
    right = plain(*inputs, TRIL if causal else True)
    convention = only(ask(inputs, right[:, :, ORDERS[words]], causal=causal))
    assert convention.name == "rows_misplaced"
    assert f"in the places of others: in {words}" in convention.meaning


def test_rows_that_are_put_back_where_they_were_not_in_the_order():
    inputs = draw(0, *[SHAPE] * 3)
    wrong = plain(*inputs)[:, :, np.argsort(zigzag(COUNT, 4))]
    assert "put back from the zigzag order of 4 ranks" in only(ask(inputs, wrong)).meaning
    wrong = plain(*inputs)[:, :, np.argsort(striped(COUNT, 3))]
    assert "put back from the striped order of 3 ranks" in only(ask(inputs, wrong)).meaning


@pytest.mark.parametrize("words", THERE)
def test_keys_and_values_that_stay_in_the_order(words):
    q, k, v = draw(0, *[SHAPE] * 3)
    order = ORDERS[words]
    both = only(ask((q, k, v), plain(q, k[:, :, order], v[:, :, order], TRIL), causal=True))
    assert both.meaning.startswith(f"keys and values stand in {words}")
    one = only(ask((q, k, v), plain(q, k, v[:, :, order], TRIL), causal=True))
    assert one.meaning.startswith(f"values stand in {words}")


@pytest.mark.parametrize("words", THERE)
@pytest.mark.parametrize("dtype", long_but(["float32", "float16", "float64"], "float32"))
def test_a_causal_mask_by_the_places_in_the_order(words, dtype):
    q, k, v = inputs = [array.astype("f2").astype(dtype) for array in draw(0, *[SHAPE] * 3)]
    order = ORDERS[words]
    stays = plain(*(array[:, :, order] for array in inputs), TRIL)
    queries = plain(q[:, :, order], k, v, TRIL)
    for wrong, said in {
        "goes by the places that tokens have there": stays,
        "compares the place of a query there with the place of a key in the sequence": queries,
    }.items():
        left = only(ask(inputs, said, dtype, causal=True))
        assert left.name == "causal_in_order_of_ranks"
        assert f"tokens stand in {words}" in left.meaning
        assert f"the causal mask {wrong}; the rows of the outputs stay" in left.meaning
        back = only(ask(inputs, said[:, :, np.argsort(order)], dtype, causal=True))
        assert back.meaning.endswith(f"the causal mask {wrong}")


@pytest.mark.parametrize("order", [zigzag, striped])
def test_a_causal_mask_by_the_places_on_each_rank(order):
    """As where each rank masks its queries from 0 on, and each step its keys from 0 on."""
    ranks, each = 4, COUNT // 4
    q, k, v = inputs = draw(0, (1, 4, COUNT, 8), *[(1, 2, COUNT, 8)] * 2)
    tokens = order(COUNT, ranks).reshape(ranks, each)
    wide, rows = [np.repeat(array, 2, axis=1) for array in (k, v)], np.arange(each)[:, None]
    made = {
        "compares the place of a query on its rank with the place of a key in the sequence": (
            np.arange(COUNT) <= rows
        ),
        "aligns the last query of each rank with the last key of the sequence": (
            np.arange(COUNT) <= rows + COUNT - each
        ),
        "compares places within a rank's tokens": (
            np.argsort(tokens.ravel()) % each <= rows  # a step for the keys of each rank
        ),
    }
    for words, keep in made.items():
        wrong = np.empty((1, 4, COUNT, 8))
        for own in tokens:
            wrong[:, :, own] = plain(q[:, :, own], *wide, keep)
        convention = only(ask(inputs, wrong, causal=True))
        assert convention.name == "causal_in_order_of_ranks"
        assert f"of 4 ranks (rank r holds {'chunks' if order is zigzag else 'tokens'} r" in (
            convention.meaning
        )
        assert f"the causal mask {words}" in convention.meaning
        groups = order is striped and "within" in words
        assert convention.meaning.endswith("by whole groups of 4 tokens") is groups


@pytest.mark.usefixtures("small_slices")
def test_beside_sinks_a_softcap_and_rotary_embeddings_in_slices():
    q, k, v = inputs = draw(0, *[(1, 2, 128, 8)] * 3)
    angles = np.outer(np.arange(128), 10000.0 ** (-np.arange(4) / 4))
    cos, sin = np.cos(angles), np.sin(angles)

    def turned(x):
        one, other = x.astype("f8")[..., :4], x.astype("f8")[..., 4:]
        return np.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)

    places = np.argsort(zigzag(128, 8))
    scores = 3 * np.tanh(turned(q) @ turned(k).swapaxes(-1, -2) * 8**-0.5 / 3)
    exponentials = np.where(places <= places[:, None], np.exp(scores), 0)
    wrong = exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(0.5)) @ v
    options = {"causal": True, "softcap": 3, "sinks": np.full(2, 0.5), "rope": "half"}
    report = ask(inputs, wrong, **options)
    assert "the zigzag order of 8 ranks" in only(report).meaning
    report = ask(inputs, wrong[:, :, zigzag(128, 8)], **options)
    assert only(report).meaning.endswith("the rows of the outputs stay in that order")


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "kind", long_but(["two are exchanged", "chunks are shuffled"], "two are exchanged")
)
def test_other_orders_have_another_name_or_none(kind, seed):
    inputs = draw(seed, *[SHAPE] * 3)
    right = plain(*inputs, TRIL)
    if kind == "two are exchanged":
        tokens = zigzag(COUNT, 4)
        tokens[[3, 40]] = tokens[[40, 3]]
    else:
        chunks = np.split(np.arange(COUNT), 8)
        tokens = np.concatenate(np.random.default_rng(seed).permutation(chunks))
    moved = only(ask(inputs, right[:, :, tokens], causal=True))
    assert moved.name == "rows_misplaced"
    assert "order of" not in moved.meaning
    places = np.argsort(tokens)
    wrong = plain(*inputs, places <= places[:, None])
    assert "causal_in_order_of_ranks" not in named(ask(inputs, wrong, causal=True))


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_in_no_order(seed):
    inputs = draw(seed, *[SHAPE] * 3)
    right = plain(*inputs, TRIL)
    assert named(ask(inputs, right + draw(seed + 50, SHAPE)[0], causal=True)) == set()
    assert ask(inputs, right, causal=True).passed
