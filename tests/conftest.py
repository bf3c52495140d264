"""Fixtures that several files of tests share."""

from __future__ import annotations

import gc
import math
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from pairs import beyond_pairs
from process import Ran
from threadpoolctl import threadpool_limits

from attncli import engine
from attncli.cli import _run
from attncli.engine import plan, schedule, strategy, sweep
from attncli.engine.plan import plan_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    import numpy.typing as npt

    from attncli.engine.parts import Block, Part
    from attncli.engine.scratch import Scratch
    from attncli.engine.tile import Rows

    Array = npt.NDArray[Any]


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


@pytest.fixture(params=[True, False], ids=["unpacked", "packed"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what is done on processors with AVX-512 and on others, whichever this machine has."""
    monkeypatch.setattr(plan, "multiplies_unpacked", lambda: request.param)
    unit = 1 / math.log(2) if request.param else 1.0
    monkeypatch.setattr(strategy, "quickest_unit", lambda _: unit)
    for module in (plan, sweep):
        monkeypatch.setattr(module, "core_cache", lambda: 2**20)


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute small problems as large ones are."""
    monkeypatch.setattr(engine, "suits_at_once", lambda _: False)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """The blocks into which problems are cut from now on."""
    blocks: list[Block] = []

    def noted(*given: Any, **more: Any) -> tuple[list[Part], int]:
        parts, columns = plan_blocks(*given, **more)
        blocks.extend({id(block): block for block, _ in parts}.values())
        return parts, columns

    monkeypatch.setattr(schedule, "plan_blocks", noted)
    return blocks


@pytest.fixture(scope="module", params=[True, False], ids=["at once", "in blocks"])
def at_once_and_in_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute small problems as they are, and again as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr(engine, "suits_at_once", lambda _: False)
        yield


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many scores each tile has that the engine computes, in turn."""
    sizes = []
    score_calls = sweep.score_calls

    def counted(rows: Rows, columns: tuple[int, int], out: Array, scratch: Scratch) -> Any:
        sizes.append(out.size)
        return score_calls(rows, columns, out, scratch)

    monkeypatch.setattr(sweep, "score_calls", counted)
    return sizes


@pytest.fixture
def threads_asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int | None]]:
    """Watch how many threads a module asks the engine for, call by call."""

    def watch(module: Any) -> list[int | None]:
        asked: list[int | None] = []
        attend = module.attend

        def counted(*words: Any, threads: int | None) -> Any:
            asked.append(threads)
            return attend(*words, threads=threads)

        monkeypatch.setattr(module, "attend", counted)
        return asked

    return watch


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
