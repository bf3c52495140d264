"""Every command as a process: streams closed, a bare environment, no place to write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process import COMMAND, ROOT, Ran, Run, environment, long_but
from together import PROGRAM, run_together

QKV = "q.csv k.csv v.csv"
# Every command, with the exit code that it has where nothing is in its way.
LINES = {
    f"compute {QKV}": 0,
    f"compute {QKV} -f npz": 0,
    f"compute {QKV} --save w.json -q": 0,
    "compute": 0,
    f"heatmap {QKV}": 0,
    f"heatmap {QKV} --out w.svg": 0,
    f"explain {QKV}": 0,
    f"check {QKV} --expect c.csv": 0,
    f"check {QKV} --expect v2.csv": 1,
    f"check {QKV} --expect v2.csv --diff w.svg": 1,
    "info q.csv": 0,
    "--help": 0,
    "--version": 0,
    "compute nope.csv": 2,
    "heatmap nope.csv": 2,
    "explain nope.csv": 2,
    "check nope.csv --expect c.csv": 2,
    "info nope.csv": 2,
}
# For what is asked many times: a line of each exit code, and one that prints nothing.
CORE = [f"compute {QKV}", f"check {QKV} --expect v2.csv", "heatmap nope.csv"]
SILENT = f"heatmap {QKV} --out w.svg"


@pytest.fixture
def problem(tutorial: Path) -> Path:
    """The tutorial's files, the context that belongs to them, and one that does not."""
    # softmax of (2, 1, 1)/√3 and (1, 1, 2)/√3, worked out by hand to 16 digits.
    (tutorial / "c.csv").write_text(
        "2.5867507689737184,3.5867507689737184\n3.413249231026281,4.413249231026281\n"
    )
    (tutorial / "v2.csv").write_text("2.5,3.5\n3.5,4.5\n")
    return tutorial


