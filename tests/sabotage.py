"""Break the code once for each promise, and demand that the named test fails.

    python tests/sabotage.py            all of tests/sabotage.toml
    python tests/sabotage.py WORD ...   those whose promise or break holds one of these words

An entry holds a promise of `tests/PROMISES.md`, how it is broken, a file, a text that occurs once
in it, what replaces the text, and the test that must fail. The checkout is copied to a temporary
folder, so it is never changed. First all tests run there without any change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("attncli", "tests", "samples", "docs", ".github")


class Break(NamedTuple):
    """One way to break a promise; ``needs`` is a package without which the test is skipped."""

    promise: str
    how: str
    file: str
    old: str
    new: str
    test: str
    needs: str = "pytest"


def breaks() -> list[Break]:
    """Return all entries of ``tests/sabotage.toml``."""
    table = tomllib.loads((ROOT / "tests/sabotage.toml").read_text(encoding="utf-8"))
    return [Break(**entry) for entry in table["break"]]


def copied(folder: Path) -> None:
    """Copy the checkout, so that tests run against the copy."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, folder)


def passes(folder: Path, *tests: str) -> bool:
    """Run tests in a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "-m", "not long", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        check=False,
        text=True,
    )
    if ran.returncode not in (0, 1) or (ran.returncode and len(tests) > 1):
        raise SystemExit(f"without a break:\n{ran.stdout[-3000:]}{ran.stderr[-1000:]}")
    return ran.returncode == 0


def notices(one: Break, folder: Path) -> bool:
    """Return whether the test fails while the code is broken."""
    path = folder / one.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(one.old, one.new), encoding="utf-8")
    try:
        return text.count(one.old) == 1 and not passes(folder, one.test)
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Try all entries, or those that are named, and return how many failed."""
    words = sys.argv[1:] or [""]
    named = [one for one in breaks() if any(w in f"{one.promise} {one.how}" for w in words)]
    chosen = [one for one in named if find_spec(one.needs)]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        copied(Path(name))
        passes(Path(name), "tests/test_oracle.py", *sorted({one.test for one in chosen}))
        for one in chosen:
            good = notices(one, Path(name))
            failed += not good
            print(f"{'noticed' if good else 'MISSED '}  {one.promise}: {one.how} ({one.test})")
    left = f", {len(named) - len(chosen)} left out" if len(chosen) < len(named) else ""
    print(f"{len(chosen) - failed} of {len(chosen)} noticed{left}")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
