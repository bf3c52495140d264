"""Every mistake of the corpus is named, and nothing else; right outputs pass."""

from __future__ import annotations

import warnings

import pytest
from referee import corpus
from referee.case import CASES, Case, judged
from referee.right import alarm

# The default run takes some fifteen seconds of a processor.
_EVERY = 24
_NOW = list(corpus.chosen())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(case.name, marks=() if at % _EVERY == 0 else pytest.mark.long)
        for at, case in enumerate(_NOW)
    ],
)
def test_the_mistake_is_named(name: str) -> None:
    see_named(CASES[name])


def see_named(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = judged(case)
    assert outcome.good, f"{outcome.word}: found {outcome.found}"


_PAIRS = corpus.pair_names(200)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if at < 3 else pytest.mark.long)
        for at, name in enumerate(_PAIRS)
    ],
)
def test_two_mistakes_are_named(name: str) -> None:
    see_named(corpus.pair(name))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first == 0 else pytest.mark.long)
        for first in range(0, 600, 20)
    ],
)
def test_right_outputs_by_others_pass(first: int) -> None:
    told = [alarm(seed) for seed in range(first, first + 20)]
    assert [words for _, words in told if words] == []


@pytest.mark.torch
def test_the_lse_of_one_query_of_a_kernel_with_16_bits_passes() -> None:
    pytest.importorskip("torch")
    assert alarm(70044, "torch flash with lse") == ("torch flash with lse", "")
