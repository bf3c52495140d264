"""Long work: what is not shown takes no memory, and who looks on sees how far it is."""

import io
import os
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from process import environment, long_but, measured
from terminal import drained

from attncli import pose
from attncli.cli import terminal
from attncli.summaries import maps
from attncli.view.pictures.making import picture_of
from attncli.view.pictures.picture import Look

# The program with another patience: the work of a test is short.
PROGRAM = """
import sys
from attncli.cli import main, terminal
terminal._PATIENCE = float(sys.argv.pop(1))
main()
"""


@pytest.fixture
def files(tmp_path):
    def made(length, width=8):
        arrays = np.random.default_rng(0).standard_normal((3, length, width), np.float32)
        for name, array in zip("qkv", arrays, strict=True):
            np.save(tmp_path / f"{name}.npy", array)
        return [str(tmp_path / f"{name}.npy") for name in "qkv"]

    return made


def test_the_default_tables_of_32768_tokens_take_less_than_300_mb(files):
    # All weights would be 4.3 GB.
    ran = measured("compute", *files(32_768), most_seconds=60, most_megabytes=300)
    assert ran.code == 0
    assert ran.text.count("32,704 more queries") == 2


# The tokens, the words, and the megabytes that are too few for drawing and all weights together.
DRAWN = [(8192, [], 300), (6144, ["--dpi", "30"], 200)]


@pytest.mark.parametrize(("length", "more", "most"), long_but(DRAWN, DRAWN[1]))
def test_a_heatmap_of_a_long_problem_takes_little_memory(files, tmp_path, length, more, most):
    out = str(tmp_path / "w.png")
    words = "heatmap", *files(length)[:2], "--causal", "--out", out, *more
    assert measured(*words, most_seconds=60, most_megabytes=most).code == 0


def told(patience, *words, command="compute", code=0):
    """Return the results of a run, and what it showed on a terminal as stderr."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(patience), command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment(),
    ) as process:
        os.close(theirs)
        shown = drained(ours).decode()
        os.close(ours)
        results = process.stdout.read().decode()
    assert process.returncode == code
    return results, shown


def test_a_terminal_shows_how_far_the_work_is_and_how_long_it_takes(files):
    results, shown = told(0, *files(600))
    assert re.search(r"computing.*%.*[-\d]:[-\d]{2}:[-\d]{2}", shown)
    assert results.startswith("weights")
    assert "computing" not in results


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_terminal_shows_that_a_mistake_is_looked_for(files, tmp_path, quiet):
    noise = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    np.save(tmp_path / "noise.npy", noise)
    words = *files(64), "--expect", str(tmp_path / "noise.npy"), "--time-limit", "0.5", *quiet
    results, shown = told(0, *words, command="check", code=1)
    looked = re.search(r"a mistake is looked for, for 0\.5 s at most \x1b.*0:00:0", shown)
    assert bool(looked) is not bool(quiet)
    assert results.startswith("context: MISMATCH")
    assert "looked for" not in results


HEADS = [[], ["--heads", "2"], ["--heads", "2", "--average-heads"]]


@pytest.mark.parametrize("heads", long_but(HEADS, HEADS[0], HEADS[2]))
def test_so_does_a_heatmap(files, heads, monkeypatch):
    results, shown = told(0, *files(1000)[:2], *heads, command="heatmap")
    assert re.search(r"computing.*%.*[-\d]:[-\d]{2}:[-\d]{2}", shown)
    assert "computing" not in results
    # It is told of each block of rows once, the last with all of them done.
    asked = []
    monkeypatch.setattr(maps, "_CELLS", 50)
    x = np.ones((3, 10, 10))
    drawn = maps.Computed(pose(x, x, layout="hsd"))
    if "--average-heads" in heads:
        drawn = maps.Mean(drawn)
    picture_of(drawn, Look(), progress=lambda *done: asked.append(done))
    rows = 10 * drawn.shape[1]
    assert asked == [(done, rows) for done in range(5, rows + 1, 5)]


@pytest.mark.parametrize(("patience", "more"), [(0, ["--quiet"]), (1, [])], ids=["quiet", "short"])
def test_no_bar_where_none_is_wanted(files, patience, more):
    assert told(patience, *files(600), *more)[1] == ""


def test_a_bar_that_is_closed_gives_the_cursor_back(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "_PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    for words in ({}, {"counted": False}):
        with terminal.progress_bar(**words, quiet=False) as update:
            time.sleep(0.2)
            update(1, 2)
    text = screen.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0
