"""Break the code once for each promise, and demand that the named test fails.

    python tests/sabotage.py            all of tests/sabotage.toml
    python tests/sabotage.py WORD ...   promises whose words hold one of these

Each entry names a file, a text in it that occurs once, what replaces the text, and a test. The
checkout is copied to a temporary folder, so it is never changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("attncli", "tests", "samples", "docs")


class Break(NamedTuple):
    """One way to break a promise."""

    promise: str
    file: str
    old: str
    new: str
    test: str


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


def passes(folder: Path, test: str) -> bool:
    """Run one test in a folder."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    if ran.returncode not in (0, 1):
        raise SystemExit(f"{test} cannot be run:\n{ran.stdout[-2000:]}{ran.stderr[-1000:]}")
    return ran.returncode == 0


def held(one: Break, folder: Path) -> str:
    """Return what is wrong with a promise, or an empty string."""
    path = folder / one.file
    text = path.read_text(encoding="utf-8")
    if text.count(one.old) != 1:
        return f"the text to replace occurs {text.count(one.old)} times in {one.file}"
    if not passes(folder, one.test):
        return f"{one.test} fails without any change"
    path.write_text(text.replace(one.old, one.new), encoding="utf-8")
    try:
        return f"{one.test} passes though the code is broken" if passes(folder, one.test) else ""
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Try all entries, or those that are named, and return how many failed."""
    chosen = [
        one
        for one in breaks()
        if not sys.argv[1:] or any(word in one.promise for word in sys.argv[1:])
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        copied(Path(name))
        for one in chosen:
            wrong = held(one, Path(name))
            failed += bool(wrong)
            print(f"{'FAIL' if wrong else 'held'}  {one.promise}" + f": {wrong}" * bool(wrong))
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
