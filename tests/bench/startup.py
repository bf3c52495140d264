"""How long the program takes to start, beside ``python -c "import numpy"``.

    python tests/bench/startup.py [RUNS]

Whole processes in one environment, in turn, so that a slow moment of the machine
meets all alike; medians and the ratio to NumPy's import.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 11
SAMPLES = Path(__file__).parents[2] / "samples" / "tutorial"
FILES = [str(SAMPLES / name) for name in ("q.csv", "k.csv", "v.csv")]


def commands(folder: str) -> dict[str, tuple[float | None, list[str]]]:
    """Return each command with the ratio it should not exceed."""
    attncli = [sys.executable, "-m", "attncli"]
    picture = str(Path(folder) / "weights.png")
    return {
        "import numpy": (None, [sys.executable, "-c", "import numpy"]),
        "--help": (0.9, [*attncli, "--help"]),
        "compute, JSON": (1.4, [*attncli, "compute", *FILES, "--format", "json"]),
        "compute, table": (1.75, [*attncli, "compute", *FILES]),
        "heatmap": (7.0, [*attncli, "heatmap", *FILES[:2], "--out", picture]),
    }


def environment() -> dict[str, str]:
    """Return an environment in which the first run leaves its bytecode, as an installation does."""
    return {name: of for name, of in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(command: list[str]) -> float:
    """Return how long one run of a command takes."""
    start = time.perf_counter()
    subprocess.run(
        command, check=True, capture_output=True, stdin=subprocess.DEVNULL, env=environment()
    )
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        rows = commands(folder)
        for _, command in rows.values():
            seconds(command)
        runs = {name: [] for name in rows}
        for _ in range(RUNS):
            for name, (_, command) in rows.items():
                runs[name].append(seconds(command))
    base = statistics.median(runs["import numpy"])
    print(f"{'command':<16} {'median':>8} {'ratio':>7} {'goal':>6}")
    for name, (goal, _) in rows.items():
        median = statistics.median(runs[name])
        shown = "" if goal is None else f"≤ {goal}"
        print(f"{name:<16} {median * 1000:5.0f} ms {median / base:7.2f} {shown:>6}")


if __name__ == "__main__":
    main()
