"""What students on Windows do, in a process without the calls that only POSIX systems have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

# Python runs this file before the program, if its folder is on the path.
WITHOUT_POSIX = """
import os, pathlib, shutil, signal, sys
for name in (
    "fchmod", "fchown", "chown", "fstatvfs", "posix_fallocate", "sched_getaffinity", "fork",
    "register_at_fork", "mkfifo", "getuid", "geteuid", "getpgrp", "tcgetpgrp", "O_NONBLOCK",
    "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "killpg", "pread", "sendfile",
):
    if hasattr(os, name):
        delattr(os, name)
for name in (
    "SIGHUP", "SIGALRM", "SIGPIPE", "SIGTSTP", "SIGUSR1", "setitimer", "ITIMER_REAL",
    "pthread_kill", "pthread_sigmask", "siginterrupt", "alarm",
):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("resource", "fcntl", "termios", "pty", "tty", "pwd", "grp"):
    sys.modules[name] = None

# Windows itself moves and removes no file that is open.
def refuse_open(path):
    if os.name == "nt":
        return
    for link in pathlib.Path("/proc/self/fd").iterdir():
        if link.exists() and os.readlink(link) == os.path.realpath(path):
            raise PermissionError(13, "the file is open", str(path))

replace, unlink = os.replace, os.unlink
os.replace = lambda path, *rest, **named: (refuse_open(path), replace(path, *rest, **named))[1]
os.unlink = lambda path, **named: (refuse_open(path), unlink(path, **named))[1]
"""


@pytest.fixture
def run(tutorial: Path, tmp_path_factory: pytest.TempPathFactory):
    """Run a command line in such a process, in the folder of the tutorial's files."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(WITHOUT_POSIX)
    path = f"{site}{os.pathsep}{Path(__file__).parents[1]}"

    def call(*words: str, code: int = 0, encoding: str = "utf-8") -> subprocess.CompletedProcess:
        start = "import sys; from attncli.cli import main; sys.argv[0] = 'attncli'; main()"
        done = subprocess.run(
            [sys.executable, "-c", start, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": encoding},
            timeout=120,
        )
        assert done.returncode == code, done.stderr.decode(errors="replace")
        assert b"Traceback" not in done.stderr
        return done

    return call


QKV = ("q.csv", "k.csv", "v.csv")


def by_hand() -> np.ndarray:
    q, k, v = (np.loadtxt(name, delimiter=",", ndmin=2) for name in QKV)
    exponentials = np.exp(q @ k.T / np.sqrt(3))
    return exponentials / exponentials.sum(axis=1, keepdims=True) @ v


def test_files_are_saved_twice(run) -> None:
    names = ["context=c.npy", "context=c.csv", "context=c.json", "all.npz"]
    for _ in range(2):
        run("compute", *QKV, *(word for name in names for word in ("--save", name)))
    assert [path.name for path in Path().glob(".attncli*")] == []
    np.testing.assert_allclose(np.load("c.npy"), by_hand(), rtol=1e-12)
    with np.load("all.npz") as saved:
        np.testing.assert_allclose(saved["context"], by_hand(), rtol=1e-12)


def test_a_heatmap_and_a_page(run) -> None:
    run("heatmap", *QKV, "--out", "w.png")
    run("heatmap", *QKV, "--out", "w.html")
    assert Path("w.png").read_bytes().startswith(b"\x89PNG")
    assert b"<html" in Path("w.html").read_bytes()[:200].lower()


def test_check_and_its_exit_code(run) -> None:
    run("compute", *QKV, "--save", "context=c.npy")
    run("check", *QKV, "--expect", "c.npy")
    np.save("wrong.npy", np.load("c.npy") * 2)
    run("check", *QKV, "--expect", "wrong.npy", "--no-diagnose", code=1)


def test_large_weights_are_written_tile_by_tile(run) -> None:
    random = np.random.default_rng(0)
    for name in ("q", "k"):
        np.save(f"{name}.npy", random.standard_normal((3000, 4), np.float32))
    run("compute", "q.npy", "k.npy", "--save", "weights=w.npy")
    np.testing.assert_allclose(np.load("w.npy").sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    "place",
    [
        # On POSIX such a name is one of a file, with a colon and a backslash.
        pytest.param("C:\\data", marks=pytest.mark.skipif(os.name == "nt", reason="it is a place")),
        "with blank",
    ],
)
def test_names_with_drive_letters_blanks_and_members(run, place: str) -> None:
    Path(place).mkdir()
    q, k, v = (np.loadtxt(name, delimiter=",", ndmin=2) for name in QKV)
    np.savez(f"{place}/p.npz", q=q, k=k, v=v)
    members = [f"{place}/p.npz#{name}" for name in "qkv"]
    run("compute", *members, "--save", f"context={place}/c.npy")
    np.testing.assert_allclose(np.load(f"{place}/c.npy"), by_hand(), rtol=1e-12)


@pytest.mark.parametrize(
    ("command", "encoding"),
    [("compute", "cp1252"), ("heatmap", "ascii"), ("explain", "cp1252"), ("info", "ascii")],
)
def test_a_terminal_without_utf_8_gets_readable_tables(run, command: str, encoding: str) -> None:
    words = QKV if command != "info" else ("q.csv",)
    shown = run(command, *words, encoding=encoding).stdout.decode(encoding)
    assert "?" not in shown
    assert "\\u" not in shown
