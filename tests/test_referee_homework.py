"""What students write: sums without an axis of their own, a reshape for a transpose, and caches."""

import numpy as np
import pytest
from referee_numpy import SEEDS, ask, draw, named, plain


def scaled(q, k):
    return q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


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
@pytest.mark.parametrize("output", ["context", "weights"])
def test_a_softmax_of_a_square_matrix(seed, name, output):
    q, k, v = draw(seed, (7, 8), (7, 8), (7, 5))
    weights = SOFTMAXES[name](scaled(q, k))
    found = weights @ v if output == "context" else {"weights": weights}
    of_weights = {"log_softmax": "weights_are_logarithms"} if output == "weights" else {}
    assert named(ask((q, k, v), found)) == {of_weights.get(name, name)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keys", [5, 8, 12])
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
