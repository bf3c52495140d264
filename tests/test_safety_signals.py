"""Ended by a signal at any moment, every output is the old file or the new one."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from process import COMMAND, Ran, environment, long_but

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QKV = "q.csv k.csv v.csv"
OLD = b"the old file"
# On a machine with other work; shorter than the program would wait by itself.
LONGEST = 200
# Every way to a file: held results, a streamed one, a picture, a difference.
OUTPUTS = {
    "w.npz": f"compute {QKV} --save w.npz -q",
    "w.json": f"compute {QKV} --save w.json -q",
    "w.npy": "compute x.npy x.npy --save weights=w.npy --show lse",
    "w.png": f"heatmap {QKV} --out w.png",
    "w.pdf": f"check {QKV} --expect v2.csv --diff w.pdf",
}
# The program, which stops for a while when the temporary file is complete but not yet moved.
SLOW = """
import os, sys, time
from attncli.cli import main
PATIENCE = 30_000
def wait(descriptor):
    sys.stderr.write("now\\n")
    sys.stderr.flush()
    for _ in range(PATIENCE):
        time.sleep(0.01)  # in short: a signal between two steps waits for the end of a sleep
os.fsync = wait
main()
"""


# Not at the first file, but at the second.
SECOND = """
turns = []
def second(descriptor):
    turns.append(descriptor)
    if len(turns) == 2:
        wait(descriptor)
os.fsync = second
"""


@pytest.fixture
def problem(tutorial: Path) -> Path:
    (tutorial / "v2.csv").write_text("1,2\n3,4\n")
    # 17 million weights: more than are held in memory where a file takes them.
    np.save(tutorial / "x.npy", np.ones((4200, 8), np.float32))
    return tutorial


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Let SIGHUP end what is started here, also where the tests run under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def begin(line: str, command: list[str] = COMMAND) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*command, *line.split()],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def temporary() -> list[str]:
    return [path.name for path in Path().iterdir() if path.name.startswith(".")]


ENDS = [(name, signal.SIGTERM) for name in OUTPUTS]
ENDS += [("w.npy", signal.SIGINT), ("w.json", signal.SIGHUP)]


@pytest.mark.parametrize(("name", "sent"), long_but(ENDS, ENDS[0], *ENDS[5:]))
def test_a_signal_leaves_the_old_file_and_no_other(
    name: str, sent: signal.Signals, problem: Path
) -> None:
    Path(name).write_bytes(OLD)
    with begin(OUTPUTS[name], [sys.executable, "-c", SLOW]) as running:
        while running.stderr.readline() not in {b"now\n", b""}:
            pass
        assert len(temporary()) == 1
        running.send_signal(sent)
        # As when a session closes: the second must not disturb the tidying up.
        running.send_signal(signal.SIGHUP)
        running.send_signal(signal.SIGTERM)
        _, messages = running.communicate(timeout=LONGEST)
    # Two that wait at once come in the order of their numbers.
    assert running.returncode - 128 in {sent, signal.SIGHUP, signal.SIGTERM}
    assert messages == b""
    assert temporary() == []
    assert Path(name).read_bytes() == OLD


TOLD = [("w.npz", sent) for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
TOLD += [("w.pdf", signal.SIGHUP)]


@pytest.mark.parametrize(("name", "sent"), long_but(TOLD, *TOLD[:3]))
def test_the_exit_code_tells_the_signal(name: str, sent: signal.Signals, problem: Path) -> None:
    with begin(OUTPUTS[name], [sys.executable, "-c", SLOW]) as running:
        running.stderr.readline()
        running.send_signal(sent)
        assert running.wait(LONGEST) == 128 + sent


def test_a_signal_that_the_parent_ignores_is_ignored(problem: Path) -> None:
    """nohup and background jobs of a shell rely on it."""
    program = SLOW.replace("30_000", "40")
    script = 'trap "" HUP INT; exec "$@"'
    command = ["bash", "-c", script, "bash", sys.executable, "-c", program]
    with begin(OUTPUTS["w.npz"], command) as running:
        running.stderr.readline()
        running.send_signal(signal.SIGHUP)
        running.send_signal(signal.SIGINT)
        assert running.wait(LONGEST) == 0
    assert Path("w.npz").exists()


def whole(path: Path) -> bool:
    data = path.read_bytes()
    ends = {".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF\n", ".json": b"}\n"}
    if path.suffix in ends:
        return data.endswith(ends[path.suffix])
    # NumPy reads to the end of what the header promises.
    found = np.load(path)
    return bool(np.allclose(found, 1 / 4200) if path.suffix == ".npy" else dict(found))


@pytest.mark.parametrize("name", long_but(OUTPUTS, "w.npz"))
def test_killed_at_any_moment_the_file_is_old_or_new(name: str, problem: Path) -> None:
    """SIGKILL cannot be answered: a temporary file may stay, half a result may not."""
    Path(name).write_bytes(OLD)
    with begin(OUTPUTS[name], [sys.executable, "-c", SLOW]) as running:
        running.stderr.readline()
        running.kill()
    assert Path(name).read_bytes() == OLD
    chance = random.Random(name)
    for _ in range(2):
        with begin(OUTPUTS[name]) as running:
            time.sleep(chance.uniform(0.1, 0.5))
            running.kill()
        assert running.returncode in {-signal.SIGKILL, 0, 1}
        assert Path(name).read_bytes() == OLD or whole(Path(name))


@pytest.mark.parametrize("name", long_but(OUTPUTS, "w.npy"))
def test_ended_at_any_moment_nothing_else_is_left(name: str, problem: Path) -> None:
    chance = random.Random(name)
    for sent in (signal.SIGTERM, signal.SIGINT):
        with begin(OUTPUTS[name]) as running:
            # Before that Python itself is starting, as on a busy machine, and ends by the signal.
            time.sleep(chance.uniform(0.2, 0.5))
            running.send_signal(sent)
            _, messages = running.communicate(timeout=LONGEST)
        assert b"Traceback" not in messages or b"import runpy" in messages
        assert temporary() == []
        assert not Path(name).exists() or whole(Path(name))


def test_two_saves_appear_together(problem: Path) -> None:
    """The first is complete when the second is interrupted, but neither is there."""
    program = SLOW.replace("os.fsync = wait", SECOND)
    line = f"compute {QKV} --save a.npz --save b.npz -q"
    with begin(line, [sys.executable, "-c", program]) as running:
        running.stderr.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait(LONGEST) == 143
    assert not Path("a.npz").exists()
    assert not Path("b.npz").exists()
    assert temporary() == []


@pytest.mark.parametrize("name", long_but(OUTPUTS, *set(OUTPUTS) - {"w.pdf"}))
def test_an_ordinary_error_after_the_work_leaves_no_temporary_file(
    name: str, problem: Path, attncli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    Path(name).write_bytes(OLD)
    ran = attncli(*OUTPUTS[name].split())
    assert ran.code == 2
    assert f"error: cannot write {name}: no space left on device" in ran.err.decode()
    assert Path(name).read_bytes() == OLD
    assert temporary() == []
