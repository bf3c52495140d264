"""What no query sees is not computed, whichever rule hides it."""

import numpy as np
import pytest
from nearness import assert_near

from attncli import attention

LENGTH = 4096
TRIANGLE = np.tri(LENGTH, dtype=bool)


SHORT = 640
INNER = np.repeat(np.arange(SHORT // 64), 64)


@pytest.mark.filterwarnings("ignore:.*sees? no key")
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        # Some panels of 64 in the middle of others, which see none of the keys that these see.
        (np.where(INNER == 3, 1, 0), (np.arange(SHORT) >= 600).astype(int)),
        (np.where(INNER == 3, 7, 0), (np.arange(SHORT) >= 600).astype(int)),
        (INNER % 3, np.arange(SHORT) // 214),
        (np.random.default_rng(1).integers(0, 4, SHORT), np.arange(SHORT) // 160),
        (
            np.random.default_rng(2).integers(0, 4, SHORT),
            np.random.default_rng(3).integers(0, 5, SHORT),
        ),
        (INNER[::-1], INNER),
    ],
    ids=["between", "blind", "by turns", "mixed", "both mixed", "backwards"],
)
@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("outputs", [("context", "lse"), ("context", "weights")])
def test_packed_sequences_in_any_order(mine, theirs, scale, outputs):
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, SHORT, 8), np.float32)
    scores = scale / np.sqrt(8) * query.astype(float) @ key.astype(float).swapaxes(1, 2)
    scores[:, mine[:, None] != theirs] = -np.inf
    top = np.maximum(scores.max(axis=2, keepdims=True), np.finfo(float).min)
    powers = np.exp(scores - top)
    total = powers.sum(axis=2, keepdims=True)
    expected = powers @ value / np.where(total == 0, 1, total)
    answer = attention(
        scale * query,
        key,
        value,
        layout="hsd",
        segment_ids=mine,
        kv_segment_ids=theirs,
        outputs=outputs,
        threads=1,
    )
    assert_near(answer.context, expected, rtol=1e-3, atol=1e-3)
    blind = ~np.isin(mine, theirs)
    assert not answer.context[:, blind].any()
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    shown = {"lse": lse, "weights": powers / np.where(total == 0, 1, total)}
    assert_near(getattr(answer, outputs[1]), shown[outputs[1]], rtol=1e-3, atol=1e-3)
