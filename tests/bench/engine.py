"""How fast the engine is and what it holds, beside torch, the formula and the bare products.

Run as ``python tests/bench/engine.py [--against REV] [--only TEXT] [table memory tiny]``.
The ways to do a work are timed in turn in separate processes, two threads each, and
medians are printed. ``--against REV`` times our engine of an earlier commit, too; ``--write``
puts the table into README.md; ``--long`` measures memory at 131,072 queries too, over a
minute; ``--cpu`` compares processor time on one thread, for a machine that others use.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import timeit
from pathlib import Path

import numpy as np
import threadpoolctl
from sides import Side
from works import CONTEXT, GRADIENTS, THREADS, WORKS, has_avx512

RUNS = 5
ROOT = Path(__file__).parents[2]
README = Path(__file__).with_name("README.md")


def table(options, threads, tree):
    """Print ours, the rival and the two products for each work, and our earlier engine."""
    lines = [
        f"Measured {time.strftime('%Y-%m-%d')}, {threads} threads, {options.clock} time: {kind()}."
    ]
    lines += [
        "",
        "| work | sizes | ours ms | rival | ours / rival | goal | products ms | ours / before |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    print("\n".join(lines), flush=True)
    rivals, befores = {}, {}
    for index, work in enumerate(WORKS):
        if options.only not in f"{work.title} {work.sizes} {work.rival}":
            continue
        own = "our gradients" if work in GRADIENTS else "ours"
        ways = [(own, ROOT), (work.rival, ROOT), (work.floor, ROOT)]
        # The earlier engine may have no gradients.
        ways += [(own, tree)] * (bool(tree) and work not in GRADIENTS)
        mine, rival, floor, *before = compared(ways, index, threads)
        rivals[work] = mine / rival
        cells = [work.title, work.sizes, f"{mine * 1e3:.2f}", work.rival, f"{mine / rival:.2f}"]
        cells += ["" if work.goal is None else f"{work.goal:.2f}", f"{floor * 1e3:.2f}"]
        if before:
            befores[work] = mine / before[0]
        cells.append(f"{befores[work]:.2f}" if before else "")
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    backward = [rivals[work] for work in GRADIENTS if work in rivals]
    if backward:
        lines.append("")
        lines.append(f"Gradients beside torch, geometric mean: {mean(backward):.2f} (goal 1.20).")
    contexts = [rivals[work] for work in CONTEXT if work in rivals]
    lines.append("")
    if contexts:
        lines.append(
            f"Contexts and decoding beside torch, geometric mean: {mean(contexts):.2f} (goal 0.95)."
        )
    if befores:
        name = f"All works beside our engine of {options.against}, geometric mean"
        lines.append(f"{name}: {mean(befores.values()):.2f} (goal 1.00).")
    print("\n".join(lines[lines.index("", 3) :]))
    if options.write:
        text = README.read_text(encoding="utf-8")
        README.write_text(
            text[: text.index("\nMeasured ")] + "\n" + "\n".join(lines) + "\n", encoding="utf-8"
        )


def mean(ratios):
    return math.exp(statistics.mean(map(math.log, ratios)))


def kind():
    """Return what multiplies matrices here, and whether NumPy has AVX-512."""
    return f"NumPy {np.__version__} {'with' if has_avx512() else 'without'} AVX-512, {blas()}"


def tree_of(revision, folder):
    """Write the package of a commit into a folder, and return it."""
    archive = subprocess.run(
        ["git", "archive", revision, "attncli"], cwd=ROOT, check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


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
    sides = [Side(way, index, threads, tree) for way, tree in ways]
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
    print(f", {ours - plain:.1f} us more (goal 30)")


def compare(options, threads):
    with tempfile.TemporaryDirectory() as folder:
        table(options, threads, tree_of(options.against, folder) if options.against else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["table", "memory", "tiny"])
    parser.add_argument("--only", default="", help="works whose title or sizes hold this")
    parser.add_argument("--long", action="store_true", help="memory at 131,072 queries too")
    parser.add_argument("--cpu", action="store_true", help="processor time, one thread each")
    parser.add_argument("--against", help="a commit: our engine of then is timed, too")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    options.clock = os.environ["BENCH_CLOCK"] = "cpu" if options.cpu else "wall"
    threads = 1 if options.cpu else THREADS
    sys.path.insert(0, str(ROOT))
    parts = {
        "table": lambda: compare(options, threads),
        "memory": lambda: memory([8192, 32768] + [131072] * options.long),
        "tiny": tiny,
    }
    for part in options.parts:
        parts[part]()


if __name__ == "__main__":
    main()