def start(line: str, script: str, **more: Any) -> Ran:
    """Run a line within a shell script in which "$@" is the program."""
    done = subprocess.run(
        ["bash", "-c", script, "bash", *more.pop("command", COMMAND), *line.split()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=more.pop("env", None) or environment(),
        check=False,
        timeout=200,
        **more,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class Usual(dict[str, Ran]):
    """What each line gives where nothing is in its way, run for the first that asks."""

    def __missing__(self, line: str) -> Ran:
        self.update(run_together(LINES))
        return self[line]


@pytest.fixture(scope="module")
def usual() -> Usual:
    return Usual()


def test_exit_codes_are_those_of_the_page(problem: Path, usual: Usual) -> None:
    found = {line: usual[line] for line in LINES}
    assert {line: ran.code for line, ran in found.items()} == LINES
    for line, ran in found.items():
        assert b"Traceback" not in ran.err
        errors = [message for message in ran.messages if message.startswith("error: ")]
        assert len(errors) == (LINES[line] == 2), ran
        # Results go to stdout, everything else to stderr.
        assert (ran.out == b"") is (LINES[line] == 2 or "--out" in line), ran


BARE = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}  # no terminal, no home, no language


@pytest.mark.parametrize(
    ("env", "lines"),
    [
        (BARE, [CORE[0], SILENT]),
        (environment(PYTHONDEVMODE="1", PYTHONUNBUFFERED="1"), CORE),
        (environment(PYTHONOPTIMIZE="2"), CORE),
    ],
    ids=["bare", "development mode", "without assertions"],
)
def test_the_surroundings_change_nothing(
    env: dict[str, str], lines: list[str], problem: Path, usual: Usual
) -> None:
    assert run_together(lines, env=env) == {line: usual[line] for line in lines}


def test_the_c_locale_changes_letters_only(problem: Path, usual: Usual) -> None:
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for line, ran in run_together(CORE, env=environment(**plain)).items():
        assert ran.code == LINES[line]
        assert ran.err == usual[line].err
        assert ran.out.isascii()


def test_a_closed_stdin_is_no_input(problem: Path, usual: Usual) -> None:
    assert start(CORE[0], '"$@" <&-') == usual[CORE[0]]


def test_a_closed_stderr_leaves_results_and_codes(problem: Path, usual: Usual) -> None:
    ran = start(CORE[1], '"$@" 2>&-')
    assert (ran.code, ran.out) == (1, usual[CORE[1]].out)


def test_a_closed_stdout_is_an_error_where_there_are_results(problem: Path) -> None:
    ran = start(CORE[1], '"$@" >&-')
    assert (ran.code, ran.messages[-1]) == (2, "error: standard output is closed")
    assert start(SILENT, '"$@" >&-').code == 0


def test_a_stdout_that_is_full_is_an_error_where_there_are_results(problem: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("the system has no /dev/full")
    ran = start(CORE[1], '"$@" >/dev/full')
    assert (ran.code, ran.messages[-1]) == (2, "error: standard output: No space left on device")


def test_a_reader_that_went_away_is_141(problem: Path, usual: Usual) -> None:
    # The reader is gone before the program starts.
    ran = start(CORE[1], 'exec 3> >(exec true); wait $!; "$@" >&3')
    assert (ran.code, ran.err) == (141, usual[CORE[1]].err)


def test_a_file_never_becomes_a_closed_stream(problem: Path, attncli: Run) -> None:
    """What a library writes to descriptor 2 must not end in the file that is being saved."""
    program = (
        "import os, pathlib, attncli.cli\n"
        "move = pathlib.Path.replace\n"
        "def noisy(*words):\n"
        "    try: os.write(2, b'noise'); os.write(1, b'noise')\n"
        "    except OSError: pass\n"
        "    return move(*words)\n"
        "pathlib.Path.replace = noisy\n"
        "attncli.cli.main()"
    )
    line = f"compute {QKV} --save context=w.csv -f csv -q"
    expected = attncli(*line.split()).good().out
    for closed in ("2>&-", "<&- >&- 2>&-"):
        Path("w.csv").unlink(missing_ok=True)
        start(line, f'"$@" {closed}', command=[sys.executable, "-c", program])
        assert Path("w.csv").read_bytes() == expected


STREAMED = {
    f"compute {QKV} --save context=/dev/stdout -q": b"2.586",
    f"compute {QKV} --save /dev/stdout -q": b'"schema"',
    f"heatmap {QKV} --out /dev/stdout": b"\x89PNG",
    f"check {QKV} --expect v2.csv --diff /dev/stdout": b"\x89PNG",
}


@pytest.mark.parametrize("line", long_but(STREAMED, next(iter(STREAMED))))
def test_standard_output_and_pipes_are_files_too(line: str, problem: Path) -> None:
    ran = start(line, '"$@" | cat')
    assert b"error" not in ran.err
    assert STREAMED[line] in ran.out
    os.mkfifo("pipe")
    piped = line.replace("/dev/stdout", "pipe")
    assert STREAMED[line] in start(piped, 'cat pipe & "$@" >/dev/null; wait').out
    assert Path("pipe").is_fifo()


# Root owns the folder too, but without this power must obey its permissions.
POWERLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
WRITING = {
    f"compute {QKV} --save w.csv -q": "cannot write w.csv",
    f"compute {QKV} --save weights=w.npy -q": "cannot write w.npy",
    f"heatmap {QKV} --out w.svg": "cannot write w.svg",
}


def test_a_folder_that_cannot_be_written_is_read_all_the_same(problem: Path, usual: Usual) -> None:
    powers = [] if os.geteuid() else POWERLESS
    if powers and start("", '"$@"', command=[*powers, "true"]).code:
        pytest.skip("root cannot give up its powers here")
    reading = [f"compute {QKV}", f"explain {QKV}"]
    expected = {line: usual[line] for line in reading}
    problem.chmod(0o555)
    env = environment(HOME="/nonexistent", TMPDIR="/nonexistent")
    try:
        found = run_together([*reading, *WRITING], env=env, command=[*powers, *PROGRAM])
    finally:
        problem.chmod(0o755)
    assert {line: found[line] for line in reading} == expected
    for line, words in WRITING.items():
        error = next(word for word in found[line].messages if word.startswith("error: "))
        assert (found[line].code, error.startswith("error: " + words)) == (2, True), found[line]
        assert "takes no new files" in error


def test_a_home_that_cannot_be_written_leaves_nothing_behind(problem: Path) -> None:
    """Without a folder for its cache matplotlib makes a temporary one, and says so."""
    Path("tmp").mkdir()
    Path("file").touch()
    env = environment(MPLCONFIGDIR=f"{problem}/file/none", TMPDIR=f"{problem}/tmp")
    ran = start(f"heatmap {QKV} --out w.png", '"$@"', env=env)
    assert (ran.code, ran.err) == (0, b"")
    assert list(Path("tmp").iterdir()) == []


def test_warnings_of_packages_are_not_errors(problem: Path) -> None:
    """Python run with -W error must not turn a deprecation somewhere into a traceback."""
    program = (
        "import warnings, numpy\n"
        "for kind in (DeprecationWarning, UserWarning, ResourceWarning):\n"
        "    kept = numpy.asarray\n"
        "    def asarray(*a, kind=kind, kept=kept, **k):\n"
        "        warnings.warn('old', kind, stacklevel=2)\n"
        "        return kept(*a, **k)\n"
        "    numpy.asarray = asarray\n"
    )
    lines = f"compute {QKV}", f"heatmap {QKV} --out w.svg", f"explain {QKV}", "info q.csv"
    for ran in run_together(lines, command=[*PROGRAM[:-1], program + PROGRAM[-1]]).values():
        assert (ran.code, ran.err) == (0, b""), ran
