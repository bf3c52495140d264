"""Small problems, computed at once: near the ends of the number format, and as large ones are."""

from functools import partial

import numpy as np
import pytest
from nearness import assert_near

from attncli import attention, pose, solve
from attncli.errors import DataError

OUTPUTS = [("context",), ("weights", "context", "lse"), ("scores",)]
MOST = float(np.finfo(np.float32).max)
SEEN = np.tri(4, dtype=bool)


def small(*rows):
    """Return numbers of float32, four queries or keys, that differ from row to row."""
    return np.array(rows, np.float32)[:, None]


@pytest.fixture(params=[attention, pose], ids=["unread", "read"])
def ask(request):
    """Ask for outputs, the inputs looked at beforehand or not."""

    def asked(*inputs, outputs, **rules):
        if request.param is attention:
            return attention(*inputs, **rules, outputs=outputs)
        return solve(pose(*inputs, **rules), outputs)

    return asked


@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
@pytest.mark.parametrize(
    "rules", [{"causal": True}, {"mask": SEEN}, {"mask": SEEN, "bias": SEEN * 2.0}]
)
def test_hidden_scores_may_exceed_the_range(rules, outputs, ask):
    query, key = small(1, 1, 1, 3e38), small(1, 2, 3, 3e38)
    query[3], value = 0.5, small(1, 2, 3, 4)
    key[3] = MOST  # times 1 it is in range, times 1.5 it is not, and half of it is
    answer = ask(query, key, value, scale=1.5, **rules, outputs=outputs)
    scores = np.where(SEEN, 1.5 * query.astype(float) * key.T.astype(float), -np.inf)
    scores += rules.get("bias", 0)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    for name, expected in [("scores", scores), ("weights", weights), ("context", weights @ value)]:
        if name in outputs:
            assert_near(getattr(answer, name), expected, rtol=1e-5)


@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
def test_scores_that_are_seen_may_not(outputs, ask):
    query, key, value = small(1, 1, 1, 1), small(1, 2, 3, MOST), small(1, 2, 3, 4)
    call = partial(ask, query, key, value, scale=1.5, outputs=outputs)
    for rules in ({}, {"causal": True}, {"softcap": 3.0}, {"alibi_slopes": [1.0]}):
        with pytest.raises(DataError, match="the scores exceed the range of float32"):
            call(**rules)


@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_scores_and_what_is_added_may_not(sign, outputs, ask):
    query, key, value = small(1, 1, 1, 1), small(*[sign * MOST] * 4), small(1, 2, 3, 4)
    bias = np.full((4, 4), sign * MOST / 8, np.float32)
    call = partial(ask, query, key, value, scale=0.95, outputs=outputs)
    with pytest.raises(DataError, match="the scores exceed the range of float32"):
        call(bias=bias)
    call(bias=np.where(SEEN, 0, -np.inf))  # which may be
    call(bias=np.where(SEEN, 0, bias), mask=SEEN)


@pytest.mark.parametrize("length", [5, 80])
@pytest.mark.parametrize("hidden_by", ["mask", "bias", "both"])
def test_hidden_scores_that_are_no_numbers_leave_nothing(length, hidden_by, ask):
    random = np.random.default_rng(length)
    query, key, value = random.standard_normal((3, length, 4), np.float32)
    query[:, 0] = 1.5 * np.abs(query[:, 0]) + 1
    key[-1] = [MOST, 0, 0, 0]  # infinite times any query
    seen = np.ones((length, length), bool)
    seen[:, -1] = False
    added = np.where(seen, 0, -np.inf).astype(np.float32)
    rules = {"mask": seen} if hidden_by != "bias" else {}
    rules |= {"bias": added} if hidden_by != "mask" else {}
    call = partial(ask, query, key, value, scale=1, **rules)
    if hidden_by == "bias":  # which hides no score that was beyond the range before it
        with pytest.raises(DataError, match="the scores exceed the range of float32"):
            call(outputs=("context",))
        return
    shorter = attention(query, key[:-1], value[:-1], scale=1)
    context = call(outputs=("context",)).context
    assert_near(context, shorter.context, rtol=1e-5, atol=1e-6)
    weights = call(outputs=("weights",)).weights
    assert_near(weights[:, :-1], shorter.weights, rtol=1e-5, atol=1e-7)
    assert not weights[:, -1].any()
