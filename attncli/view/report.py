"""A `CheckReport` for a terminal and for machines. Nothing is printed here."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from attncli.errors.names import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from attncli.referee.report import Cause, CheckReport, Verdict
    from attncli.view.limits import Limits

_MEASURED = ("rms", "elements", "outside", "nonfinite", "nonfinite_rows")


def as_dict(report: CheckReport) -> dict[str, Any]:
    """Return the report as data for JSON; NaN and infinities are texts, to tell them apart."""
    diagnosis = report.diagnosis
    return {
        "schema": SCHEMA,
        "passed": report.passed,
        "outputs": [_verdict(verdict) for verdict in report.verdicts],
        "unjudged": report.unjudged,
        "diagnosis": diagnosis
        and {
            **_plain(diagnosis),
            "explanations": [_cause(cause) for cause in diagnosis.explanations],
        },
    }


def beside_dict(report: CheckReport, other: CheckReport) -> dict[str, Any]:
    """Return the verdict on a second file, and the ratio of its rms error to the first file's."""
    one, second = report.verdicts[0], other.verdicts[0]
    ratio = second.rms / one.rms if one.rms else None
    finite = ratio is not None and math.isfinite(ratio)
    return {**_verdict(second), "rms_ratio": ratio if finite else None}


def beside_line(report: CheckReport, other: CheckReport, name: str) -> str:
    """Return the sentence that says which of two files errs less, and by how much."""
    one, second = report.verdicts[0], other.verdicts[0]
    told = f"\nbeside it, {name}: {second.word}, rms error {second.rms:.3g}"
    low, high = sorted((one.rms, second.rms))
    if second.tolerance is None or one.tolerance is None or not math.isfinite(high):
        return told
    if low == high:
        return f"{told}: both err alike"
    who = "the expected file" if one.rms < second.rms else name
    times = f"{high / low:.3g} times less" if low else "not at all"
    return f"{told}: {who} errs {times}"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict; errors are None where the shape is wrong."""
    told: dict[str, Any] = _plain(verdict)
    return told if verdict.tolerance is not None else told | dict.fromkeys(_MEASURED)


def _cause(cause: Cause) -> dict[str, Any]:
    told = ("name", "meaning", "fix", "shows")
    conventions = [{name: getattr(each, name) for name in told} for each in cause.conventions]
    names = ("options", "outputs", "error", "fails_at", "right_there", "alone")
    others = {name: _plain(getattr(cause, name)) for name in names}
    return {"name": cause.name, "conventions": conventions, **others}


def _plain(thing: Any) -> Any:
    if is_dataclass(thing) and not isinstance(thing, type):
        names = (f.name for f in fields(thing) if f.name != "explanations")
        return {name: _plain(getattr(thing, name)) for name in names}
    if isinstance(thing, tuple):
        return [_plain(item) for item in thing]
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)
    return thing


def renderables(report: CheckReport, limits: Limits) -> Iterator[RenderableType]:
    """Yield the lines of a report for a Rich console, then the worst rows of each output."""
    from rich.padding import Padding  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415

    styles = {one.name: "bold green" if one.passed else "bold red" for one in report.verdicts}
    styles["diagnosis"] = "bold"
    for line in limits.formula(str(report)).splitlines():
        numbers = line.startswith("numbers of")
        if not line or numbers:
            yield Text("")
        if line:
            text = line.lstrip(" ")
            style = "bold" if numbers else styles.get(line.partition(":")[0], "")
            # A wrapped line keeps its indent.
            yield Padding(Text(text, style), (0, 0, 0, len(line) - len(text)), expand=False)
    for verdict in report.verdicts:
        if verdict.worst_rows:
            yield from _worst_rows(verdict, limits, several=len(report.verdicts) > 1)


def _worst_rows(verdict: Verdict, limits: Limits, *, several: bool) -> Iterator[RenderableType]:
    """Yield the rows with the largest errors, the worst first: title and table."""
    from attncli.view.tables import Column, drawn, heading  # noqa: PLC0415 - with Rich

    rows = verdict.worst_rows
    yield heading(f"worst rows of {verdict.name}" if several else "worst rows", limits)
    errors = [f"{row.error:.3g}" if math.isfinite(row.error) else "" for row in rows]
    columns = [
        Column("where", [limits.known(row.text(verdict.name)) for row in rows], left=True),
        Column("file", [f"{row.found:.6g}" for row in rows]),
        Column("answer", [f"{row.answer:.6g}" for row in rows]),
        Column("error", errors),
    ]
    yield drawn(columns, limits)
    yield ""
