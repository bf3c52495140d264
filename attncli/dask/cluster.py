"""Connect to a running cluster or start a local one, check its workers, and send work to them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
from dask.callbacks import Callback

from attncli import __version__
from attncli.errors import AttnError, InputError, UsageError
from attncli.errors.text import first_few

Told = Callable[[int, int], None] | None
# Seconds for the scheduler to answer, and for all workers together.
_PATIENCE = 6
# Seconds for the first worker of a local cluster to start.
_START = 60
_SETTINGS = {
    "distributed.comm.timeouts.connect": "5s",
    # A terminal's Ctrl-C goes to all processes: this one stops the others.
    # What blocks need is imported before the first block comes.
    "distributed.worker.preload": [
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nimport attncli.dask.blocks\n"
    ],
}


@contextmanager
def running(
    scheduler: str | None, workers: int | None, files: Sequence[str] = ()
) -> Iterator[Any | None]:
    """Yield a client of the cluster; None if neither a scheduler nor workers are given.

    Parameters
    ----------
    scheduler : str or None
        The address of a running cluster.
    workers : int or None
        How many processes a local cluster has. It stops at the end of the block.
    files : sequence of str
        The files that workers read.

    Raises
    ------
    InputError
        The scheduler does not answer, or a worker cannot do the work.
    """
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None and workers is not None:
        raise UsageError("--scheduler and --workers: give one of the two")
    try:
        from distributed import Client, LocalCluster  # noqa: PLC0415 - takes half a second
    except ImportError:
        raise InputError(
            "--scheduler and --workers need Dask, which is not installed",
            hint="pip install 'attncli[dask]'",
        ) from None
    with ExitStack() as opened:
        opened.enter_context(dask.config.set(_SETTINGS))
        if scheduler is None:
            place = opened.enter_context(tempfile.TemporaryDirectory(prefix="attncli-"))
            made = LocalCluster(
                n_workers=0,
                threads_per_worker=1,
                dashboard_address=None,
                local_directory=place,
                silence_logs=50,
            )
            cluster = opened.enter_context(made)
            # Workers start while this process reads the inputs.
            cluster.scale(workers)
            client = opened.enter_context(Client(cluster))
        else:
            client = opened.enter_context(_found(Client, scheduler))
            _look_at_workers(client, [str(Path(file).resolve()) for file in files])
        yield client


def _found(kind: Any, scheduler: str) -> Any:
    try:
        return kind(scheduler, timeout=_PATIENCE)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        words = " ".join(str(error).split())
        raise InputError(
            f"the scheduler {scheduler} does not answer: {words}",
            hint="dask scheduler starts one, dask worker ADDRESS its workers",
        ) from None


def _look_at_workers(client: Any, files: Sequence[str]) -> None:
    """Refuse a cluster whose workers lack attncli, have another version, or do not see a file."""

    # A function within a function is sent as it is, and needs nothing of attncli.
    def look(paths: Sequence[str]) -> tuple[str | None, list[str]]:
        import os  # noqa: PLC0415
        from importlib import import_module  # noqa: PLC0415

        try:
            version = import_module("attncli").__version__
        except ImportError:
            return None, []
        return version, [path for path in paths if not os.path.exists(path)]  # noqa: PTH110

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.run, look, list(files), on_error="return")
        try:
            found = asked.result(_PATIENCE)
        except LateError:
            pool.shutdown(wait=False)
            raise InputError(f"workers did not answer within {_PATIENCE} seconds") from None
    if not found:
        raise InputError("the cluster has no workers", hint="dask worker ADDRESS starts one")
    for worker, answer in found.items():
        if isinstance(answer, BaseException):
            raise InputError(f"the worker {worker} failed: {answer}")
        version, missing = answer
        if version != __version__:
            own = "has no attncli" if version is None else f"has attncli {version}"
            raise InputError(
                f"the worker {worker} {own}; here it is {__version__}",
                hint="install the same version where workers run",
            )
        if missing:
            raise InputError(
                f"the worker {worker} does not see {first_few(missing)}",
                hint="put it on storage that all workers mount at the same place",
            )


def computed(collections: Sequence[Any], client: Any | None, told: Told = None) -> list[Any]:
    """Return the values of Dask collections. An error here also cancels the work on the cluster."""
    if client is None:
        with _Counted(told):
            return list(dask.compute(*collections))
    from distributed import as_completed, futures_of  # noqa: PLC0415

    try:
        client.wait_for_workers(1, timeout=_START)
    except TimeoutError:
        raise InputError(f"no worker has started within {_START} seconds") from None
    kept = client.persist(list(collections))
    futures = futures_of(list(kept))
    try:
        for number, future in enumerate(as_completed(futures), 1):
            if future.status == "error":
                future.result()
            if told is not None:
                told(number, len(futures))
        return list(client.gather(client.compute(kept)))
    except BaseException as error:
        with suppress(Exception):
            client.cancel(futures, force=True)
        if type(error).__name__ == "KilledWorker":
            raise AttnError(
                "workers died again and again at the same task",
                hint="they may lack memory: give fewer threads a worker, or smaller chunks",
            ) from None
        raise


class _Counted(Callback):  # type: ignore[misc]
    """Reports how many tasks are done, for the work of threads in this process."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self._told, self._done = told, 0

    def _posttask(
        self, _key: object, _result: object, _dsk: object, state: Any, _worker: object
    ) -> None:
        self._done += 1
        if self._told is not None:
            left = sum(len(state[name]) for name in ("waiting", "ready", "running"))
            self._told(self._done, self._done + left)
