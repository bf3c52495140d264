"""Entries of a problem file that are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from attncli import load, solve
from attncli.errors import InputError, UsageError
from attncli.gather import gather

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(
        "q: [[1, 0], [0, 1]]\nk: [[1, 0], [0, 1]]\nv: [[1], [2]]\ncausal: true\nplain: true\n"
        "mask: missing.csv\n"
    )
    return str(path)


@pytest.mark.parametrize("without", ["causal,mask", "mask, causal", ("mask", "causal")])
def test_the_rules_left_out_do_not_act_and_the_others_do(problem: str, without: Any) -> None:
    weights = solve(load(problem, without=without)).weights
    e = np.e
    np.testing.assert_allclose(weights, np.array([[e, 1], [1, e]]) / (e + 1), rtol=1e-15)


def test_what_is_left_out_is_not_read(problem: str) -> None:
    with pytest.raises(InputError, match=r"missing\.csv does not exist"):
        load(problem)
    assert solve(load(problem, without="mask")).weights[0].tolist() == [1, 0]


def test_an_option_stands_in_the_place_of_the_entry(problem: str) -> None:
    assert "mask" not in gather([problem], without="mask,plain").arguments  # type: ignore[union-attr]
    assert load(problem, without="mask,plain", scale=0.25).scale == 0.25


def test_an_array_of_a_dump_is_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "p.npz")
    np.savez(path, q=np.eye(2), k=np.eye(2), v=np.eye(2), mask=np.eye(2, dtype=bool))
    assert np.all(solve(load(path, without="mask")).weights > 0)
    with pytest.raises(InputError, match="key is missing"):
        load(path, without="k")


@pytest.mark.parametrize(
    ("without", "message", "hint"),
    [
        ("casual", "found 'casual'", "did you mean causal?"),
        ("causal,", "found ''", None),
        ((1,), "found '1'", None),
        (3, "found '3'", None),
        ("bias", "p.yaml has no entry 'bias'", "it has q, k, v, causal, plain, mask"),
    ],
)
def test_no_such_entry(problem: str, without: Any, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=r"^without: ") as caught:
        load(problem, without=without)
    assert message in str(caught.value)
    assert caught.value.hint == hint


def test_without_a_problem_file_there_is_nothing_to_leave_out(tmp_path: Path) -> None:
    path = str(tmp_path / "q.npy")
    np.save(path, np.eye(2))
    for files in ((), (path,), (path, path)):
        with pytest.raises(UsageError, match="expected a problem file") as caught:
            load(*files, without="mask")
        assert caught.value.hint == "leave out the option itself"
