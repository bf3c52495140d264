"""Runs of the program: as a real process, or, where the process is not the promise, in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COMMAND", "ROOT", "Ran", "Run", "environment", "long_but", "measured", "run"]

ROOT = Path(__file__).parent.parent
# A warning of Python's would be a line on stderr that no user can act on.
COMMAND = [sys.executable, "-W", "error", "-m", "attncli"]
# On a machine with other work; what is promised of time is asked of the processor.
_LONGEST = 200
_LOOKED_AT = (
    "PYTHONUNBUFFERED",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
    "COLORTERM",
    "TERM",
    "LC_ALL",
    # What is compiled once need not be at every start.
    "PYTHONDONTWRITEBYTECODE",
)


# A child counts the memory of who started it: so not the suite, but something small does.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss // (1024 if sys.platform == "darwin" else 1))
sys.exit(code)
"""


@dataclass(frozen=True)
class Ran:
    """What a run gave: its exit code, and the bytes on stdout and stderr."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def messages(self) -> list[str]:
        """The lines on stderr."""
        return self.err.decode().splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def good(self) -> Ran:
        """Return the run itself, after a look at its exit code and for a traceback."""
        assert self.code == 0, self
        assert b"Traceback" not in self.err
        return self


# What the fixture `attncli` is: a command line's words to what it gave.
Run = Callable[..., Ran]


def environment(**changes: str) -> dict[str, str]:
    """Return an environment in which nothing but the changes says how output looks."""
    plain = {name: value for name, value in os.environ.items() if name not in _LOOKED_AT}
    usual = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "xterm-256color"}
    return plain | usual | changes


def long_but(names: Iterable[Any], *now: Any) -> list[Any]:
    """Return parameters of which the named ones run always, and the others in the long run."""
    return [name if name in now else _later(name) for name in names]


def _later(name: Any) -> Any:
    values = name if isinstance(name, tuple) else (name,)
    return pytest.param(*values, marks=pytest.mark.long)


def run(
    *arguments: str,
    stdin: bytes | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    **more: Any,
) -> Ran:
    """Run the program as a process; stdin is a pipe with these bytes, or /dev/null."""
    source = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment() if env is None else env,
        stdout=more.pop("stdout", subprocess.PIPE),
        stderr=more.pop("stderr", subprocess.PIPE),
        timeout=_LONGEST,
        check=False,
        **({} if "stdin_file" in more else source),
        **({"stdin": more.pop("stdin_file")} if "stdin_file" in more else {}),
        **more,
    )
    return Ran(done.returncode, done.stdout or b"", done.stderr or b"")


def measured(*words: str, most_seconds: float = 4, most_megabytes: float = 500) -> Ran:
    """Run the program, and hold it to two seconds and 500 MB.

    Of a processor, whatever else the machine does, four.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _MEASURED, *COMMAND, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        check=False,
        timeout=_LONGEST,
    )
    seconds, kilobytes = ran.stdout.split()[-2:]
    assert float(seconds) < most_seconds
    assert int(kilobytes) < most_megabytes * 1000
    return Ran(ran.returncode, ran.stdout, ran.stderr)
