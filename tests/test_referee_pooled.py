"""Contexts that were averaged or added up over the heads or the queries."""

import pytest
from referee_numpy import ask, draw, named, plain

# Of a context (B, H, L, E).
POOLED = [
    ("context_averaged_over_heads", lambda c: c.mean(axis=1)),
    ("context_averaged_over_heads", lambda c: c.mean(axis=1, keepdims=True)),
    ("context_summed_over_heads", lambda c: c.sum(axis=1)),
    ("context_averaged_over_queries", lambda c: c.mean(axis=2)),
]


@pytest.mark.parametrize(("name", "wrong"), POOLED)
def test_contexts_that_were_pooled(name, wrong):
    q, k, v = draw(0, (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3))
    assert named(ask((q, k, v), wrong(plain(q, k, v)))) == {name}


@pytest.mark.parametrize("layout", ["hsd", "shd"])
def test_heads_that_were_averaged_in_any_layout(layout):
    q, k, v = draw(0, (4, 5, 8), (4, 7, 8), (4, 7, 3))
    order = tuple("hsd".index(axis) for axis in layout)
    wrong = plain(q, k, v).mean(axis=0)
    report = ask([array.transpose(order) for array in (q, k, v)], wrong, layout=layout)
    assert named(report) == {"context_averaged_over_heads"}


def test_packed_heads_that_were_pooled():
    q, k, v = draw(0, (2, 5, 12), (2, 7, 12), (2, 7, 12))
    split = [a.reshape(2, -1, 3, 4).transpose(0, 2, 1, 3) for a in (q, k, v)]
    context = plain(*split)
    rows = context.transpose(0, 2, 1, 3).reshape(2, 5, 12)
    for name, wrong in [
        ("context_averaged_over_heads", context.mean(axis=1)),
        ("context_summed_over_heads", context.sum(axis=1)),
        ("context_averaged_over_queries", rows.mean(axis=1)),
    ]:
        assert named(ask((q, k, v), wrong, heads=3)) == {name}


def test_one_head_or_query_is_not_pooled():
    q, k, v = draw(0, (2, 1, 1, 8), (2, 1, 7, 8), (2, 1, 7, 3))
    names = named(ask((q, k, v), plain(q, k, v)[:, 0]))
    assert "axes_of_length_1" in names
    assert not any(name.startswith("context_") for name in names)
