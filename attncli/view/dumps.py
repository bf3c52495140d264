"""Many reports of `check`: a table, JSON, and JUnit's XML for CI servers. Prints nothing."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol
from xml.etree import ElementTree as ET

from attncli.errors.names import SCHEMA
from attncli.view.report import as_dict as report_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from attncli.errors import AttnError
    from attncli.referee.report import CheckReport

__all__ = ["as_dict", "as_junit", "calls_table", "table_parts"]


class _Judged(Protocol):
    """A file with its report, or with the error that kept it from being judged."""

    @property
    def file(self) -> str: ...
    @property
    def report(self) -> CheckReport | None: ...
    @property
    def error(self) -> AttnError | None: ...


def _word(one: _Judged) -> str:
    """Return the verdict on a file: ok, MISMATCH or error."""
    if one.report is None:
        return "error"
    return "ok" if one.report.passed else "MISMATCH"


def _largest(one: _Judged) -> float | None:
    """Return the largest error of the outputs of a file."""
    verdicts = one.report.verdicts if one.report is not None else ()
    errors = [verdict.largest.error for verdict in verdicts if verdict.largest is not None]
    if errors:
        return max(errors)
    return 0.0 if verdicts and all(verdict.tolerance for verdict in verdicts) else None


def _reason(one: _Judged) -> str:
    """Return the names of the mistakes, or what the error says."""
    if one.error is not None:
        return one.error.message
    if one.report is None or one.report.passed:
        return ""
    found = one.report.diagnosis
    names = [cause.name for cause in found.explanations] if found is not None else []
    return " or ".join(names) or "no known mistake explains it"


def as_dict(found: Sequence[_Judged]) -> dict[str, Any]:
    """Return all reports as data for JSON, each as `attncli.view.report.as_dict` has it."""
    return {
        "schema": SCHEMA,
        "passed": all(_word(one) == "ok" for one in found),
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


def as_junit(found: Sequence[_Judged]) -> bytes:
    """Return the reports as JUnit's XML: a test case a file."""
    counts = Counter(map(_word, found))
    suite = ET.Element(
        "testsuite",
        name="attncli check",
        tests=str(len(found)),
        failures=str(counts["MISMATCH"]),
        errors=str(counts["error"]),
    )
    for one in found:
        case = ET.SubElement(suite, "testcase", name=one.file, classname="attncli.check")
        word = _word(one)
        if word != "ok":
            kind = "error" if word == "error" else "failure"
            told = ET.SubElement(case, kind, message=_legal(_reason(one)))
            told.text = _legal(str(one.report) if one.report is not None else _reason(one))
    made: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return made


def _legal(text: str) -> str:
    """Return text without the control characters that XML cannot hold."""
    return "".join(letter for letter in text if letter >= " " or letter in "\n\t")


def table_parts(found: Sequence[_Judged]) -> Iterator[RenderableType]:
    """Yield the table, one row a file, and a line that counts the verdicts."""
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    from attncli.errors.text import counted, printable  # noqa: PLC0415
    from attncli.view.lined import lined_table  # noqa: PLC0415

    table = lined_table(2)
    table.add_column("file", overflow="fold")
    table.add_column("verdict")
    table.add_column("largest error", justify="right")
    table.add_column("mistake", overflow="fold")
    styles = {"ok": "green", "MISMATCH": "bold red", "error": "bold yellow"}
    for one in found:
        error, word = _largest(one), _word(one)
        number = "" if error is None or not math.isfinite(error) else f"{error:.3g}"
        row = (printable(one.file), Text(word, style=styles[word]), number, Text(_reason(one)))
        table.add_row(Text(row[0]), *row[1:])
    yield table
    counts = Counter(map(_word, found))
    told = [f"{counts[word]} {word}" for word in styles if counts[word]]
    yield Text(f"\n{counted(len(found), 'file')}: {', '.join(told)}", style="bold")


def calls_table(calls: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return what was recorded, a row a call: layer, module, kernel, shapes and rules."""
    from rich.text import Text  # noqa: PLC0415

    from attncli.errors.text import printable  # noqa: PLC0415
    from attncli.view.lined import lined_table  # noqa: PLC0415

    table = lined_table(2)
    for heading in ("layer", "call"):
        table.add_column(heading, justify="right")
    for heading in ("module", "kernel", "dtype", "query", "key", "rules"):
        table.add_column(heading, overflow="fold")
    for call in calls:
        shapes = ["×".join(map(str, call["shapes"].get(name, ()))) for name in ("query", "key")]
        words = [call["module"], call["kernel"], call["dtype"], *shapes, ", ".join(call["rules"])]
        table.add_row(str(call["layer"]), str(call["call"]), *(Text(printable(w)) for w in words))
    return table
