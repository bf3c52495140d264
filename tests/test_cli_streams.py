"""Real processes: exit codes 130 and 141, full disks, closed streams, poor encodings."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from piping import piped
from process import COMMAND, ROOT, Run, environment, long_but, run
from together import run_together

FULL = Path("/dev/full")
TUTORIAL = str(ROOT / "samples/tutorial/problem.yaml")
JSON, NPZ = f"compute {TUTORIAL} -f json", f"compute {TUTORIAL} -f npz"


def shell(script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell script in which "$@" is the program."""
    return subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment(**environ),
        check=False,
        timeout=60,
    )


# --- interrupted, and left alone ----------------------------------------------------------


def test_ctrl_c_is_130_and_leaves_no_file(folder: Path) -> None:
    # Context alone takes many seconds but little memory.
    np.save("x.npy", np.ones((80_000, 64), np.float32))
    busy = subprocess.Popen(
        [*COMMAND, "compute", *["x.npy"] * 3, "--show", "context", "--save", "c.npz"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(1.0)
    busy.send_signal(signal.SIGINT)
    out, err = busy.communicate(timeout=30)
    assert busy.returncode == 130
    assert out == b""
    assert b"Traceback" not in err
    assert [path.name for path in folder.iterdir()] == ["x.npy"]


def test_memory_that_is_missing_is_one_error_line(folder: Path, attncli: Run) -> None:
    np.save("x.npy", np.ones((3_000_000, 1)))  # weights of 72 TB
    ran = attncli("compute", "x.npy", "x.npy", "-f", "json")
    error, hint = ran.messages
    assert (ran.code, error) == (2, "error: there is not enough memory for this problem")
    assert hint.startswith("hint: a part of it needs less")


READ = [("table", ""), ("json", ""), ("csv", ""), ("npy", ""), ("npy", "1")]


@pytest.mark.parametrize(("kind", "unbuffered"), long_but(READ, READ[1], READ[4]))
def test_a_reader_that_goes_away_is_141_and_silent(
    kind: str, unbuffered: str, folder: Path
) -> None:
    # More than a pipe holds.
    np.save("x.npy", np.ones((200, 8)))
    words = ["compute", "x.npy", "x.npy", "--max-cols=64", "--max-rows=0", "--show=weights"]
    done = shell(
        '"$@" | head -c 10 >/dev/null; echo "${PIPESTATUS[0]}"',
        *words,
        "-f",
        kind,
        PYTHONUNBUFFERED=unbuffered,
    )
    assert done.stdout.decode().split() == ["141"]
    assert done.stderr == b""


# --- streams that are closed or full ------------------------------------------------------


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_a_full_disk_behind_stderr_changes_no_exit_code() -> None:
    with FULL.open("wb") as full:
        assert run("compute", "nope.csv", stderr=full).code == 2
        assert run("compute", TUTORIAL, "-f", "csv", stderr=full).code == 0


# --- encodings ----------------------------------------------------------------------------

POOR = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


def test_ascii_output_escapes_what_it_cannot_show(tutorial: Path) -> None:
    files = "q.csv k.csv --key-labels a,[pad],中文"
    for ran in run_together(
        [f"compute {files}", f"heatmap {files}"], env=environment(**POOR)
    ).values():
        assert ran.good().out.isascii()
        assert b"0.47" in ran.out


def test_results_may_be_added_to_a_file(tutorial: Path) -> None:
    Path("w.npz").write_bytes(b"before")
    done = shell('"$@" compute q.csv k.csv v.csv --format npz >> w.npz')
    assert (done.returncode, done.stderr) == (0, b"")
    data = Path("w.npz").read_bytes()
    assert data.startswith(b"before")
    with np.load(io.BytesIO(data.removeprefix(b"before"))) as found:
        assert found["weights"].shape == (2, 3)


# --- documents, whatever the terminal's encoding ------------------------------------------


DOCUMENTS = [
    "explain p.yaml -f json",
    "explain p.yaml -f markdown",
    "check p.yaml --expect c.csv -f json",
    "info é.csv -f json",
    "compute p.yaml -f json",
]


# Latin-1 lacks letters too, and has others in other bytes.
@pytest.mark.parametrize("encoding", long_but(["ascii", "latin-1"], "latin-1"))
def test_documents_are_utf_8_in_any_locale(encoding: str, folder: Path, attncli: Run) -> None:
    Path("p.yaml").write_text(
        "tokens: [é, 🙂]\nquery: [[1, 2], [1, 0]]\nkey: [[1, 2], [1, 0]]\nvalue: [[1], [2]]\n",
        "utf-8",
    )
    Path("c.csv").write_text("1\n2\n")
    Path("é.csv").write_text("1,2\n")
    usual = {line: attncli(*line.split()) for line in DOCUMENTS}
    assert all("é" in ran.text for ran in usual.values())
    env = environment(PYTHONUTF8="0", PYTHONIOENCODING=encoding)
    for line, ran in run_together(DOCUMENTS, env=env).items():
        assert (ran.code, ran.out) == (usual[line].code, usual[line].out)


@pytest.mark.parametrize(
    "text", ['{"query": [[1, 2]], "key": [[1, 2]]}', "query: [[1, 2]]\nkey: [[1, 2]]"]
)
def test_a_byte_order_mark_before_a_problem_on_standard_input(text: str, attncli: Run) -> None:
    with piped(b"\xef\xbb\xbf" + text.encode()):
        assert attncli("compute", "-f", "json").good().json["weights"] == [[1.0]]


def test_standard_input_may_be_a_socket(folder: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"[[1]]")
        ours.shutdown(socket.SHUT_WR)
        done = subprocess.run(
            [*COMMAND, "info"], stdin=theirs, capture_output=True, env=environment(), check=False
        )
    assert done.returncode == 0, done.stderr
