"""How long loading a CSV takes, ours and np.loadtxt in turn.

Run as ``python tests/bench/loading.py``; prints medians in seconds and their ratio. The
goal is at most 0.6 for 5,000 x 512 numbers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from attncli.loading import read

SHAPE = (5000, 512)
RUNS = 5


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turn(path):
    """Return the median seconds of ours and of np.loadtxt."""
    options = {"delimiter": ",", "comments": None, "encoding": "utf-8-sig", "ndmin": 2}
    pairs = [
        (seconds(lambda: read(path)), seconds(lambda: np.loadtxt(path, **options)))
        for _ in range(RUNS)
    ]
    return [statistics.median(times) for times in zip(*pairs, strict=True)]


def main():
    numbers = np.random.default_rng(8).standard_normal(SHAPE)
    print(f"{SHAPE[0]} x {SHAPE[1]} numbers, medians of {RUNS} in seconds, in turn")
    print(f"{'digits':10}{'ours':>8}{'loadtxt':>9}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "numbers.csv"))
        for digits in ("%.18e", "%.6g"):
            np.savetxt(path, numbers, fmt=digits, delimiter=",")
            ours, theirs = in_turn(path)
            print(f"{digits:10}{ours:8.2f}{theirs:9.2f}{ours / theirs:7.2f}", flush=True)


if __name__ == "__main__":
    main()
