"""What students write: sums without an axis of their own, a reshape for a transpose, and caches."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, scaled
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import check, pose


def without_axis(scores):
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(-1)


def with_maxima(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1)


def maxima_alone(scores):
    exponentials = np.exp(scores - scores.max(-1))
    return exponentials / exponentials.sum(-1, keepdims=True)


def both(scores):
    exponentials = np.exp(scores - scores.max(-1))
    return exponentials / exponentials.sum(-1)


SOFTMAXES = {
    "denominators_of_other_rows": without_axis,
    "denominators_beside_maxima_of_other_rows": with_maxima,
    "maxima_of_other_rows": maxima_alone,
    "maxima_and_denominators_of_other_rows": both,
    "log_softmax": lambda scores: scores - np.log(np.exp(scores).sum(-1, keepdims=True)),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SOFTMAXES)
@pytest.mark.parametrize("output", long_but(["context", "weights"], "context"))
def test_a_softmax_of_a_square_matrix(seed, name, output):
    q, k, v = draw(seed, (7, 8), (7, 8), (7, 5))
    weights = SOFTMAXES[name](scaled(q, k))
    found = weights @ v if output == "context" else {"weights": weights}
    of_weights = {"log_softmax": "weights_are_logarithms"} if output == "weights" else {}
    assert named(ask((q, k, v), found)) == {of_weights.get(name, name)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keys", [5, 8])
@pytest.mark.parametrize("heads", [(), (1, 3)])
def test_keys_that_are_reshaped_not_transposed(seed, keys, heads):
    q, k, v = draw(seed, (*heads, 6, 8), (*heads, keys, 8), (*heads, keys, 4))
    turned = k.reshape(*heads, 8, keys)
    wrong = plain(q, turned.swapaxes(-1, -2), v)
    assert named(ask((q, k, v), wrong)) == {"key_reshaped"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "zero"),
    [
        ("last_slot_unwritten", ("k", "v")),
        ("last_key_unwritten", ("k",)),
        ("last_value_unwritten", ("v",)),
    ],
)
def test_the_last_token_is_not_yet_in_the_cache(seed, name, zero):
    q, k, v = draw(seed, (2, 4, 1, 8), (2, 2, 30, 8), (2, 2, 30, 8))
    read = {"k": k.copy(), "v": v.copy()}
    for letter in zero:
        read[letter][:, :, -1] = 0
    wrong = plain(q, *(np.repeat(read[letter], 2, axis=1) for letter in "kv"))
    assert named(ask((q, k, v), wrong)) == {name}


@pytest.mark.parametrize("size", long_but([8, 32, 128], 32))
@pytest.mark.parametrize("name", ["of_first_block_of", "late_by_a_block_of"])
def test_values_of_other_blocks(size, name):
    """A kernel whose pointer to the values stays behind, written as a loop over its blocks."""
    keys = 3 * size + 5
    q, k, v = draw(0, (1, 2, 12, 16), (1, 2, keys, 16), (1, 2, keys, 16))
    weights = np.exp(scaled(q, k))
    weights /= weights.sum(-1, keepdims=True)
    context = np.zeros((1, 2, 12, 16))
    for start in range(0, keys, size):
        block = weights[..., start : start + size]
        first = 0 if name == "of_first_block_of" else max(0, start - size)
        context += block @ v[:, :, first : first + block.shape[-1]]
    assert named(ask((q, k, v), context)) == {f"values_{name}_{size}"}


@pytest.mark.parametrize("size", long_but([8, 16, 64], 16))
@pytest.mark.parametrize("way", ["up", "down"])
def test_lengths_that_are_rounded_to_blocks(size, way):
    q, k, v = draw(0, (2, 4, 1, 8), (2, 4, 300, 8), (2, 4, 300, 8))
    # Of one length alone, some number of keys makes most sizes alike.
    lengths = [165, 207]
    rounded = [-(-n // size) * size if way == "up" else n // size * size for n in lengths]
    seen = np.arange(300) < np.array(rounded)[:, None, None, None]
    report = ask((q, k, v), plain(q, k, v, seen), kv_lengths=lengths)
    assert f"lengths_{way}_to_{size}" in named(report)


STEPS = {
    ("values_late", "keys_late"): np.roll(np.arange(12), 1),
    ("values_late_by_one", "keys_late_by_one"): np.array([0, *range(11)]),
    ("values_early", "keys_early"): np.roll(np.arange(12), -1),
    ("values_early_by_one", "keys_early_by_one"): np.array([*range(1, 12), 11]),
    ("values_reversed", "keys_reversed"): np.arange(12)[::-1],
}


# Of keys and values together, which then meet each other, and of queries.
TOKENS = {
    ("tokens_late", "queries_late"): "values_late",
    ("tokens_late_by_one", "queries_late_by_one"): "values_late_by_one",
    ("tokens_early", "queries_early"): "values_early",
    ("tokens_early_by_one", "queries_early_by_one"): "values_early_by_one",
    ("tokens_reversed", "queries_reversed"): "values_reversed",
}
ORDER = {names[0]: order for names, order in STEPS.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", TOKENS)
def test_tokens_at_the_places_of_others(names, seed):
    of_tokens, of_queries = names
    q, k, v = draw(seed, *[(2, 2, 12, 8)] * 3)
    order, keep = ORDER[TOKENS[names]], np.tri(12, dtype=bool)
    wrong = plain(q, k[:, :, order], v[:, :, order], keep)
    assert named(ask((q, k, v), wrong, causal=True)) == {of_tokens}
    # The first query sees one key, and is the same whatever it asks for.
    alike = {name.removesuffix("_by_one") for name in (of_queries,)}
    found = named(ask((q, k, v), plain(q[:, :, order], k, v, keep), causal=True))
    assert {name.removesuffix("_by_one") for name in found} == alike


def test_new_keys_before_those_of_the_cache():
    q, k, v = draw(0, (2, 2, 4, 8), *[(2, 2, 12, 8)] * 2)
    k_, v_ = (np.concatenate([a[:, :, 8:], a[:, :, :8]], axis=2) for a in (k, v))
    keep = np.arange(12) <= np.arange(4)[:, None] + 8
    report = ask((q, k, v), plain(q, k_, v_, keep), causal=True, causal_align="bottom-right")
    assert named(report) == {"new_keys_before_the_cache"}


@pytest.mark.parametrize("names", STEPS)
@pytest.mark.parametrize("causal", long_but([False, True], True))
def test_keys_and_values_out_of_step(names, causal):
    of_values, of_keys = names
    q, k, v = draw(0, *[(2, 2, 12, 8)] * 3)
    keep = np.tri(12, dtype=bool) if causal else True
    report = ask((q, k, v), plain(q, k, v[:, :, STEPS[names]], keep), causal=causal)
    assert named(report) == {of_values}
    if causal:  # without a rule that looks at places, it says the same of the values
        report = ask((q, k, v), plain(q, k[:, :, STEPS[names]], v, keep), causal=True)
        assert named(report) == {of_keys}


@pytest.mark.usefixtures("one_mistake")
def test_two_digits_show_no_rounded_factors_beside_another_mistake():
    """The scores of one query are all 0: two numbers of so few digits are too few to say so."""
    q, k, v = [[1, 0, 1], [0, 1, 1]], [[1, 0, 1], [1, 1, 0], [0, 1, 1]], [[1, 2], [3, 4], [5, 6]]
    report = check([[2.59, 3.59], [3, 4]], pose(q, k, v), printed={"context": "%.2f"})
    assert named(report) == set()
