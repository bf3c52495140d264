"""Every mistake of the corpus is named, and nothing else; right outputs pass."""

from __future__ import annotations

import warnings

import pytest
from referee import corpus
from referee.case import CASES, judged

# The default run takes about half a minute of a processor.
_EVERY = 7
_NOW = list(corpus.chosen())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(case.name, marks=() if at % _EVERY == 0 else pytest.mark.long)
        for at, case in enumerate(_NOW)
    ],
)
def test_the_mistake_is_named(name: str) -> None:
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = judged(case)
    assert outcome.good, f"{outcome.word}: found {outcome.found}"
