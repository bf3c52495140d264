"""What is handed out: dependencies, wheel and sdist, completion, help, and no network."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from process import COMMAND, ROOT, environment, long_but, run
from together import run_together

from attncli.cli.commands import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TUTORIAL = [str(ROOT / "samples" / "tutorial" / f"{name}.csv") for name in "qkv"]
# Where a package is not called as what it is imported as.
CALLED = {"yaml": "pyyaml", "PIL": "pillow"}


def extras() -> set[str]:
    """Return what the extras for users, of which the tests' is none, add to the dependencies."""
    added = PROJECT["optional-dependencies"]
    lines = [line for extra in added if extra != "test" for line in added[extra]]
    return {re.split(r"[\[<>=]", line)[0] for line in lines}


def lowest() -> dict[str, str]:
    """Return the declared dependencies with their lower bounds."""
    parts = [line.partition(">=") for line in PROJECT["dependencies"]]
    return {name: bound.partition(",")[0] for name, _, bound in parts}


# --- dependencies -------------------------------------------------------------------------


def test_every_dependency_has_a_lower_bound_that_is_tested() -> None:
    assert all(lowest().values())
    pinned = ROOT / ".github" / "lowest.txt"
    if not pinned.exists():
        pytest.skip("not a checkout")
    lines = pinned.read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and line[0] != "#")
    # 2.0 is the lowest of which 2.0.0 is the first.
    padded = {
        name: f"{bound}.0" if bound.count(".") == 1 else bound for name, bound in lowest().items()
    }
    assert {name: pins.get(name) for name in padded} == padded


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, but not what they are made of, which is most of a tree."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    found = set()
    for path in (ROOT / "attncli").rglob("*.py"):
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    foreign = found - set(sys.stdlib_module_names) - {"attncli"}
    called = {CALLED.get(name, name) for name in foreign}
    assert set(lowest()) <= called
    assert called - set(lowest()) <= extras()


# --- wheel and sdist ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    build = pytest.importorskip("hatchling.build")
    folder = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        build.build_wheel(str(folder))
        build.build_sdist(str(folder))
    finally:
        os.chdir(before)
    return folder


def unwanted(name: str) -> bool:
    return any(
        part.startswith((".", "__pycache__")) or part.endswith(".pyc") for part in Path(name).parts
    )


def test_the_wheel_holds_the_package_alone(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    package = {name for name in names if name.startswith("attncli/")}
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "attncli").rglob("*.*")
        if path.suffix in (".py", ".toml", ".csv", ".html", ".css", ".js")
    }
    assert package == {*sources, "attncli/py.typed"}
    rest = {name.partition("/")[2] for name in names - package}
    assert rest == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_sdist_holds_samples_and_tests(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for folder in ("samples", "tests", "attncli"):
        files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        kept = {str(path) for path in files if not unwanted(str(path))}
        assert kept <= names, kept - names
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= names
    assert [name for name in names if unwanted(name)] in ([], [".gitignore"])


def test_the_example_works_from_the_unpacked_wheel(built: Path, folder: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall("unpacked")
    env = environment() | {"PYTHONPATH": str(folder / "unpacked")}
    where = [sys.executable, "-c", "import attncli; print(attncli.__file__)"]
    path = subprocess.run(
        where, capture_output=True, text=True, env=env, check=True, timeout=120
    ).stdout
    assert path.startswith(str(folder / "unpacked"))
    ran = run("compute", *TUTORIAL, "-f", "csv", env=env).good()
    np.testing.assert_allclose(
        [[float(cell) for cell in line.split(",")] for line in ran.text.splitlines()],
        [[2.5867507689737184, 3.5867507689737184], [3.413249231026281, 4.413249231026281]],
    )


@pytest.mark.long
def test_the_wheel_installs_with_its_dependencies(built: Path, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "fresh"], check=True, timeout=300)
    install = ["fresh/bin/pip", "install", "--quiet", str(next(built.glob("*.whl")))]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=600)
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip("no index of packages can be reached")
    assert done.returncode == 0, done.stderr
    env = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    for command in (["fresh/bin/attncli"], ["fresh/bin/python", "-m", "attncli"]):
        for words in (["compute"], ["heatmap", "--out", "w.png"], ["explain"]):
            made = subprocess.run(
                [*command, *words],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                env=env,
                check=False,
                timeout=120,
            )
            assert (made.returncode, b"0.4711" in made.stdout or words[-1] == "w.png") == (0, True)


# --- nothing but files --------------------------------------------------------------------

