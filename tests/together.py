"""Several command lines in one process, for what only the first moments of a process decide."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from process import Ran, environment

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PROGRAM", "run_together"]

# All that `main` does but its signals and its end.
_LINES = """
import sys
from attncli.cli import _prepared
for line in sys.argv[1:]:
    words = line.split()
    sys.argv = ["attncli", *words]
    code = _prepared(words)
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"\\0end {code}\\0")
        stream.flush()
"""
PROGRAM = [sys.executable, "-W", "error", "-c", _LINES]


def run_together(
    lines: Iterable[str],
    *,
    env: dict[str, str] | None = None,
    command: Iterable[str] = PROGRAM,
    **more: Any,
) -> dict[str, Ran]:
    """Run command lines one after another in one process: a start takes longer than a line."""
    lines = list(lines)
    done = subprocess.run(
        [*command, *lines],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment() if env is None else env,
        check=False,
        timeout=200,
        **more,
    )
    outs, errors = (re.split(rb"\0end (\d+)\0", stream) for stream in (done.stdout, done.stderr))
    assert done.returncode == 0, done
    assert len(outs) == len(errors) == 2 * len(lines) + 1, done
    return {
        line: Ran(int(outs[2 * at + 1]), outs[2 * at], errors[2 * at])
        for at, line in enumerate(lines)
    }
