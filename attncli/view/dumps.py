"""Many reports of `check`: a table, JSON, and JUnit's XML for CI servers. Prints nothing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from attncli.errors.names import SCHEMA
from attncli.errors.text import counted, printable
from attncli.view.report import as_dict as report_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.text import Text

    from attncli.errors import AttnError
    from attncli.referee.report import CheckReport
    from attncli.view.limits import Limits


@dataclass(frozen=True)
class Judged:
    """The report on one file, or the error that kept it from being judged."""

    file: str
    report: CheckReport | None = None
    error: AttnError | None = None

    @property
    def word(self) -> str:
        """The verdict: ok, MISMATCH or error."""
        if self.report is None:
            return "error"
        return "ok" if self.report.passed else "MISMATCH"


def _largest(one: Judged) -> float | None:
    verdicts = one.report.verdicts if one.report is not None else ()
    errors = [verdict.largest.error for verdict in verdicts if verdict.largest is not None]
    if errors:
        return max(errors)
    return 0.0 if verdicts and all(verdict.tolerance for verdict in verdicts) else None


def _reason(one: Judged) -> str:
    if one.error is not None:
        return one.error.message
    if one.report is None or one.report.passed:
        return ""
    found = one.report.diagnosis
    names = [cause.name for cause in found.explanations] if found is not None else []
    return " or ".join(names) or "no known mistake explains it"


def as_dict(found: Sequence[Judged]) -> dict[str, Any]:
    """Return all reports as data for JSON, each as `attncli.view.report.as_dict` has it."""
    return {
        "schema": SCHEMA,
        "passed": all(one.word == "ok" for one in found),
        "files": [
            {
                "file": one.file,
                "passed": one.report is not None and one.report.passed,
                "error": None if one.error is None else one.error.message,
                "report": None if one.report is None else report_dict(one.report),
            }
            for one in found
        ],
    }


def as_junit(found: Sequence[Judged]) -> bytes:
    """Return the reports as JUnit's XML: a test case a file."""
    counts = Counter(one.word for one in found)
    suite = ET.Element(
        "testsuite",
        name="attncli check",
        tests=str(len(found)),
        failures=str(counts["MISMATCH"]),
        errors=str(counts["error"]),
    )
    for one in found:
        case = ET.SubElement(suite, "testcase", name=one.file, classname="attncli.check")
        word = one.word
        if word != "ok":
            kind = "error" if word == "error" else "failure"
            told = ET.SubElement(case, kind, message=_legal(_reason(one)))
            told.text = _legal(str(one.report) if one.report is not None else _reason(one))
    made: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return made


def _legal(text: str) -> str:
    """Return text without the control characters that XML cannot hold."""
    return "".join(letter for letter in text if letter >= " " or letter in "\n\t")


def table_parts(found: Sequence[Judged], limits: Limits) -> Iterator[Text]:
    """Yield the table, one row a file, and a line that counts the verdicts."""
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    from attncli.view.tables import Column, drawn  # noqa: PLC0415

    styles = {"ok": "green", "MISMATCH": "bold red", "error": "bold yellow"}
    errors = [_largest(one) for one in found]
    finite = ["" if e is None or not math.isfinite(e) else f"{e:.3g}" for e in errors]
    words = [one.word for one in found]
    columns = [
        Column("file", [limits.known(printable(one.file)) for one in found], left=True),
        Column("verdict", words, left=True, styles=[styles[word] for word in words]),
        Column("largest error", finite),
        Column("mistake", [limits.known(_reason(one)) for one in found], left=True),
    ]
    yield drawn(columns, limits)
    counts = Counter(words)
    told = [f"{counts[word]} {word}" for word in styles if counts[word]]
    yield Text(f"\n{counted(len(found), 'file')}: {', '.join(told)}", style="bold")


def calls_table(calls: Sequence[Mapping[str, Any]], limits: Limits) -> Iterator[Text]:
    """Yield the recorded calls, one row each: layer, module, kernel, shapes and rules."""
    from attncli.view.tables import Column, stacked  # noqa: PLC0415 - with Rich

    def column(name: str, cells: Iterable[object], *, left: bool = True) -> Column:
        return Column(name, [limits.known(printable(str(cell))) for cell in cells], left)

    fixed = [column(name, [call[name] for call in calls], left=False) for name in ("layer", "call")]
    shapes = [
        column(name, ["×".join(map(str, call["shapes"].get(name, ()))) for call in calls])
        for name in ("query", "key")
    ]
    told = [column(name, [c[name] for c in calls]) for name in ("module", "kernel", "dtype")]
    rules = column("rules", [", ".join(call["rules"]) for call in calls])
    yield from stacked(fixed, [*told, *shapes, rules], limits)
