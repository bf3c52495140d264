"""A report in words, line by line; the same lines for `str(report)` and for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.errors.names import GRADIENTS, SQUARE
from attncli.errors.text import counted, places
from attncli.problem.arguments import MOST_AXES, fewer_axes, shape_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.report import (
        Cause,
        CheckReport,
        Diagnosis,
        Place,
        Stretch,
        Tolerance,
        Verdict,
    )

__all__ = ["report_lines"]

_ONE_NUMBER = "the file holds one number, or NaN, everywhere, so no mistake can be identified"
_NOTHING_KNOWN = "no known mistake explains the {}"
_NOTHING_TRIED = "no known mistake was tried: the time limit came first"
# More explanations than this would help nobody.
_SHOWN = 5
# Conventions that could not be tried; JSON has all.
_NAMED = 5
_QUERIES = ("query", "queries")
_MATRIX = 2
_COUNTS = ("none", "one", "two", "three")
# What is left beside these is what a narrower format rounds by.
_ROUNDED = ("computed_in_half", "computed_in_float32")


def report_lines(report: CheckReport) -> Iterator[str]:
    """Yield the whole report: verdicts, diagnosis, and the numbers that they rest on."""
    diagnosis = report.told_diagnosis
    for verdict in report.verdicts:
        headline, *numbers = _verdict_lines(verdict, report)
        yield headline
        yield from numbers if _before_diagnosis(verdict, diagnosis) else ()
    if report.unjudged:
        yield report.unjudged
    if diagnosis is None:
        return
    yield ""
    yield from _diagnosis_lines(diagnosis, report)
    for verdict in report.verdicts:
        if not _before_diagnosis(verdict, diagnosis):
            yield f"numbers of {verdict.name}:"
            yield from list(_verdict_lines(verdict, report))[1:]


def _before_diagnosis(verdict: Verdict, diagnosis: Diagnosis | None) -> bool:
    """Return whether what was measured stands beside the verdict: a shape does."""
    return diagnosis is None or verdict.tolerance is None or verdict.passed


def _worst_row(report: CheckReport) -> Place | None:
    """Return a place in the worst row of the first output that is wrong; None if there is none."""
    rows = (place for verdict in report.verdicts for place in verdict.worst_rows)
    return next(rows, None)


def _verdict_lines(verdict: Verdict, report: CheckReport) -> Iterator[str]:
    """Yield what was measured for one output: a headline, then indented lines."""
    yield f"{verdict.name}: {verdict.word} ({verdict.format}, shape {shape_text(verdict.shape)})"
    if verdict.tolerance is None:
        yield from _misshapen_lines(verdict)
        return
    yield _deciding_line(verdict, verdict.tolerance)
    if verdict.nonfinite:
        rows = counted(verdict.nonfinite_rows, "row")
        yield (
            f"  {counted(verdict.nonfinite, 'element')} in {rows} "
            f"{'is' if verdict.nonfinite == 1 else 'are'} NaN or infinite and should not be"
        )
    if verdict.largest is None:
        judged = " that is judged" if report.unjudged else ""
        yield f"  every number{judged} equals the answer"
    else:
        where = verdict.largest.text(verdict.name)
        yield f"  largest error {_number(verdict.largest)} at {where}"
    relative = verdict.largest_relative
    # Beside an answer near 0 it says little; NaN has been told of.
    if relative is not None and math.isfinite(relative.error) and not verdict.passed:
        where = relative.text(verdict.name)
        yield f"  largest relative error {relative.error:.3g} at {where}"
    yield from _tolerance_lines(verdict, verdict.tolerance)
    if verdict.stretch is not None:
        yield _stretch_line(verdict.stretch)


def _misshapen_lines(verdict: Verdict) -> Iterator[str]:
    of = f"that of the {GRADIENTS[verdict.name]}, " if verdict.name in GRADIENTS else ""
    yield f"  the answer has shape {of}{shape_text(verdict.expected_shape)}"
    if 0 in verdict.shape:
        yield "  the file holds no numbers"
    if (hint := _fewer_axes(verdict)) is not None:
        yield f"  {hint}"
    if (counts := _one_axis(verdict)) is not None:
        yield f"  {counts}"
    if verdict.shape_of == verdict.name:
        yield "  these are the weights of each head: leave --average-heads out"
    elif verdict.shape_of == "mean weights":
        yield "  this is the shape of the mean weights: --expect weights=FILE --average-heads"
    elif verdict.shape_of is not None:
        name = verdict.shape_of
        yield f"  this is the shape of {name}: --expect {name}=FILE"


def _fewer_axes(verdict: Verdict) -> str | None:
    """Return how a file of more axes than any output has is made one of the answer's."""
    found, right = verdict.shape, verdict.expected_shape
    if found[-len(right) :] != right:
        return fewer_axes(found)
    most = MOST_AXES - (verdict.name == "lse")  # which has no last axis
    return fewer_axes(found, len(right)) if len(found) > most else None


