"""Mistakes where the numbers are small: late queries of many keys, a head whose values are small.

One tolerance for all of an output, which its largest numbers make, would let them pass.
"""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain
from referee_tried import small_slices  # noqa: F401 - a fixture

from attncli import pose
from attncli.referee import check

TRIL = np.tri(1024, dtype=bool)


def test_late_queries_that_lose_a_key():
    q, k, v = (array.astype("f2") for array in draw(0, *[(1024, 16)] * 3))
    v[1] /= 3
    lost = (np.arange(1024) >= 600)[:, None] & (np.arange(1024) == 1)
    right, wrong = (plain(q, k, v, keep).astype("f2") for keep in (TRIL, TRIL & ~lost))
    problem = pose(q, k, v, causal=True)
    assert check(right, problem).passed
    (verdict,) = check(wrong, problem, diagnose=False).verdicts
    assert not verdict.passed
    assert verdict.outside == 0
    assert verdict.rms < verdict.tolerance.rms
    first, behind = verdict.stretch.queries
    assert 600 - 64 < first < behind <= 1024
    assert verdict.stretch.rms > verdict.stretch.tolerance.rms
    assert {row.query >= 600 for row in verdict.worst_rows} == {True}


@pytest.mark.parametrize(
    ("dtype", "size"), long_but([("float32", 1e-6), ("float64", 1e-15)], ("float32", 1e-6))
)
@pytest.mark.parametrize("queries", long_but([4, 40, 150, 300], 40))
def test_a_head_whose_values_are_small(dtype, size, queries):
    q, k, v = draw(0, *[(1, 3, queries, 16)] * 3, dtype=dtype)
    v[:, 1] *= size
    keep = np.tri(queries, dtype=bool)
    right = plain(q, k, v, keep)
    wrong = right.copy()
    wrong[:, 1] = plain(q, k, v, keep, scale=1)[:, 1]
    assert ask((q, k, v), right, dtype, causal=True).passed
    report = ask((q, k, v), wrong, dtype, causal=True)
    (verdict,) = report.verdicts
    assert not verdict.passed
    assert verdict.stretch.head == 1
    assert named(report) == {"unscaled"}
    assert report.diagnosis.explanations[0].fails_at.startswith("head 0")
    assert "only head 1 is wrong" in report.diagnosis.findings
    first, behind = verdict.stretch.queries
    assert f"at batch 0, head 1, queries {first} to {behind - 1}\n" in str(report)


def test_numbers_of_0_beside_others():
    q, k, v = draw(0, *[(1, 2, 30, 8)] * 3)
    v[:, 1] = 0
    found = plain(q, k, v)
    found[:, 1] = 1e-11
    assert ask((q, k, v), found).passed


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float32"))
def test_rows_of_nothing_at_the_end_of_a_long_problem(dtype):
    """Their numbers are small; the first ones, which are right, are large."""
    q, k, v = (array.astype(dtype) for array in draw(0, *[(1, 2, 150, 16)] * 3))
    wrong = plain(q, k, v, np.tri(150, dtype=bool))
    wrong[:, :, 120:] = 0
    report = ask((q, k, v), wrong, dtype, causal=True)
    assert named(report) == {"rows_not_written"}
    assert report.diagnosis.tried == 1
    assert "60 of 300 rows are 0" in str(report)
    wrong[:, :, 75] += 1  # then that is not all
    report = check(wrong.astype(dtype), pose(q, k, v, causal=True), time_limit=0.3)
    assert "60 of 300 rows are 0" not in str(report)


@pytest.mark.parametrize("shape", [(1, 8, 1, 32), (2, 4, 5, 32)])
@pytest.mark.parametrize("factor", [0, 0.5])
def test_a_quiet_head_in_decoding_of_16_bits(shape, factor):
    """So few queries: none is left out, but each may move as far as rounding moves it."""
    q, k, v = draw(0, shape, *[(*shape[:2], 128, 32)] * 2)
    v[:, -1] /= 256
    q, k, v = (array.astype("f2") for array in (q, k, v))
    right = plain(q, k, v)
    assert ask((q, k, v), right, "float16").passed
    right[:, -1] *= factor
    report = ask((q, k, v), right, "float16", diagnose=False)
    assert not report.passed
    assert report.verdicts[0].stretch.head == shape[1] - 1


@pytest.mark.parametrize("seed", range(4))
def test_each_head_of_a_decoding_step_is_judged_by_itself(seed):
    """What a head that attends sharply earns would hide that others lose the newest key."""
    random = np.random.default_rng(seed)
    shapes = (1, 8, 1, 64), (1, 8, 300, 64), (1, 8, 300, 64)
    q, k, v = (random.normal(size=shape) for shape in shapes)
    q *= np.array([6, 6, 6, 1, 1.5, 6, 6, 6]).reshape(1, 8, 1, 1)
    q, k, v = (array.astype("f2") for array in (q, k, v))
    right, stale = plain(q, k, v), plain(q, k[:, :, :-1], v[:, :, :-1])
    # What is right is right in each head, and a mistake that one shows is not hidden by others.
    for output in (right, stale):
        heads = [
            ask([x[:, h : h + 1] for x in (q, k, v)], output[:, h : h + 1], "f2", diagnose=False)
            for h in range(8)
        ]
        whole = ask((q, k, v), output, "float16", diagnose=False)
        assert whole.passed is all(head.passed for head in heads) is (output is right)
