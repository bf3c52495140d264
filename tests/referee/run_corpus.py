"""Run the corpus: what is named, what is missed, where a right output is called wrong.

python tests/referee/run_corpus.py                      all cases
python tests/referee/run_corpus.py --only rope          cases whose name holds "rope"
python tests/referee/run_corpus.py --json a.json        save
python tests/referee/run_corpus.py --against a.json     tell what changed since
python tests/referee/run_corpus.py --tree DIRECTORY     measure another working tree
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="text that the name of a case holds")
    parser.add_argument("--pairs", type=int, default=0, help="run so many pairs instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=100.0, help="seconds for a case")
    parser.add_argument("--json", type=Path, help="save the results")
    parser.add_argument("--against", type=Path, help="results to compare with")
    parser.add_argument("--tree", type=Path, help="working tree whose attncli is measured")
    parser.add_argument("-q", "--quiet", action="store_true", help="only sums and differences")
    return parser.parse_args()


def one(job: tuple[str, int, float]) -> dict[str, object]:
    """Run one case; what it raises is a result, too."""
    from referee import corpus
    from referee.case import CASES, judged

    name, seed, limit = job
    case = CASES[name] if name in CASES else corpus.pair(name.removeprefix("pair/"))
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    try:
        outcome = judged(case, seed, time_limit=limit)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
        return _result(case, f"error: {type(error).__name__}: {error}", (), started)
    return _result(case, outcome.word, outcome.found, started)


def _result(case, word, found, started):
    return {
        "name": case.name,
        "part": case.part,
        "word": word,
        "names": sorted("+".join(sorted(parts)) for parts in case.names),
        "found": list(found),
        "seconds": round(time.perf_counter() - started, 3),
    }


def main() -> int:
    options = asked()
    if options.tree:
        sys.path.insert(0, str(options.tree))
    from referee import corpus

    if options.pairs:
        names = corpus.pair_names(options.pairs, options.seed, options.only)
    else:
        names = [case.name for case in corpus.chosen(options.only)]
    jobs = [(name, options.seed, options.time_limit) for name in names]
    results = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for result in map(one, jobs) if options.jobs == 1 else pool.map(one, jobs):
            results.append(result)
            if not options.quiet and result["word"] not in ("named", "passed"):
                wanted = " or ".join(result["names"]) or "passes"
                print(f"{result['word']:8} {result['name']}: {wanted}; {result['found']}")
    table(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.against:
        differences(json.loads(options.against.read_text()), results)
    return 0


def table(results: list[dict]) -> None:
    parts = defaultdict(list)
    for result in results:
        parts[result["part"]].append(result)
    print(f"{'part':16}{'cases':>6}{'named':>7}{'among':>7}{'other':>7}{'missed':>7}"
          f"{'right':>7}{'alarm':>7}{'error':>7}{'seconds':>9}")  # fmt: skip
    for part, found in [*sorted(parts.items()), ("all", results)]:
        words = Counter(str(result["word"]).partition(":")[0] for result in found)
        order = ("named", "among", "other", "missed", "passed", "alarm", "error")
        numbers = "".join(f"{words[word]:7}" for word in order)
        print(f"{part:16}{len(found):6}{numbers}{sum(r['seconds'] for r in found):9.1f}")


def differences(old: list[dict], new: list[dict]) -> None:
    before = {result["name"]: result for result in old}
    good = ("named", "passed")
    both = [(before[r["name"]], r) for r in new if r["name"] in before]
    kept = sum(a["word"] in good and b["word"] in good for a, b in both)
    had = sum(a["word"] in good for a, _ in both)
    print(f"\nof {had} that were right before, {kept} are ({100 * kept / max(had, 1):.1f} %)")
    for a, b in both:
        if (a["word"] in good) != (b["word"] in good):
            sign = "lost" if a["word"] in good else "won"
            print(f"{sign:5} {b['name']}: {b['word']} {b['found']}")


if __name__ == "__main__":
    raise SystemExit(main())
