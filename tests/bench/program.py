"""How long the program takes to start, to load a CSV and to save one.

    python tests/bench/program.py

Each is timed in turn with what it stands beside, so that a slow moment of the machine meets all
alike: whole processes beside ``import numpy``, reading beside np.loadtxt and writing beside
np.savetxt, of 5,000 x 512 numbers. Medians are printed, their ratio, and what it should not exceed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attncli.loading import read
from attncli.save.formats import Results, save

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 5
SAMPLES = Path(__file__).parents[2] / "samples" / "tutorial"
FILES = [str(SAMPLES / name) for name in ("q.csv", "k.csv", "v.csv")]
# The first run leaves its bytecode, as an installation does.
SETTINGS = {name: of for name, of in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def process(*words: str) -> None:
    """Run Python once."""
    command = [sys.executable, *words]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, env=SETTINGS)


def works(folder: Path) -> dict[str, tuple[float, Callable[[], object], Callable[[], object]]]:
    """Return for each work what its ratio should not exceed, ours, and what stands beside it."""
    numbers = np.random.default_rng(8).standard_normal((5000, 512))
    table, made = str(folder / "numbers.csv"), str(folder / "made.csv")
    np.savetxt(table, numbers, delimiter=",")
    attncli = partial(process, "-m", "attncli")
    bare = partial(process, "-c", "import numpy")
    loadtxt = partial(np.loadtxt, table, delimiter=",", comments=None, encoding="utf-8-sig")
    savetxt = partial(np.savetxt, made, numbers, fmt="%.18e", delimiter=",")
    picture = str(folder / "weights.png")
    return {
        "--help": (0.9, partial(attncli, "--help"), bare),
        "compute, JSON": (1.4, partial(attncli, "compute", *FILES, "--format", "json"), bare),
        "compute, table": (1.75, partial(attncli, "compute", *FILES), bare),
        "heatmap": (7.0, partial(attncli, "heatmap", *FILES[:2], "--out", picture), bare),
        "read CSV": (0.6, partial(read, table), loadtxt),
        "write CSV": (0.5, partial(save, [(made, Results({"weights": numbers}), "csv")]), savetxt),
    }


def seconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    print(f"{'work':<16}{'ours':>10}{'beside':>10}{'ratio':>7}{'goal':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (goal, ours, beside) in works(Path(folder)).items():
            ours()
            pairs = [(seconds(ours), seconds(beside)) for _ in range(RUNS)]
            mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
            row = f"{name:<16}{mine * 1e3:7.0f} ms{theirs * 1e3:7.0f} ms{mine / theirs:7.2f}"
            print(f"{row}{goal:6}", flush=True)


if __name__ == "__main__":
    main()
