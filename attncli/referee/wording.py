"""A report in words, line by line, for `str(report)` and for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.errors.names import GRADIENTS
from attncli.errors.text import counted, first_few, places
from attncli.problem.arguments import MOST_AXES, fewer_axes, shape_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.report import (
        Cause,
        CheckReport,
        Diagnosis,
        Stretch,
        Tolerance,
        Verdict,
    )

# How many explanations, and names of mistakes not tried, a report shows; JSON has all of them.
_SHOWN = 5


def report_lines(report: CheckReport) -> Iterator[str]:
    """Yield the whole report: verdicts, diagnosis and measured numbers."""
    diagnosis = report.told_diagnosis
    behind = {}
    for verdict in report.verdicts:
        headline, *numbers = _verdict_lines(verdict, report)
        yield headline
        if diagnosis is None or verdict.tolerance is None or verdict.passed:
            yield from numbers
        else:
            behind[verdict.name] = numbers
    if report.unjudged:
        yield report.unjudged
    if diagnosis is None:
        return
    yield ""
    yield from _diagnosis_lines(diagnosis, report)
    for name, numbers in behind.items():
        yield f"numbers of {name}"
        yield from numbers


def span_text(place: tuple[int | None, int | None], span: tuple[int, int]) -> str:
    """Return ``batch 0, head 2, queries 3 to 9``."""
    first, last = span[0], span[1] - 1
    rows = f"query {first}" if first == last else f"queries {first} to {last}"
    return ", ".join([*places(dict(zip(("batch", "head"), place, strict=True))), rows])


# What was measured.


def _verdict_lines(verdict: Verdict, report: CheckReport) -> Iterator[str]:
    yield f"{verdict.name}: {verdict.word} ({verdict.format}, shape {shape_text(verdict.shape)})"
    if verdict.tolerance is None:
        yield from _misshapen_lines(verdict)
        return
    yield _deciding_line(verdict, verdict.tolerance)
    if verdict.nonfinite:
        rows = counted(verdict.nonfinite_rows, "row")
        are = "is" if verdict.nonfinite == 1 else "are"
        elements = counted(verdict.nonfinite, "element")
        yield f"  {elements} in {rows} {are} NaN or infinite and should not be"
    if verdict.largest is None:
        judged = " that is judged" if report.unjudged else ""
        yield f"  every number{judged} equals the answer"
    else:
        place, where = verdict.largest, verdict.largest.text(verdict.name)
        error = f"{place.error:.3g}" if math.isfinite(place.error) else "not finite"
        numbers = f"file {place.found:.7g}, answer {place.answer:.7g}"
        yield f"  largest error {error} ({numbers}) at {where}"
    relative = verdict.largest_relative
    # Near an answer of 0, a relative error says little; NaN has been reported above.
    if relative is not None and math.isfinite(relative.error) and not verdict.passed:
        where = relative.text(verdict.name)
        yield f"  largest relative error {relative.error:.3g} at {where}"
    yield _tolerance_line(verdict.tolerance)
    if verdict.stretch is not None:
        yield _stretch_line(verdict.stretch)


def _misshapen_lines(verdict: Verdict) -> Iterator[str]:
    found, right, other = verdict.shape, verdict.expected_shape, verdict.shape_of
    of = f"that of the {GRADIENTS[verdict.name]}, " if verdict.name in GRADIENTS else ""
    yield f"  the answer has shape {of}{shape_text(right)}"
    if 0 in found:
        yield "  the file holds no numbers"
    # An lse has no last axis.
    too_many = len(found) > MOST_AXES - (verdict.name == "lse")
    same_end = found[-len(right) :] == right
    if too_many and (hint := fewer_axes(found, *([len(right)] if same_end else []))):
        yield f"  {hint}"
    if other == verdict.name:
        yield "  these are the weights of each head: leave --average-heads out"
    elif other == "mean weights":
        yield "  this is the shape of the mean weights: --expect weights=FILE --average-heads"
    elif other is not None:
        yield f"  this is the shape of {other}: --expect {other}=FILE"


def _deciding_line(verdict: Verdict, tolerance: Tolerance) -> str:
    """Return the rms and the share of wrong elements, first the one that fails."""
    share = 100 * verdict.outside / verdict.elements
    if verdict.outside < verdict.elements:  # no rounding to 100 % if some element is right
        share = min(share, 99.9)
    rms = f"{verdict.rms:.3g}" if math.isfinite(verdict.rms) else "not finite"
    most = "" if tolerance.rms is None else f" (at most {tolerance.rms:.3g})"
    together = f"rms error {rms}{most}"
    each = f"{verdict.outside} of {verdict.elements} elements ({share:.3g} %) outside the tolerance"
    by_elements = verdict.outside and (tolerance.rms is None or verdict.rms <= tolerance.rms)
    return f"  {each}; {together}" if by_elements else f"  {together}; {each}"


def _tolerance_line(tolerance: Tolerance) -> str:
    why = "earned" if tolerance.earned else "given"
    return (
        f"  the textbook formula errs by {tolerance.plain_error:.3g}; "
        f"tolerance {tolerance.absolute:.3g} + {tolerance.relative:.3g} · |answer| ({why})"
    )


def _stretch_line(stretch: Stretch) -> str:
    where = span_text((stretch.batch, stretch.head), stretch.queries)
    most = stretch.tolerance.rms
    return f"  one part by itself: rms error {stretch.rms:.3g} (at most {most:.3g}) at {where}"


# Why.


def _diagnosis_lines(diagnosis: Diagnosis, report: CheckReport) -> Iterator[str]:
    misshapen = any(verdict.tolerance is None for verdict in report.verdicts)
    yield f"diagnosis: {_summary(diagnosis, 'shape' if misshapen else 'numbers')}"
    for explanation in diagnosis.explanations[:_SHOWN]:
        yield from _explanation_lines(explanation)
    hidden = len(diagnosis.explanations) - _SHOWN
    if hidden > 0:
        yield f"  … and {hidden} more"
    if diagnosis.apart:
        yield f"  {diagnosis.apart}"
    if diagnosis.explanations and diagnosis.scope == "slices":
        yield (
            "  (tried on parts of the problem: around the first and the worst wrong row, and at a "
            "few other places)"
        )
    for finding in diagnosis.findings:
        yield f"  {finding}"
    if not diagnosis.explanations:
        yield from _further_lines(diagnosis, report)


def _further_lines(diagnosis: Diagnosis, report: CheckReport) -> Iterator[str]:
    if diagnosis.too_large:
        words = first_few(diagnosis.too_large, _SHOWN)
        yield f"  not tried, because the problem is too large: {words}; try a smaller problem"
    if not diagnosis.complete:
        yield "  the time limit was reached; a longer --time-limit may find more"
    outputs = (each for each in report.verdicts if each.name not in GRADIENTS)
    worst = next((place for each in outputs for place in each.worst_rows), None)
    if worst is not None:
        axes = (("batch", worst.batch), ("head", worst.head), ("query", worst.query))
        pick = " ".join(f"--{axis} {index}" for axis, index in axes if index is not None)
        yield (
            "  to see how a wrong row is computed, run attncli explain with the same files and "
            f"options, and with {pick}"
        )


def _summary(diagnosis: Diagnosis, wrong: str) -> str:
    causes = diagnosis.explanations
    if not causes:
        return _nothing_explained(diagnosis, wrong)
    if all(cause.fails_at for cause in causes):
        of_part = all(cause.right_there for cause in causes)
        return "the wrong part is explained" if of_part else "some of the numbers are explained"
    if diagnosis.unexplained:
        explained = dict.fromkeys(name for cause in causes for name in cause.outputs)
        return f"{_listed([*explained])} explained; {_listed(diagnosis.unexplained)} not"
    if len(causes) == 1:
        up_to = ", up to its own roundings" if causes[0].roughly else ""
        return f"one explanation makes the numbers agree{up_to}"
    if len({cause.outputs for cause in causes}) > 1:
        return "each output has its own explanation"
    return f"{len(causes)} explanations make the numbers agree equally well"


def _nothing_explained(diagnosis: Diagnosis, wrong: str) -> str:
    if not diagnosis.tells:
        return (
            "the output cannot tell: it shows too few independent numbers, and many mistakes could "
            "change so few"
        )
    if diagnosis.tried:
        return f"no known mistake explains the {wrong}"
    if diagnosis.complete:
        return "the file holds one number, or NaN, everywhere, so no mistake can be identified"
    return "the time limit was reached before a known mistake was tried"


def _listed(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _explanation_lines(cause: Cause) -> Iterator[str]:
    for number, mistake in enumerate(cause.conventions):
        yield f"  {'and ' * bool(number)}{mistake.meaning} [{mistake.name}]"
        yield f"    fix: {mistake.fix}"
    if cause.options:
        options = "; ".join(cause.options)
        entry = " (of a problem file, with --without)" if options.startswith("leave ") else ""
        yield f"    to reproduce {_reproduced(cause)} with attncli: {options}{entry}"
    if cause.fails_at:
        only = "it holds for a part only: the file is right at"
        fails = "it does not explain everything: it fails at"
        yield f"    {only if cause.right_there else fails} {cause.fails_at}, for example"
    where = "elsewhere " if cause.fails_at and not cause.right_there else ""
    size = ", as large as its roundings" if cause.roughly else ""
    yield f"    remaining error {where}in {', '.join(cause.outputs)}: {cause.error:.3g}{size}"


def _reproduced(cause: Cause) -> str:
    mistakes, told = len(cause.conventions), len(cause.options)
    if told < mistakes:
        return f"{told} of the {mistakes} mistakes"
    which = "the mistake" if mistakes == 1 else "both mistakes"
    return f"{which} in {' and '.join(cause.outputs)} alone" if cause.alone else which
