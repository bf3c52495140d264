"""The report of `attncli.check`, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.errors import ShapeError, UsageError
from attncli.errors.names import SQUARE
from attncli.errors.text import labelled
from attncli.problem.arguments import shape_text
from attncli.referee.wording import report_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.referee.mistakes.table import Mistake


@dataclass(frozen=True)
class Tolerance:
    """The largest error that a number of the file may have: absolute + relative · |answer|."""

    absolute: float
    relative: float
    earned: bool  # derived from the errors of the textbook formula in the format of the file
    plain_error: float  # the largest absolute error of that formula
    rms: float | None = None  # the largest root mean square error allowed; None for any

    def allowed(self, answer: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the tolerance of each element."""
        size = np.where(np.isfinite(answer), np.abs(answer), 0)
        return self.absolute + self.relative * size


@dataclass(frozen=True)
class Place:
    """One element and its error."""

    batch: int | None  # None if the problem has no batch axis
    head: int | None  # None if the problem has no head axis
    query: int
    column: int | None  # the key, or the component of the context; None for the lse
    query_label: str | None
    column_label: str | None
    found: float  # the number of the file
    answer: float
    error: float  # absolute, or relative to the answer

    def text(self, output: str) -> str:
        """Return its place in an output: ``batch 0, head 2, query 3 (cat), column 5``."""
        across = "key" if output in (*SQUARE, "dbias") else "column"
        row = "key" if output in ("dkey", "dvalue") else "query"
        axes: list[tuple[str, int | None, str | None]]
        axes = [("batch", self.batch, None), ("head", self.head, None)]
        if output != "dsinks":
            axes.append((row, self.query, self.query_label))
            axes.append((across, self.column, self.column_label))
        return ", ".join(
            f"{axis} {labelled(index, label)}" for axis, index, label in axes if index is not None
        )


@dataclass(frozen=True)
class Stretch:
    """A few queries whose errors are too large for their own numbers."""

    batch: int | None  # None if the problem has no batch axis
    head: int | None  # None if the problem has no head axis
    queries: tuple[int, int]  # the first, and the end (exclusive)
    rms: float  # root mean square of their errors; in 16 bits without the two worst rows
    tolerance: Tolerance  # earned by these queries alone


@dataclass(frozen=True)
class Verdict:
    """One output of the other implementation, compared with the answer."""

    name: str
    format: str  # of the numbers: float16, bfloat16, float32, float64, or ``4 digits``
    shape: tuple[int, ...]
    expected_shape: tuple[int, ...]  # if the shapes differ, nothing else was measured
    passed: bool
    shape_of: str | None = None  # the other output that has this shape, or ``mean weights``
    tolerance: Tolerance | None = None
    largest: Place | None = None  # the largest absolute error; None if all elements agree
    largest_relative: Place | None = None
    rms: float = 0.0  # root mean square of all errors; infinite if one error is infinite
    elements: int = 0
    outside: int = 0  # the number of elements outside the tolerance
    nonfinite: int = 0  # the number of elements that are NaN or infinite by mistake
    nonfinite_rows: int = 0  # the number of rows with such elements
    worst_rows: tuple[Place, ...] = ()  # the largest error of each row, the worst row first
    stretch: Stretch | None = None  # queries that are wrong by themselves

    @property
    def word(self) -> str:
        """``"ok"`` or ``"MISMATCH"``."""
        return "ok" if self.passed else "MISMATCH"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Mistakes that make the numbers agree."""

    conventions: tuple[Mistake, ...]  # one mistake, or two together
    options: tuple[str, ...] = ()  # options that reproduce it with attncli, if there are any
    outputs: tuple[str, ...]  # the outputs that it explains
    error: float  # the largest absolute error that is left
    fails_at: str = ""  # a part of a large problem that it does not explain, if one was found
    right_there: bool = False  # the file is right in all parts where it fails
    alone: bool = False  # other outputs are right, and the mistake would make them wrong

    @property
    def name(self) -> str:
        """The names of the mistakes, joined by ``+``."""
        return "+".join(mistake.name for mistake in self.conventions)

    @property
    def roughly(self) -> bool:
        """Whether the error that is left is as large as roundings that are not known."""
        return any(mistake.roughly for mistake in self.conventions)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The reasons that were found why the numbers differ."""

    explanations: tuple[Cause, ...] = ()  # all explain the data equally
    apart: str = ""  # how to distinguish several explanations
    findings: tuple[str, ...] = ()  # sentences about where the errors are
    scope: Literal["all", "slices"] = "all"  # slices: only parts of a large problem were tried
    tried: int = 0  # the number of mistakes and pairs that were tried
    complete: bool = True  # False where the time limit came first
    too_large: tuple[str, ...] = ()  # mistakes that were not tried on a problem of this size
    unexplained: tuple[str, ...] = ()  # wrong outputs without explanation, if others have one
    # False if the output has no more independent numbers than a mistake has free parameters.
    tells: bool = True

    def __add__(self, other: Diagnosis) -> Diagnosis:
        """Return the results of two searches together."""
        return replace(
            self,
            explanations=self.explanations + other.explanations,
            findings=self.findings + other.findings,
            tried=self.tried + other.tried,
            complete=self.complete and other.complete,
            too_large=self.too_large + other.too_large,
        )