# Python tells an audit hook of every connection, program and unpickled name.
WATCHED = """
import sys
# Its cache of fonts is made with the help of other programs, once and for all of its uses.
import matplotlib.font_manager
FORBIDDEN = ("socket.", "urllib.", "ftplib.", "http.", "pickle.", "os.system", "os.exec",
             "os.spawn", "os.posix_spawn", "subprocess.", "ctypes.dlopen.remote", "webbrowser.")
def hook(event, arguments):
    if event.startswith(FORBIDDEN):
        sys.stderr.write(f"FORBIDDEN {event} {arguments!r}\\n")
sys.addaudithook(hook)
from attncli.cli import _run
for line in sys.argv[1:]:
    sys.argv = ["attncli", *line.split()]
    code = _run(line.split())
    sys.stderr.write(f"code {code}\\n")
"""


def test_no_network_no_other_program_and_no_pickle(tutorial: Path) -> None:
    np.save("object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez("object.npz", query=np.array([{}], dtype=object), key=np.eye(2))
    Path("x.pt").write_bytes(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.")
    Path("tag.yaml").write_text('query: !!python/object/apply:os.system ["ls"]\n')
    Path("c.csv").write_text("1,2\n3,4\n")
    lines = [
        "compute q.csv k.csv v.csv --save w.npz --save w.json",
        "heatmap q.csv k.csv --out w.png",
        "explain q.csv k.csv v.csv -f markdown",
        "check q.csv k.csv v.csv --expect c.csv --diff d.svg",
        "info w.png q.csv w.npz",
        *(f"{command} {file}" for command in ("compute", "info") for file in (
            "http://127.0.0.1:9/x.csv", "object.npy", "object.npz", "x.pt", "tag.yaml"
        )),
        "--help",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *lines],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment(),
        check=False,
        timeout=120,
    )
    assert b"FORBIDDEN" not in done.stderr, done.stderr
    codes = [int(line[5:]) for line in done.stderr.splitlines() if line.startswith(b"code ")]
    # `info` tells of objects in NPY files, whose pickles it does not read.
    assert codes == [0, 0, 0, 1, 0, 2, 2, 2, 2, 2, 2, 0, 0, 2, 2, 0]


# --- shells and help ----------------------------------------------------------------------

SCRIPTS = {
    "bash": "complete -o default -F",
    "zsh": "#compdef attncli",
    "fish": "complete --command attncli",
}


# Scripts are run below, of bash always.
@pytest.mark.parametrize("shell", long_but(SCRIPTS, "zsh", "fish"))
def test_the_script_of_each_shell_is_shown(shell: str) -> None:
    ran = run(env=environment(_ATTNCLI_COMPLETE=f"source_{shell}")).good()
    assert SCRIPTS[shell] in ran.text
    assert "_ATTNCLI_COMPLETE=complete_" + shell in ran.text


@pytest.mark.parametrize("shell", long_but(SCRIPTS, "bash"))
def test_completion_installs_in_the_home_folder(shell: str, folder: Path) -> None:
    env = environment(HOME=str(folder), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    ran = run("--install-completion", shell, env=env)
    assert ran.code == 0, ran
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert any(SCRIPTS[shell] in path.read_text() for path in written), written


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("attncli ", [*COMMANDS, "help"]),
        ("attncli compute --caus", ["--causal", "--causal-align"]),
        ("attncli compute --show stats,weights,s", ["stats,weights,scores"]),
    ],
)
def test_words_are_completed(words: str, expected: list[str]) -> None:
    env = environment(
        _ATTNCLI_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))
    )
    assert run(env=env).good().text.split() == expected


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="no bash here")
def test_bash_takes_the_script(folder: Path) -> None:
    script = run(env=environment(_ATTNCLI_COMPLETE="source_bash")).good().text
    Path("attncli").write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    Path("attncli").chmod(0o755)
    ask = "COMP_WORDS=(attncli compute --caus); COMP_CWORD=2; "
    ask += '_attncli_completion attncli; echo "${COMPREPLY[@]}"'
    env = environment(PATH=f"{folder}:{os.environ['PATH']}")
    done = subprocess.run(
        ["/bin/bash", "-c", f"{script}\n{ask}"],
        capture_output=True,
        env=env,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [b"--causal", b"--causal-align"]


def test_help_in_the_c_locale_fits_80_columns() -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "80"}
    lines = [f"{command} --help" for command in COMMANDS]
    for ran in run_together(lines, env=environment(**plain)).values():
        assert max(map(len, ran.good().text.splitlines())) <= 80


def test_the_package_runs_as_a_module_and_as_a_script(folder: Path) -> None:
    expected = run("compute", *TUTORIAL, "-f", "csv").good().out
    module, _, name = PROJECT["scripts"]["attncli"].partition(":")
    script = [
        sys.executable,
        "-c",
        f"from {module} import {name}; {name}()",
        *["compute", *TUTORIAL, "-f", "csv"],
    ]
    done = subprocess.run(
        script,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment(),
        check=True,
        timeout=120,
    )
    assert done.stdout == expected
