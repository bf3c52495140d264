"""Long work: what is not shown takes no memory, and who looks on sees how far it is."""

import os
import pty
import re
import subprocess

import numpy as np
import pytest
from process import COMMAND, environment, long_but, measured
from terminal import drained


@pytest.fixture
def files(tmp_path):
    def made(length, width=8):
        arrays = np.random.default_rng(0).standard_normal((3, length, width), np.float32)
        for name, array in zip("qkv", arrays, strict=True):
            np.save(tmp_path / f"{name}.npy", array)
        return [str(tmp_path / f"{name}.npy") for name in "qkv"]

    return made


def test_the_default_tables_of_16384_tokens_take_less_than_300_mb(files):
    # All weights would be 1.1 GB.
    ran = measured("compute", *files(16_384), most_seconds=60, most_megabytes=300)
    assert ran.code == 0
    assert ran.text.count("16,320 more queries") == 2


# The tokens, the words, and the megabytes that are too few for drawing and all weights together.
DRAWN = [(8192, [], 300), (6144, ["--dpi", "30"], 200)]


@pytest.mark.parametrize(("length", "more", "most"), long_but(DRAWN))
def test_a_heatmap_of_a_long_problem_takes_little_memory(files, tmp_path, length, more, most):
    out = str(tmp_path / "w.png")
    words = "heatmap", *files(length)[:2], "--causal", "--out", out, *more
    assert measured(*words, most_seconds=60, most_megabytes=most).code == 0


def told(*words, command="compute", code=0):
    """Return the results of a run, and what it showed on a terminal as stderr."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, command, *words],
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
    words = *files(26_000), "--show", "context", "--threads", "1"
    results, shown = told(*words)
    assert re.search(r"computing.*%.*[-\d]:[-\d]{2}:[-\d]{2}", shown)
    # A bar that is closed gives the cursor back.
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0
    assert results.startswith("context")
    assert "computing" not in results
    # Short work shows none.
    assert told(*files(64))[1] == ""


@pytest.mark.parametrize("quiet", long_but([[], ["--quiet"]], []))
def test_a_terminal_shows_that_a_mistake_is_looked_for(files, tmp_path, quiet):
    # A search that lasts two seconds also on a quick machine: a bar opens after one.
    noise = np.random.default_rng(1).standard_normal((4000, 8)).astype(np.float32)
    np.save(tmp_path / "noise.npy", noise)
    words = *files(4000), "--expect", str(tmp_path / "noise.npy"), "--time-limit", "3", *quiet
    results, shown = told(*words, command="check", code=1)
    looked = re.search(r"a mistake is looked for, for 3 s at most \x1b.*0:00:0", shown)
    assert bool(looked) is not bool(quiet)
    assert results.startswith("context: MISMATCH")
    assert "looked for" not in results
