"""How long saving a matrix takes, ours and np.savetxt in turn.

Run as ``python tests/bench/saving.py``; prints medians in seconds and their ratio. The
goal is at most 0.5 for 5,000 x 512 numbers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from attncli.save.formats import Results, save

SHAPE = (5000, 512)
RUNS = 5


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def samples():
    normal = np.random.default_rng(8).standard_normal(SHAPE)
    powers = np.exp(3 * normal)
    weights = powers / powers.sum(-1, keepdims=True)
    yield "normal", normal, "csv"
    yield "normal", normal.astype(np.float32), "csv"
    yield "softmax", weights, "csv"
    yield "softmax", weights.astype(np.float32), "csv"
    yield "softmax", weights, "json"
    yield "softmax", weights, "yaml"


def in_turn(folder, array, name):
    """Return the median seconds of ours and of np.savetxt."""
    ours, theirs = str(Path(folder, f"ours.{name}")), str(Path(folder, "theirs.csv"))
    results = Results({"weights": array})
    pairs = [
        (
            seconds(lambda: save([(ours, results, name)])),
            seconds(lambda: np.savetxt(theirs, array, fmt="%.18e", delimiter=",")),
        )
        for _ in range(RUNS)
    ]
    return [statistics.median(times) for times in zip(*pairs, strict=True)]


def main():
    print(f"{SHAPE[0]} x {SHAPE[1]} numbers, medians of {RUNS} in seconds, in turn")
    print(f"{'numbers':10}{'dtype':10}{'format':8}{'ours':>8}{'savetxt':>9}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for title, array, name in samples():
            ours, theirs = in_turn(folder, array, name)
            row = f"{title:10}{array.dtype.name:10}{name:8}{ours:8.2f}{theirs:9.2f}"
            print(f"{row}{ours / theirs:7.2f}", flush=True)


if __name__ == "__main__":
    main()
