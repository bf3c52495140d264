"""What a run imports: start-up is most of the time of a small problem."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from process import environment

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = {
    "numpy",
    "rich",
    "matplotlib",
    "yaml",
    "safetensors",
    "pydantic",
    "threadpoolctl",
    "orjson",
}
# The program ends by os._exit, so what it imported is told just before.
SCRIPT = """
import os, sys
leave = os._exit
def tell(code):
    print(*sorted(sys.modules), file=sys.stderr, flush=True)
    leave(code)
os._exit = tell
from attncli.cli import main
main()
"""
SMALL = ["compute", "q.csv", "k.csv"]


def imported(*arguments: str, cwd: Path | None = None) -> set[str]:
    """Return the packages of HEAVY that a run imported."""
    return {name.partition(".")[0] for name in modules(*arguments, cwd=cwd)} & HEAVY


def modules(*arguments: str, cwd: Path | None = None) -> set[str]:
    """Return all that a run imported."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = set(done.stderr.decode().splitlines()[-1].split())
    assert "typer" in found
    return found


@pytest.mark.parametrize("words", ["--help", "--version", "compute --help", "heatmap --help"])
def test_help_imports_no_heavy_package(words: str) -> None:
    assert imported(*words.split()) == set()


def test_machine_formats_import_no_tables_and_no_pictures(tutorial: Path) -> None:
    words = ["compute", "q.csv", "k.csv", "v.csv", "--format", "json", "--save", "w.npz"]
    assert imported(*words) - {"threadpoolctl"} == {"numpy"}


def test_nothing_of_gradients_is_imported_where_none_is_asked_for(tutorial: Path) -> None:
    backward = {"attncli.engine.backward", "attncli.referee.gradients.judging"}
    files = ["q.csv", "k.csv", "v.csv"]
    assert not backward & modules("compute", *files, "--save", "context=c.npy")
    assert not backward & modules("check", *files, "--expect", "c.npy")
    grad = ["--grad", "ones", "--save", "dquery=d.npy"]
    assert "attncli.engine.backward" in modules("compute", *files, *grad)
    grad = ["--grad", "ones", "--expect", "dquery=d.npy"]
    assert backward <= modules("check", *files, *grad)


def blas_threads(**settings: str) -> str:
    """Return how many threads of its own BLAS had at the end of a run."""
    told = "import threadpoolctl as t; print(*{one['num_threads'] for one in t.threadpool_info()}, "
    env = environment(**settings)
    if not settings:
        env.pop("OPENBLAS_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("print(*sorted(sys.modules), ", told), *SMALL],
        capture_output=True,
        env=env,
        check=True,
        timeout=60,
    )
    return done.stderr.decode().splitlines()[-1]


@pytest.mark.usefixtures("tutorial")
def test_blas_starts_no_threads_of_its_own_unless_told_to() -> None:
    assert blas_threads() == "1"
    assert blas_threads(OPENBLAS_NUM_THREADS="2") == "2"


def test_pictures_in_the_terminal_need_no_matplotlib(tutorial: Path) -> None:
    assert "matplotlib" not in imported("heatmap", "q.csv", "k.csv")


def test_the_package_itself_is_light() -> None:
    script = "import attncli, sys; print(sorted(set(sys.modules) & {'numpy', 'rich', 'typer'}))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, env=environment(), check=True, timeout=60)
    assert done.stdout.decode().strip() == "[]"


def test_every_public_name_can_be_had() -> None:
    import attncli

    for name in attncli.__all__:
        assert getattr(attncli, name) is not None
    assert set(dir(attncli)) >= set(attncli.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'attentoin'"):
        attncli.attentoin  # noqa: B018
