"""Every promise of the table names its tests, and one of them notices when it is broken."""

from __future__ import annotations

import re

from sabotage import ROOT, breaks

TABLE = (ROOT / "tests/PROMISES.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (?!promise )(.+?) \| (.+) \|$", TABLE, re.MULTILINE))
# What only other machines and programs can tell.
JOBS = {promise for promise, tests in ROWS.items() if ".github" in tests}


def test_every_promise_names_tests_that_exist() -> None:
    found = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(
            r"^(?:    )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    named = set(re.findall(r"`(?:referee/)?(test_\w+\.py)::(test_\w+)`", TABLE))
    assert named - found == set()
    assert all("::test_" in tests for promise, tests in ROWS.items() if promise not in JOBS)


def test_every_promise_is_broken_and_a_test_of_it_notices() -> None:
    broken = breaks()
    assert ROWS.keys() - JOBS >= {one.promise for one in broken}
    for one in broken:
        name = re.sub(r"^tests/|::Test\w+|\[.*", "", one.test)
        assert f"`{name}`" in ROWS[one.promise], one


def test_every_break_finds_its_text_once() -> None:
    for one in breaks():
        if (file := ROOT / one.file).exists():  # a distribution of sources holds no docs
            assert file.read_text(encoding="utf-8").count(one.old) == 1, one.how
