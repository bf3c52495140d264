"""Files whose numbers are less exact than the format they are stored in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.plain_errors import plain_errors_of
from attncli.referee.report import Cause
from attncli.referee.rounding import PRECISIONS, Digits, Precision, narrowest
from attncli.referee.tolerance import earned
from attncli.referee.verdict import Errors, distance

if TYPE_CHECKING:
    from attncli.referee.question import Question
    from attncli.referee.recipe import Recipe

__all__ = [
    "SINGLE",
    "computed_in_half",
    "computed_in_single",
    "in_single",
    "may_be_mixed",
    "narrowed",
]

# Rounding numbers around 1 to float32 costs at least some hundredths of its eps.
_ALIKE = 0.02
# As a share of the largest number of the answer.
_SAYS_NOTHING = 0.25


def narrowed(question: Question) -> Question:
    """Return the question with the narrowest formats that hold every number of the files."""
    precisions = {n: narrowest(file, question.precisions[n]) for n, file in question.files.items()}
    return question if precisions == question.precisions else _judged_in(question, precisions)


def in_single(question: Question) -> Question:
    """Return the question about files that are no more exact than float32."""
    return _judged_in(question, dict.fromkeys(question.files, PRECISIONS["float32"]))


def _judged_in(question: Question, precisions: dict[str, Precision]) -> Question:
    """Return the question with other formats of the files, and what these earn."""
    plain = plain_errors_of(question.problem, precisions, question.doubtful)
    outputs = {}
    for name, old in question.outputs.items():
        file = replace(old.file, precision=precisions[name])
        own = earned(plain[name], file.precision, file.digits)
        outputs[name] = replace(
            old, file=file, tolerance=own if old.tolerance.earned else old.tolerance
        )
    return replace(question, outputs=outputs)


def _as_it_is(recipe: Recipe) -> Recipe:
    return recipe


_rounded = partial(Convention, apply=_as_it_is, topic=topics.PRECISION, shows="almost any input")


def computed_in_half(question: Question, narrow: Question) -> Cause | None:
    """Return the explanation that files are right in the 16-bit format of their numbers.

    Parameters
    ----------
    question : Question
    narrow : Question
        What `narrowed` makes of it.
    """
    return None if narrow is question else _stored_wider(narrow, _in_half(narrow))


def _in_half(narrow: Question) -> Convention:
    names = {precision.name for precision in narrow.precisions.values() if precision.short}
    formats = " and ".join(sorted(names))
    return _rounded(
        "computed_in_half",
        f"the numbers are {formats} numbers, stored in a wider format",
        fix="compute in float32; or give query, key and value rounded to "
        f"{formats}, so that the file is judged in that format",
    )


SINGLE = _rounded(
    "computed_in_float32",
    "the numbers are only as exact as float32, but stored as float64",
    fix="convert query, key and value to float64 first, or save the output as float32",
)


def computed_in_single(question: Question) -> Cause | None:
    """Return the explanation that files of float64 are as exact as float32's, and no more."""
    single = PRECISIONS["float32"]
    if any(precision.name != "float64" for precision in question.precisions.values()):
        return None
    found = _stored_wider(in_single(question), SINGLE)
    largest = max(
        float(np.abs(one.answer[np.isfinite(one.answer)]).max(initial=0))
        for one in question.outputs.values()
    )
    # An error in the last few digits of float64 has another cause.
    return None if found is None or found.error < _ALIKE * single.eps * largest else found


def _stored_wider(question: Question, convention: Convention) -> Cause | None:
    """Return the explanation that all files are right in the narrower format of their numbers."""
    plain = plain_errors_of(question.problem, question.precisions, question.doubtful)
    largest = 0.0
    for name, one in question.outputs.items():
        found, answer = one.file.values, one.answer
        tolerance = earned(plain[name], one.file.precision, Digits())
        if one.errors is None or not one.tolerance.earned:
            return None
        errors = Errors(distance(found, answer), answer, tolerance)
        finite = answer[np.isfinite(answer)]
        # A few rows that round by their own size would let any numbers pass in the others.
        lax = tolerance.absolute > _SAYS_NOTHING * float(np.abs(finite).max(initial=0))
        if lax or not errors.passed:
            return None
        largest = max(largest, float(errors.error.max()))
    return Cause(conventions=(convention,), outputs=tuple(question.files), error=largest)


def may_be_mixed(question: Question) -> bool:
    """Return whether files of float64 may have been made of products in float32.

    NumPy divides an array of float32 by `np.sqrt(8)` in float64.
    """
    problem, made = question.problem, question.problem.made_from
    given: list[Any] = [problem.query, problem.key, problem.value]
    if made is not None:
        given = [made.arguments[name] for name in ("x", "wq", "wk")]
    widths = [array.dtype.itemsize for array in given if array is not None]
    exact = all(precision.name == "float64" for precision in question.precisions.values())
    earned_all = all(one.tolerance.earned for one in question.outputs.values())
    return exact and earned_all and max(widths) <= PRECISIONS["float32"].computing.itemsize
