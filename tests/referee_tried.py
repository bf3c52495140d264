"""What the referee tries where a test asks about a single mistake or noise, and in which slices."""

from __future__ import annotations

import pytest
from process import long_but

from attncli.referee import case, cases
from attncli.referee.search import Search

__all__ = ["one_mistake", "small_slices"]


# All pairs take ten times as long as all mistakes one by one.
@pytest.fixture(params=long_but(["one mistake", "and pairs"], "one mistake"))
def one_mistake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try one mistake at a time; in the long run two together, too."""
    if request.param == "one mistake":
        monkeypatch.setattr(Search, "_pairs", lambda *_, **__: [])


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into slices, and call too large, what has a sixteenth of the scores."""
    monkeypatch.setattr(cases, "_SMALL_CELLS", 2**11)
    monkeypatch.setattr(case, "_MOST_CELLS", 2**17)