def _one_axis(verdict: Verdict) -> str | None:
    """Return which axis has another length, if it is only one, and known whatever the layout."""
    found, right = verdict.shape, verdict.expected_shape
    other = [
        place for place in range(len(right)) if found[place : place + 1] != right[place : place + 1]
    ]
    if len(found) != len(right) or len(other) != 1:
        return None
    (place,) = other
    axis = _axes(verdict.name, len(right))[place]
    if axis is None:
        return None
    return f"the file has {counted(found[place], *axis)}, the answer {counted(right[place], *axis)}"


def _axes(name: str, count: int) -> list[tuple[str, str] | None]:
    """Return the name of each axis of an output, one and several; None where layouts differ."""
    if name in GRADIENTS:
        known = []
    elif name == "context":
        known = [_QUERIES, ("column", "columns")] if count == _MATRIX else []
    else:
        last = [_QUERIES, ("key", "keys")] if name in SQUARE else [_QUERIES]
        whole = len(last) + 2 == count
        known = [("batch entry", "batch entries"), ("head", "heads"), *last] if whole else last
    return [None] * (count - len(known)) + known


def _tolerance_lines(verdict: Verdict, tolerance: Tolerance) -> Iterator[str]:
    why = "earned" if tolerance.earned else "given"
    yield (
        f"  the textbook formula in {verdict.format} errs by {tolerance.plain_error:.3g}; "
        f"tolerance {tolerance.absolute:.3g} + {tolerance.relative:.3g} · |answer| ({why})"
    )


def _deciding_line(verdict: Verdict, tolerance: Tolerance) -> str:
    """Return what decides: the root mean square, and the elements; what fails stands first."""
    share = _percent(verdict.outside, verdict.elements)
    rms = f"{verdict.rms:.3g}" if math.isfinite(verdict.rms) else "not finite"
    most = "" if tolerance.rms is None else f" (at most {tolerance.rms:.3g})"
    both = [
        f"rms error {rms}{most}",
        f"{verdict.outside} of {verdict.elements} elements ({share} %) outside the tolerance",
    ]
    by_elements = verdict.outside and (tolerance.rms is None or verdict.rms <= tolerance.rms)
    return "  " + "; ".join(both[:: -1 if by_elements else 1])


def _stretch_line(stretch: Stretch) -> str:
    first, behind = stretch.queries
    where = [
        *places({"batch": stretch.batch, "head": stretch.head}),
        f"query {first}" if behind - first == 1 else f"queries {first} to {behind - 1}",
    ]
    return (
        f"  a part by itself: rms error {stretch.rms:.3g} (at most "
        f"{stretch.tolerance.rms:.3g}) at {', '.join(where)}"
    )


def _percent(count: int, all_: int) -> str:
    """Return a share in percent; it is 100 only where nothing is missing."""
    share = 100 * count / all_
    return f"{share if count == all_ else min(share, 99.9):.3g}"


def _number(place: Place) -> str:
    error = f"{place.error:.3g}" if math.isfinite(place.error) else "not finite"
    return f"{error} (file {place.found:.7g}, answer {place.answer:.7g})"


