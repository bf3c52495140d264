"""The table of promises names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_promise_names_tests_that_exist() -> None:
    text = (HERE / "PROMISES.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", text))
    assert len(named) > 50
    found = {
        (path.name, name)
        for path in HERE.rglob("test_*.py")
        for name in re.findall(
            r"^(?:    )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert named - found == set()


def test_every_line_of_the_table_names_one() -> None:
    rows = [
        line
        for line in (HERE / "PROMISES.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and line != "| promise | tests |"
    ]
    assert all("::test_" in row or ".github" in row or "the job" in row for row in rows)
