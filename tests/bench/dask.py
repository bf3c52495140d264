"""Work in blocks beside the plain command: a table of seconds, and the bytes of a block.

    python tests/bench/dask.py [TOKENS]

131,072 tokens of width 64 unless given, one head, causal. Whole processes in turn, of which the
plain command has as many threads as there are workers. It has to run on a quiet machine; put the
table into README.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

# This file has the name of a package that it needs.
sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent]

import numpy as np  # noqa: E402
import zarr  # noqa: E402

from attncli.dask.arrays import as_lazy  # noqa: E402
from attncli.numerics.chunked import Chunked  # noqa: E402

TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 131_072
WIDTH, RUNS = 64, 3


def written(folder: Path) -> zarr.Group:
    """Write query, key and value of random numbers."""
    random = np.random.default_rng(0)
    group = zarr.open_group(folder / "layer.zarr", mode="w")
    for name in ("query", "key", "value"):
        shape = (1, 1, TOKENS, WIDTH)
        array = group.create_array(name, shape=shape, chunks=(1, 1, 16_384, WIDTH), dtype="f4")
        array[...] = random.standard_normal(shape, np.float32)
        np.save(folder / f"{name}.npy", array[...])
    return group


def seconds(folder: Path, *words: str) -> float:
    """Return how long one run takes."""
    command = [sys.executable, "-m", "attncli", "compute", "--causal", "--quiet", *words]
    start = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        group = written(folder)
        plain = [*(f"{n}.npy" for n in ("query", "key", "value")), "--format", "npy"]
        save = "--save", "context=out.zarr"
        rows: dict[tuple[str, int], list[float]] = {}
        for _ in range(RUNS):
            for count in (1, 2):
                with (folder / "plain.npy").open("wb") as out:
                    start = time.perf_counter()
                    command = [sys.executable, "-m", "attncli", "compute", "--causal", "--quiet"]
                    threads = ["--show", "context", "--threads", str(count)]
                    subprocess.run([*command, *plain, *threads], check=True, cwd=folder, stdout=out)
                    rows.setdefault(("plain", count), []).append(time.perf_counter() - start)
                took = seconds(folder, "layer.zarr", *save, "--workers", str(count))
                rows.setdefault(("workers", count), []).append(took)
        print("| command | cores | seconds | beside plain |\n|---|---|---|---|")
        for (what, count), took in rows.items():
            best = min(took)
            print(f"| {what} | {count} | {best:.1f} | {best / min(rows['plain', count]):.2f} |")
        rows, keys = (
            as_lazy(Chunked(group[name]), "bhsd", share).chunksize[2]
            for name, share in (("query", 1), ("key", None))
        )
        read, sent = (rows + 2 * keys) * WIDTH * 4, rows * (WIDTH + 1) * 4
        print(f"\nA block has {rows:,} queries and {keys:,} keys: {read / 1e6:.1f} MB are read,")
        print(f"and {sent / 1e6:.1f} MB of context and lse are written or sent to be merged.")


if __name__ == "__main__":
    main()
