"""What the default run leaves to the long one."""

from itertools import combinations, product

import pytest
from pairs import beyond_pairs


def cases(*sizes):
    return [dict(zip("abcd", values, strict=False)) for values in product(*map(range, sizes))]


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 4, 5), (3, 3, 3, 3), (5, 1, 2, 4)])
def test_every_two_values_run_together(sizes):
    all_of_them = cases(*sizes)
    left = beyond_pairs(all_of_them)
    kept = [case for at, case in enumerate(all_of_them) if at not in left]
    for first, second in combinations("abcd"[: len(sizes)], 2):
        together = {(case[first], case[second]) for case in all_of_them}
        assert {(case[first], case[second]) for case in kept} == together
    assert len(kept) <= len(all_of_them) * 3 / 4


def test_two_parameters_are_all_run():
    assert beyond_pairs(cases(5, 7)) == []


def test_what_is_given_together_is_one_parameter():
    given = [{**case, "c": case["b"]} for case in cases(5, 7)]
    assert beyond_pairs(given) == []
