"""One way to do a work in a process of its own, timed when it is told to.

Run as ``python sides.py WAY INDEX``: prints ``ready``, then a time in seconds for each
line it reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

# A measurement should last so long; shorter calls are repeated. After a pause a processor
# is slow for some hundredths of a second.
LONG_ENOUGH = 0.2


class Side:
    """A way to do a work, in a process that waits while others are timed."""

    def __init__(self, way, index, threads, tree=None):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BENCH_THREADS")
        settings = dict.fromkeys(names, str(threads))
        if tree is not None:  # the folder whose attncli is timed
            settings["PYTHONPATH"] = str(tree)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), way, str(index)],
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | settings,
        )
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{way} did not start")

    def time(self):
        """Return the seconds that one call takes now."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def serve(run):
    """Time ``run`` once for each line of standard input."""
    # Where others use the machine, the time on the processor says more than that on the wall.
    clock = time.process_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter
    run()  # The first call imports and allocates: it says nothing of the next.
    start = clock()
    run()
    run()
    calls = max(1, round(LONG_ENOUGH * 2 / (clock() - start)))
    print("ready", flush=True)
    for _ in sys.stdin:
        run()  # Wakes the threads and brings the numbers back into the cache.
        start = clock()
        for _ in range(calls):
            run()
        print((clock() - start) / calls, flush=True)


if __name__ == "__main__":
    from works import WAYS, WORKS

    serve(WAYS[sys.argv[1]](WORKS[int(sys.argv[2])]))
