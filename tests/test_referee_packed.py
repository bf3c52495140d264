"""Batch entries that are packed one behind the other, with no boundaries between them."""

import numpy as np
import pytest
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import small_slices  # noqa: F401 - a fixture

LENGTHS = [20, 13, 17]


def packed(array):
    """Return (B, H, S, D) as (1, H, B·S, D)."""
    batch, heads, rows, width = array.shape
    return array.swapaxes(0, 1).reshape(1, heads, batch * rows, width)


def apart(array, batch):
    heads, rows = array.shape[1], array.shape[2] // batch
    return array.reshape(heads, batch, rows, -1).swapaxes(0, 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
def test_entries_of_one_length(seed, causal):
    q, k, v = draw(seed, *[(3, 4, 20, 16)] * 3)
    keep = np.tri(60, dtype=bool) if causal else True
    wrong = apart(plain(packed(q), packed(k), packed(v), keep), 3)
    report = ask((q, k, v), wrong, causal=causal)
    assert named(report) == {"packed_without_boundaries"}
    assert report.diagnosis.scope == "all"


def test_shared_heads_and_a_rotary_embedding_within_each_entry():
    q, k, v = draw(0, (2, 4, 20, 16), (2, 2, 20, 16), (2, 2, 20, 16))
    angle = np.outer(np.arange(20), 10000.0 ** (-np.arange(8) / 8))

    def turned(rows):
        made = (rows[..., :8] + 1j * rows[..., 8:]) * np.exp(1j * angle)
        return np.concatenate([made.real, made.imag], axis=-1)

    keys, values = (packed(array).repeat(2, axis=1) for array in (turned(k), v))
    wrong = apart(plain(packed(turned(q)), keys, values), 2)
    assert named(ask((q, k, v), wrong, rope="half")) == {"packed_without_boundaries"}


@pytest.mark.parametrize("causal", [False, True])
def test_entries_of_lengths_of_their_own(causal):
    q, k, v = draw(1, *[(3, 2, 20, 16)] * 3)
    real = np.concatenate([np.arange(n) + 20 * entry for entry, n in enumerate(LENGTHS)])
    keep = np.tri(len(real), dtype=bool) if causal else True
    wrong = np.zeros((1, 2, 60, 16))
    wrong[:, :, real] = plain(*(packed(array)[:, :, real] for array in (q, k, v)), keep)
    lengths = {"kv_lengths": LENGTHS, "query_lengths": LENGTHS}
    report = ask((q, k, v), apart(wrong, 3), causal=causal, **lengths)
    assert named(report) == {"packed_without_boundaries"}


@pytest.mark.usefixtures("small_slices")
def test_a_long_problem_is_looked_at_in_slices():
    q, k, v = draw(2, *[(2, 4, 100, 16)] * 3)
    wrong = apart(plain(packed(q), packed(k), packed(v), np.tri(200, dtype=bool)), 2)
    assert named(ask((q, k, v), wrong, causal=True)) == {"packed_without_boundaries"}
