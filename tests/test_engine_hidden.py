"""What no query sees is not computed, whichever rule hides it."""

import numpy as np
import pytest

from attncli import attention

LENGTH = 4096
TRIANGLE = np.tri(LENGTH, dtype=bool)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 1),
        ({"causal": True}, 0.54),
        ({"causal": True, "mask": TRIANGLE}, 0.54),
        ({"causal": True, "alibi_slopes": True}, 0.54),
        ({"window": (256, 0)}, 0.13),
        ({"window": (100, 100)}, 0.12),
        ({"kv_lengths": [1024]}, 0.25),
        ({"query_lengths": [1024]}, 0.26),
        ({"segment_ids": np.arange(LENGTH) // 256}, 0.13),
        ({"segment_ids": np.arange(LENGTH) // 1024, "causal": True}, 0.17),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else None,
)
@pytest.mark.parametrize("outputs", [("context",), ("weights",)])
def test_the_share_of_all_scores_that_is_computed(options, share, outputs, computed):
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, LENGTH, 4), np.float32)
    attention(query, key, value, outputs=outputs, threads=1, **options)
    assert share - 0.1 < sum(computed) / LENGTH**2 <= share
