"""What the referee tries where a test asks about a single mistake, or whether noise is one."""

from __future__ import annotations

import pytest
from process import long_but

from attncli.referee.search import Search

__all__ = ["one_mistake"]


# All pairs take ten times as long as all mistakes one by one.
@pytest.fixture(params=long_but(["one mistake", "and pairs"], "one mistake"))
def one_mistake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try one mistake at a time; in the long run two together, too."""
    if request.param == "one mistake":
        monkeypatch.setattr(Search, "_pairs", lambda *_, **__: [])