def _diagnosis_lines(diagnosis: Diagnosis, report: CheckReport) -> Iterator[str]:
    """Yield the diagnosis, and where nothing is explained where to look."""
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
    if diagnosis.too_large and not diagnosis.explanations:
        more = len(diagnosis.too_large) - _NAMED
        words = ", ".join(diagnosis.too_large[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield (
            f"  not tried, as they need too much of the problem at once: {words}; a smaller one "
            "may show them"
        )
    if not diagnosis.complete:
        yield (
            f"  the time limit was reached after {diagnosis.tried} tries; a longer "
            "--time-limit may find more"
        )
    worst = _worst_row(report)
    if worst is not None and not diagnosis.explanations:
        yield (
            "  to see every number on the way of a wrong row: attncli explain, with the same files "
            f"and options and {_pick(worst)}"
        )


def _pick(place: Place) -> str:
    """Return the options that choose a row: ``--head 3 --query 5``."""
    axes = (("batch", place.batch), ("head", place.head), ("query", place.query))
    return " ".join(f"--{axis} {index}" for axis, index in axes if index is not None)


def _summary(diagnosis: Diagnosis, wrong: str) -> str:
    count = len(diagnosis.explanations)
    if count == 0:
        if diagnosis.tried == 0:
            return _ONE_NUMBER if diagnosis.complete else _NOTHING_TRIED
        return _NOTHING_KNOWN.format(wrong)
    return _in_part(diagnosis) or _in_whole(diagnosis, count)


def _in_part(diagnosis: Diagnosis) -> str | None:
    """Return the summary where a part is explained, or errors within the tolerance."""
    if all(explanation.right_there for explanation in diagnosis.explanations):
        return "the wrong part is explained"
    if all(explanation.fails_at for explanation in diagnosis.explanations):
        return "some of the numbers are explained"
    if diagnosis.unexplained:
        explained = dict.fromkeys(n for e in diagnosis.explanations for n in e.outputs)
        rest = _listed(diagnosis.unexplained)
        return f"{_listed([*explained])} explained; {rest} not"
    return None


def _in_whole(diagnosis: Diagnosis, count: int) -> str:
    if count == 1:
        up_to = ", up to its own roundings" if _is_rough(diagnosis.explanations[0]) else ""
        return f"one explanation makes the numbers agree{up_to}"
    if len({explanation.outputs for explanation in diagnosis.explanations}) > 1:
        return "each output has its own explanation"
    return f"{count} explanations make the numbers agree equally well"


def _listed(names: Sequence[str]) -> str:
    """Return names with their verb: ``weights and lse are``."""
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb}"


def _explanation_lines(explanation: Cause) -> Iterator[str]:
    for number, convention in enumerate(explanation.conventions):
        lead = "  and " if number else "  "
        yield f"{lead}{convention.meaning} [{convention.name}]"
        yield f"    fix: {convention.fix}"
    if explanation.options:
        which, options = _reproduced(explanation), "; ".join(explanation.options)
        entry = " (of a problem file, with --without)" if options.startswith("leave ") else ""
        yield f"    to reproduce {which} with attncli: {options}{entry}"
    if explanation.fails_at:
        only = "it is true of a part only: the file is right at"
        fails = "it does not explain everything: it fails at"
        words = only if explanation.right_there else fails
        yield f"    {words} {explanation.fails_at}, for example"
    where = "elsewhere " if explanation.fails_at and not explanation.right_there else ""
    left = (
        f"    remaining error {where}in {', '.join(explanation.outputs)}: {explanation.error:.3g}"
    )
    if explanation.conventions[-1].name in _ROUNDED:
        left += ", by rounding"
    yield left + (", as large as its roundings" if _is_rough(explanation) else "")


def _is_rough(explanation: Cause) -> bool:
    """Return whether it says only in part what is rounded, so that errors of that size are left."""
    return any(convention.roughly for convention in explanation.conventions)


def _reproduced(explanation: Cause) -> str:
    mistakes, told = len(explanation.conventions), len(explanation.options)
    if told < mistakes:
        return f"{_COUNTS[told]} of the {_COUNTS[mistakes]} mistakes"
    which = "the mistake" if mistakes == 1 else "both mistakes"
    return f"{which} in {' and '.join(explanation.outputs)} alone" if explanation.alone else which
