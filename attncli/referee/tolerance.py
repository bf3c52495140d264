"""An earned tolerance: how large the errors of a correct computation may be.

The textbook formula (Q·Kᵀ, softmax, ·V, every intermediate result stored in the format
of the file) is one right way to compute it. Its largest error against float64 is
measured on the very problem, and a file passes if its own error is within `FACTOR`
times that, plus two units in the last place of a typical element and four of its own.
This is the rule of FlashAttention's tests, which take a factor of 2 and the last
place of numbers around 1; but the largest of many errors is a matter of luck. Of a large
problem it is measured on a sample of its rows, and on those that look wrong by it: rows of
hot scores that nearly tie err by far more than others, whoever computes them. Where the
textbook formula is exact by luck, what one rounding of each score and each rotary angle may do
(`attncli.referee.score_rounding`) is tolerated.

In a 16-bit format that is large compared with a context whose values nearly cancel: a lost
key would pass. Rounding errors have either sign and are rarely at their largest; so their
root mean square is held to that of the textbook formula, too, and more strictly.

Elements that are huge beside the others (scores with a bias of −1e9) round by huge
amounts: what an element's own rounding explains is not counted as error of the formula.

References
----------
Dao 2023, "FlashAttention-2", and its ``tests/test_flash_attn.py``: the error must not
exceed twice that of a PyTorch implementation in the same precision.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from attncli.referee.report import Tolerance
from attncli.referee.rounding import PRECISIONS, Digits, Precision

if TYPE_CHECKING:
    from attncli.referee.plain_errors import Plain

__all__ = ["earned", "usual"]

FACTOR = 6.0
_RMS_FACTOR = 3.0
_RMS_FACTOR_OF_MOST = 1.5


def earned(plain: Plain, precision: Precision, digits: Digits) -> Tolerance:
    """Return the tolerance that the textbook formula's error earns.

    Parameters
    ----------
    plain : Plain
    precision : Precision
        The format of the file.
    digits : Digits
        What printing took away.
    """
    rms = max(_factor(_RMS_FACTOR, plain) * plain.rms, plain.rms_rounded)
    return Tolerance(
        absolute=max(FACTOR * plain.excess, plain.rounded)
        + 2 * precision.eps * plain.size
        + digits.absolute,
        relative=4 * precision.eps + digits.relative,
        earned=True,
        plain_error=plain.largest,
        rms=_with_rows_apart(rms, plain) + _unavoidable(plain, plain.rms_answer, precision, digits),
    )


def usual(plain: Plain, precision: Precision, digits: Digits) -> Tolerance:
    """Return the tolerance that most right computations keep to, which is stricter.

    The largest root mean square is that of all rows together, not that of the worst part. What
    exceeds it is not wrong yet, but worth a look for a mistake.

    Parameters
    ----------
    plain, precision, digits
        As in `earned`.
    """
    tolerance = earned(plain, precision, digits)
    rms = _factor(_RMS_FACTOR_OF_MOST, plain) * plain.pooled
    rms = _with_rows_apart(rms, plain)
    rms += _unavoidable(plain, plain.pooled_answer, precision, digits)
    return replace(tolerance, rms=min(rms, tolerance.rms or rms))


def _with_rows_apart(rms: float, plain: Plain) -> float:
    """Return a root mean square with the rows that were measured by themselves."""
    return math.hypot(rms, _RMS_FACTOR * math.sqrt(plain.apart))


def _factor(factor: float, plain: Plain) -> float:
    """Return a factor of a root mean square, larger where that is of few rows and unreliable."""
    return factor * (1 + 2 / math.sqrt(max(plain.rows, 1)))


def _unavoidable(plain: Plain, rms_answer: float, precision: Precision, digits: Digits) -> float:
    """Return the root mean square of what every computation may err by.

    Numbers that the textbook formula makes exactly, by luck, may be rounded once by another;
    16-bit formats accumulate in float32.
    """
    stored = 0.5 * precision.eps * rms_answer
    summed = 4 * min(precision.eps, PRECISIONS["float32"].eps) * plain.size
    printed = digits.absolute + digits.relative * rms_answer
    return stored + summed + printed
