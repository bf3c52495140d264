"""A `CheckReport` for a terminal and for machines. Nothing is printed here."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from attncli.errors.names import SCHEMA
from attncli.referee.wording import before_diagnosis, diagnosis_lines, place_text, verdict_lines
from attncli.view.signs import FORMULA_SIGNS, known

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.report import Cause, CheckReport, Verdict

__all__ = ["as_dict", "beside_dict", "beside_line", "renderables"]

_MEASURED = ("rms", "elements", "outside", "nonfinite", "nonfinite_rows")
# Between two columns.
_GAP = 2


def as_dict(report: CheckReport) -> dict[str, Any]:
    """Return the report as data for JSON: lists, mappings, finite numbers and None.

    NaN and infinities are ``"nan"``, ``"inf"`` and ``"-inf"``, because JSON has no such
    numbers and in a report they must not look alike.

    Parameters
    ----------
    report : CheckReport
    """
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
    """Return the verdict on a second file, and how many times as large its errors are."""
    one, second = report.verdicts[0], other.verdicts[0]
    ratio = second.rms / one.rms if one.rms else None
    finite = ratio is not None and math.isfinite(ratio)
    return {**_verdict(second), "rms_ratio": ratio if finite else None}


def beside_line(report: CheckReport, other: CheckReport, name: str) -> RenderableType:
    """Return the sentence that says which of two files errs less, and by how much."""
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    one, second = report.verdicts[0], other.verdicts[0]
    told = f"beside it, {name}: {second.word}, rms error {second.rms:.3g}"
    low, high = sorted((one.rms, second.rms))
    if second.tolerance is None or one.tolerance is None or not math.isfinite(high):
        return Text(f"\n{told}")
    if low == high:
        return Text(f"\n{told}: both err alike")
    who = "the expected file" if one.rms < second.rms else name
    times = f"{high / low:.3g} times less" if low else "not at all"
    return Text(f"\n{told}: {who} errs {times}")


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict; None for what was not measured, because the shape is another one."""
    told: dict[str, Any] = _plain(verdict)
    return told if verdict.tolerance is not None else told | dict.fromkeys(_MEASURED)


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "name": cause.name,
        "conventions": [_mistake(mistake) for mistake in cause.conventions],
        "options": list(cause.options),
        "outputs": list(cause.outputs),
        "error": _plain(cause.error),
        "fails_at": cause.fails_at,
        "right_there": cause.right_there,
        "alone": cause.alone,
    }


def _mistake(mistake: Mistake) -> dict[str, str]:
    return {name: getattr(mistake, name) for name in ("name", "meaning", "fix", "shows")}


def _plain(thing: Any) -> Any:
    if is_dataclass(thing) and not isinstance(thing, type):
        names = (f.name for f in fields(thing) if f.name != "explanations")
        return {name: _plain(getattr(thing, name)) for name in names}
    if isinstance(thing, tuple):
        return [_plain(item) for item in thing]
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)
    return thing


def renderables(report: CheckReport, *, unicode: bool = True) -> Iterable[RenderableType]:
    """Yield the report for a Rich console: verdicts, worst rows, diagnosis.

    Parameters
    ----------
    report : CheckReport
    unicode : bool
        Whether the terminal has more than ASCII; where not, lines are as long as what stands
        for their signs.
    """
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    def shown(lines: Iterable[str]) -> list[str]:
        return [known(line, unicode=unicode, signs=FORMULA_SIGNS) for line in lines]

    diagnosis, blank, later = report.told_diagnosis, True, []
    for verdict in report.verdicts:
        headline, *lines = shown(verdict_lines(verdict, report))
        yield Text(headline, style="bold green" if verdict.passed else "bold red")
        if not before_diagnosis(verdict, diagnosis):
            later.append((verdict, lines))
            blank = False
            continue
        yield from map(_indented, lines)
        blank = bool(verdict.worst_rows)
        if blank:
            yield from worst_rows(verdict, unicode=unicode)
    if report.unjudged:
        yield Text(*shown([report.unjudged]))
        blank = False
    if diagnosis is not None:
        headline, *lines = shown(diagnosis_lines(diagnosis, report))
        if not blank:
            yield Text("")
        yield Text(headline, style="bold")
        yield from map(_indented, lines)
    for verdict, lines in later:
        yield Text("")
        yield Text(f"numbers of {verdict.name}", style="bold")
        yield from map(_indented, lines)
        if verdict.worst_rows:
            yield from worst_rows(verdict, unicode=unicode)


def _indented(line: str) -> RenderableType:
    """Return a line that keeps its indent where it is wrapped."""
    from rich.padding import Padding  # noqa: PLC0415 - only a terminal needs it
    from rich.text import Text  # noqa: PLC0415

    text = line.lstrip()
    return Padding(Text(text), (0, 0, 0, len(line) - len(text)), expand=False)


def worst_rows(verdict: Verdict, *, unicode: bool = True) -> Iterable[RenderableType]:
    """Yield the rows with the largest errors, the worst first: title, table, and an empty line.

    Parameters
    ----------
    verdict : Verdict
    unicode : bool
        Whether the terminal has more than ASCII.
    """
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    from attncli.view.lined import lined_table  # noqa: PLC0415

    table = lined_table(_GAP)
    table.add_column("where", overflow="fold")
    for heading in ("file", "answer", "error"):
        table.add_column(heading, justify="right")
    for place in verdict.worst_rows:
        error = f"{place.error:.3g}" if math.isfinite(place.error) else ""
        numbers = (f"{place.found:.6g}", f"{place.answer:.6g}", error)
        where = place_text(place, verdict.name)
        table.add_row(Text(known(where, unicode=unicode)), *numbers)
    yield Text("worst rows", style="bold")
    yield table
    yield Text("")
