"""When the search ends: once an explanation is complete, and what may still tie with it."""

import numpy as np
import pytest
from referee_numpy import ask, draw, named, plain
from threadpoolctl import threadpool_info, threadpool_limits

from attncli import pose, solve
from attncli.referee import check, fit
from attncli.referee.evaluation import evaluate

SHAPE = (12, 8)
I, J = np.indices((12, 12))
CAUSAL = J <= I


@pytest.fixture(scope="module")
def everything():
    """Return how much is tried where nothing explains the file."""
    q, k, v = draw(0, *[SHAPE] * 3)
    noise = plain(q, k, v, CAUSAL) * (1 + 0.1 * draw(1, SHAPE)[0])
    return ask((q, k, v), noise, causal=True).diagnosis.tried


def test_two_mistakes_that_explain_everything_end_the_search(everything):
    q, k, v = draw(0, *[SHAPE] * 3)
    report = ask((q, k, v), plain(q, k, v, scale=1), causal=True)
    assert named(report) == {"unscaled+causal_missing"}
    assert report.diagnosis.tried < 0.7 * everything


def test_what_shares_one_of_two_mistakes_may_still_tie():
    q, k, v = draw(0, *[SHAPE] * 3)
    unscaled = plain(q, k, v, CAUSAL, scale=1)
    report = ask((q, k, v), unscaled, causal=True, window=(4, 0))
    assert named(report) == {"unscaled+window_ignored", "unscaled+window_right_only"}


def test_within_a_tolerance_that_is_given_a_better_fit_is_looked_for(everything):
    """What is left may be more than rounding, so that all others are tried, too."""
    q, k, v = draw(0, *[SHAPE] * 3)
    wrong = plain(q, k, v, scale=1).astype("f4")
    report = check(wrong, pose(q, k, v, causal=True), atol=1e-6, time_limit=100)
    assert named(report) == {"unscaled+causal_missing"}
    assert report.diagnosis.tried > 0.8 * everything


@pytest.mark.parametrize("shape", [(1, 2, 6, 8), (2, 4, 64, 16)])
def test_rows_of_nan_are_told_without_trying_two_mistakes(shape):
    q, k, v = draw(0, *[shape] * 3)
    i, j = np.indices((shape[2],) * 2)
    wrong = plain(q, k, v, j <= i)
    wrong[0, 1, [2, 4]] = np.nan
    report = ask((q, k, v), wrong, causal=True)
    assert named(report) == {"rows_of_nan"}
    assert report.diagnosis.tried < 1000


def test_a_mistake_in_one_head_ends_the_search(everything):
    """That the scale was forgotten there and the rest is right is soon found."""
    shape = (2, 4, 70, 16)
    q, k, v = draw(0, *[shape] * 3)
    i, j = np.indices((70, 70))
    wrong = plain(q, k, v, j <= i)
    wrong[:, 1] = plain(q[:, 1], k[:, 1], v[:, 1], j <= i, scale=1)
    report = ask((q, k, v), wrong, causal=True)
    assert named(report) == {"scale_by_head"}
    assert report.diagnosis.tried < 0.2 * everything


def test_the_search_multiplies_in_one_thread(monkeypatch):
    """More threads, for products so small, wait for each other where other work runs."""
    threads = set()

    def used():  # PyTorch, if another test imported it, brings libraries of its own
        libraries = (each for each in threadpool_info() if each["internal_api"] == "openblas")
        return {each["num_threads"] for each in libraries}

    def watched(recipe, **known):
        threads.update(used())
        return evaluate(recipe, **known)

    monkeypatch.setattr(fit, "evaluate", watched)
    q, k, v = draw(0)
    with threadpool_limits(2, user_api="blas"):
        before = used()
        report = check(plain(q, k, v, scale=1).astype("f4"), pose(q, k, v))
        after = used()
    assert named(report) == {"unscaled"}
    assert threads == {1}
    assert before == after


@pytest.mark.parametrize("name", ["context", "weights", "lse", "scores", "raw", "capped"])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"kv_lengths": 5}])
def test_of_a_row_too_long_to_be_computed_again_only_the_files_are_looked_at(
    name, options, monkeypatch
):
    monkeypatch.setattr("attncli.referee.case._MOST_CELLS", 4)
    q, k, v = (np.random.default_rng(0).normal(size=(n, 4)).astype("f4") for n in (1, 9, 9))
    problem = pose(q, k, v, **options)
    right = getattr(solve(problem, (name,)), name)
    report = check({name: right + np.float32(0.5)}, problem)
    assert not report.passed
    assert report.diagnosis.explanations == ()
    assert "need too much of the problem at once" in str(report)


def test_errors_of_very_many_queries_are_looked_at_in_a_few():
    """Of each, the directions of dropout take 20 µs."""
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(n, 2)).astype("f4") for n in (25_000, 3, 3))
    noise = random.normal(size=q.shape).astype("f4")
    looked = []
    eigh = np.linalg.eigh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.linalg, "eigh", lambda matrix: looked.append(1) or eigh(matrix))
        check({"context": noise}, pose(q, k, v), time_limit=0.2)
    assert 0 < len(looked) < 20_000