@dataclass(frozen=True, eq=False)
class CheckReport:
    """The result of `attncli.check`: the verdicts on the outputs, and the diagnosis. Printable.

    Attributes
    ----------
    verdicts : tuple of Verdict
        One for each output.
    diagnosis : Diagnosis or None
        None if everything passed, or no diagnosis was requested.
    unjudged : str
        A sentence about the queries that are not judged; empty where all are judged.
    """

    verdicts: tuple[Verdict, ...]
    diagnosis: Diagnosis | None
    _files: Mapping[str, npt.NDArray[Any]] = field(repr=False)
    _answers: Mapping[str, npt.NDArray[Any]] = field(repr=False)
    unjudged: str = ""

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(verdict.passed for verdict in self.verdicts)

    def __bool__(self) -> bool:
        """Whether every output is right."""
        return self.passed

    def difference(self, name: str) -> npt.NDArray[np.float64]:
        """Return file − answer, in their common shape; 0 where both are the same infinity.

        Raises
        ------
        UsageError
            The output was not checked.
        ShapeError
            The file has another shape than the answer.
        """
        found, answer = self._both(name)
        if found.shape != answer.shape:
            raise ShapeError(
                f"{name}: the file has shape {shape_text(found.shape)} and the answer "
                f"{shape_text(answer.shape)}; a difference needs equal shapes"
            )
        with np.errstate(invalid="ignore"):
            return np.where(found == answer, 0.0, found - answer)

    def _both(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if name not in self._files:
            raise UsageError(
                f"there is no difference of {name}: the report is on {', '.join(self._files)}"
            )
        return self._files[name], self._answers[name]

    def hidden(self, name: str) -> npt.NDArray[np.bool_]:
        """Return the elements that both file and answer hide: weights of 0, scores of −inf.

        Raises
        ------
        UsageError
            The output was not checked.
        """
        found, answer = self._both(name)
        if name == "weights":
            return np.asarray((found == 0) & (answer == 0))
        return np.asarray(np.isneginf(found) & np.isneginf(answer))

    @property
    def told_diagnosis(self) -> Diagnosis | None:
        """The diagnosis; None if it explains nothing and a file seems to be another output."""
        found = self.diagnosis
        meant = any(verdict.shape_of for verdict in self.verdicts)
        return None if found is not None and meant and not found.explanations else found

    def __repr__(self) -> str:
        """Name the outputs and the mistakes; ``print(report)`` says it in words."""
        words = ", ".join(f"{each.name} {each.word}" for each in self.verdicts)
        causes = self.diagnosis.explanations if self.diagnosis else ()
        found = f"; {' or '.join(cause.name for cause in causes)}" if causes else ""
        return f"<CheckReport: {words}{found}>"

    def __str__(self) -> str:
        return "\n".join(report_lines(self))
