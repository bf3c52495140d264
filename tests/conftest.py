"""Fixtures that several files of tests share."""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from pairs import beyond_pairs
from process import Ran
from threadpoolctl import threadpool_limits

from attncli.cli import _run
from attncli.engine import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# Tests of what only POSIX systems have: signals, permissions, pseudo-terminals, pipes as files and
# limits of memory. Windows collects none of them; test_windows.py holds what is promised there.
POSIX = (
    "test_cli_inputs test_cli_long_work test_cli_streams test_cli_terminal test_docs"
    " test_engine_memory test_load_sources test_packaging test_safety_bounds test_safety_hostile"
    " test_safety_inputs test_safety_processes test_safety_signals test_safety_words"
    " test_save_files test_save_streaming test_startup test_threads"
)
if sys.platform == "win32":
    collect_ignore = [f"{name}.py" for name in POSIX.split()]


# All tests of these files have the mark, and what they import takes seconds.
WHOLE = {
    "torch": {"test_capture.py", "test_gradients_autograd.py"},
    "dask": {"test_cluster.py", "test_dask.py", "test_zarr.py"},
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which the run leaves out every test."""
    left_out = [name for name in WHOLE if f"not {name}" in config.getoption("markexpr")]
    return any(collection_path.name in WHOLE[name] for name in left_out) or None


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """Let the formulas that tests compare with use one core: each has a test running on it."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Hypothesis draws the same examples of the same code, so that a failure can be repeated; the
# long run draws others each time.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_configure(config: pytest.Config) -> None:
    """Let tests press Ctrl-C, which a shell lets its background jobs ignore, and their children."""
    if config.getoption("markexpr") != "long":
        settings.load_profile("repeatable")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Let no search for garbage go through all tests again and again: it takes some hundredths."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave cases to the long run whose parameters meet in others, two by two."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        # A case of the long run holds nothing for the others.
        late = item.get_closest_marker("long") is not None
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not late:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        for at in beyond_pairs([item.callspec.params for item in cases]):
            cases[at].add_marker("long")


@pytest.fixture(scope="module", params=["as it is", "in tiles", "in panels"])
def every_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute small problems as they are, and as long ones are, on both kinds of processors."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "as it is":
            for name in ("SCORES_OF_SHORT_HEAD", "FEW_QUERIES", "TILE_BYTES"):
                patch.setattr(plan, name, 0)
            patch.setattr(plan, "LEAST_COLUMNS", 16)
            patch.setattr(plan, "BANDED_ROWS", 8)
        if request.param == "in panels":
            patch.setattr(plan, "PANEL", 4)
            patch.setattr(plan, "tiles_in_panels", lambda: True)
        yield


@pytest.fixture(scope="module", params=["own processor", "panels"])
def processors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute as on this machine's processor, and as on one with AVX-512."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "panels":
            patch.setattr(plan, "tiles_in_panels", lambda: True)
        yield


@pytest.fixture
def tutorial(folder: Path) -> Path:
    """The tutorial problem as q.csv, k.csv and v.csv in the current folder."""
    (folder / "q.csv").write_text("1,0,1\n0,1,1\n")
    (folder / "k.csv").write_text("1,0,1\n1,1,0\n0,1,1\n")
    (folder / "v.csv").write_text("1,2\n3,4\n5,6\n")
    return folder


@pytest.fixture
def attncli(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Run a command line in this process, which takes a tenth of the time of a new one."""

    def call(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["attncli", *arguments])
        code = _run(list(arguments))
        sys.stdout.flush()
        return Ran(code, *capsysbinary.readouterr())

    return call
