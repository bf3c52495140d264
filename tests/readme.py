"""The blocks of the README: what they run, and what that prints now.

    python tests/readme.py          writes the outputs into the README

A ``console`` block holds commands after ``$``; what they print follows them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def console_blocks(text: str) -> list[str]:
    """Return the inside of each console block."""
    return _CONSOLE.findall(text)


def commands(block: str) -> list[str]:
    """Return the commands of a block."""
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def run(
    command: str, folder: str, *, errors: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run a shell command of the README with the samples at hand."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("COLUMNS", None)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def played(
    block: str, folder: str, run: Callable[..., subprocess.CompletedProcess[str]] = run
) -> str:
    """Return the block with what its commands print now."""
    lines = []
    for command in commands(block):
        # One stream, as in a terminal: what is said first stands first.
        result = run(command, folder, errors=subprocess.STDOUT)
        output = result.stdout
        if result.returncode == 2:
            raise AssertionError(f"{command}: {output}")
        lines.append(f"$ {command}\n{output}")
    text = "".join(part if part.endswith("\n") else part + "\n" for part in lines)
    text = re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n\n+(\$|$(?![\r\n]))", r"\n\1", text)


def workplace() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that holds the samples and the data of the tests, and nothing else."""
    folder = tempfile.TemporaryDirectory()
    for data in ("samples", "tests/data"):
        place = Path(folder.name) / data
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(ROOT / data)
    return folder


def main() -> None:
    """Write what the commands print into the README."""
    with workplace() as folder:
        text = README.read_text(encoding="utf-8")
        text = _CONSOLE.sub(lambda found: f"```console\n{played(found[1], folder)}```", text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
