"""How fast the engine is and what it holds, beside torch, the formula and the bare products.

Run as ``python tests/bench/engine.py [--long] [--only TEXT] [table memory growth tiny]``.
The ways to do a work are timed in turn in separate processes, two threads each, and
medians are printed. ``--long`` measures memory at 131,072 queries too, over a minute;
``--cpu`` compares processor time on one thread, for a machine that others use.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import timeit
from pathlib import Path

import numpy as np
import threadpoolctl
from sides import Side
from works import CONTEXT, THREADS, WORKS

RUNS = 5


def table(only, threads):
    """Print ours, the rival and the two products for each work."""
    print(f"NumPy {np.__version__} on {blas()}")
    print(f"{'work':22}{'sizes':24}{'ours ms':>9}{'rival ms':>10}{'ratio':>7}{'goal':>6}", end="")
    print(f"{'products ms':>13}  rival", flush=True)
    ratios = {}
    for index, work in enumerate(WORKS):
        if only not in f"{work.title} {work.sizes} {work.rival}":
            continue
        mine, rival, floor = compared(("ours", work.rival, "products"), index, threads)
        ratios[work] = mine / rival
        goal = "" if work.goal is None else f"{work.goal:.2f}"
        numbers = f"{mine * 1e3:9.2f}{rival * 1e3:10.2f}{mine / rival:7.2f}{goal:>6}"
        title = f"{work.title:22}{work.sizes:24}"
        print(f"{title}{numbers}{floor * 1e3:13.2f}  {work.rival}", flush=True)
    means = [ratios[work] for work in CONTEXT if work in ratios]
    if means:
        mean = math.exp(statistics.mean(map(math.log, means)))
        print(f"geometric mean of context and decoding, float32: {mean:.2f} (goal 0.95)")


def blas():
    """Return what multiplies NumPy's matrices, and for which processor it was written.

    A system may have chosen the latter by a variable: products, and with them all of ours, may
    take twice the time then.
    """
    libraries = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    if not libraries:
        return "an unknown BLAS"
    used = libraries[0]
    named = f"{used['internal_api']} {used['version']}, kernels of {used.get('architecture')}"
    chosen = os.environ.get("OPENBLAS_CORETYPE")
    return f"{named} (OPENBLAS_CORETYPE={chosen})" if chosen else named


def compared(ways, index, threads):
    """Return the median seconds of each way, timed in turn."""
    sides = [Side(way, index, threads) for way in ways]
    try:
        times = [[side.time() for side in sides] for _ in range(RUNS)]
    finally:
        for side in sides:
            side.close()
    return [statistics.median(each) for each in zip(*times, strict=True)]


ONE_RUN = """
import resource, sys, time
import numpy as np
from attncli import attention
length, width = int(sys.argv[1]), int(sys.argv[2])
q, k, v = np.random.default_rng(0).standard_normal((3, 1, length, width), np.float32)
attention(q[:, :8], k[:, :8], v[:, :8], outputs=("context",), layout="hsd", threads=2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
attention(q, k, v, outputs=("context",), layout="hsd", threads=2)
print(time.perf_counter() - start, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def one_run(length, width=64):
    """Return seconds, and peak kB before and after, of one head in a process of its own."""
    command = [sys.executable, "-c", ONE_RUN, str(length), str(width)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


def memory(lengths):
    print("peak memory, context of one head of width 64, float32")
    print(f"{'L = S':>9}{'before MB':>11}{'peak MB':>9}{'a query kB':>12}{'seconds':>9}")
    for length in lengths:
        seconds, before, after = one_run(length)
        grown = (after - before) / length
        print(
            f"{length:9}{before / 1e3:11.0f}{after / 1e3:9.0f}{grown:12.2f}{seconds:9.2f}",
            flush=True,
        )


def growth():
    print("time for a longer L = S, context of one head of width 64, float32")
    base = None
    for length in (2048, 4096, 8192, 16384):
        seconds = statistics.median(one_run(length)[0] for _ in range(RUNS))
        base = base or seconds
        print(f"{length:9}{seconds * 1e3:9.1f} ms {seconds / base:7.1f} x", flush=True)


def tiny():
    """Print how much more than the formula a call costs where there is nothing to compute."""
    from attncli import attention

    query, key, value = np.random.default_rng(0).standard_normal((3, 5, 8))

    def formula():
        scores = np.exp(query @ key.T / np.sqrt(query.shape[-1]))
        weights = scores / scores.sum(-1, keepdims=True)
        return weights, weights @ value

    def microseconds(call):
        return min(timeit.repeat(call, number=500, repeat=9)) / 500 * 1e6

    ours, plain = microseconds(lambda: attention(query, key, value)), microseconds(formula)
    print(f"tiny call, L = S = 5: ours {ours:.1f} us, formula {plain:.1f} us", end="")
    print(f", {ours - plain:.1f} us more (goal 60)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["table", "memory", "growth", "tiny"])
    parser.add_argument("--only", default="", help="works whose title or sizes hold this")
    parser.add_argument("--long", action="store_true", help="memory at 131,072 queries too")
    parser.add_argument("--cpu", action="store_true", help="processor time, one thread each")
    options = parser.parse_args()
    os.environ["BENCH_CLOCK"] = "cpu" if options.cpu else "wall"
    threads = 1 if options.cpu else THREADS
    sys.path.insert(0, str(Path(__file__).parents[2]))
    parts = {
        "table": lambda: table(options.only, threads),
        "memory": lambda: memory([8192, 32768] + [131072] * options.long),
        "growth": growth,
        "tiny": tiny,
    }
    for part in options.parts:
        parts[part]()


if __name__ == "__main__":
    main()
