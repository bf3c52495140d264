"""Cases: a problem, a wrong output, and the names that are right for it.

A family is a table to whose names functions of `Given` are assigned, which return the wrong output,
or which keys each query sees.
What stands before `` @ `` in a row's name is what a referee should say: names that are all right
are separated by ``|``, and two mistakes at once by ``+``. ``passes`` is for outputs that are right.
"""

from __future__ import annotations

import os
import time
import warnings
import zlib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from referee.plain import FORMATS, Given, draw

import attncli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "Case", "Outcome", "check", "chosen", "family", "judged", "names_of"]

CASES: dict[str, Case] = {}
# Another module may be measured in the place of the package's own referee.
check = import_module(os.environ.get("ATTNCLI_REFEREE", "attncli")).check
SHAPE = (2, 4, 6, 8)


@dataclass(frozen=True)
class Case:
    """One problem and one output of it."""

    name: str  # part, family and row
    part: str  # what is wrong: scale, mask, rope, …
    # Each is the parts of a name that is right; empty where the output is right.
    names: frozenset[frozenset[str]]
    # From the seed to the problem, the output and options of the check.
    make: Callable[[int], tuple[Any, Any, dict[str, Any]]]
    # The arrays and options that the problem is posed with; None where the case makes its own.
    stated: Callable[[int], tuple[Any, dict[str, Any]]] | None = None

    def report(self, seed: int = 0, **options: Any) -> Any:
        problem, output, more = self.make(seed)
        return check(output, problem, **({"time_limit": 100.0} | more | options))


@dataclass(frozen=True)
class Outcome:
    """What the referee said: ``named``, ``missed``, ``other`` names, ``alarm`` or ``passed``."""

    case: Case
    word: str
    found: tuple[str, ...]
    seconds: float

    @property
    def good(self) -> bool:
        return self.word in ("named", "passed")


def parts_of(name: str) -> frozenset[str]:
    return frozenset(name.split("+"))


def names_of(report: Any) -> list[str]:
    """Return the names of all explanations, the first one first."""
    found = report.diagnosis
    return [] if found is None else [cause.name for cause in found.explanations]


def judged(case: Case, seed: int = 0, **options: Any) -> Outcome:
    """Ask the referee; what it names beside right names may only be other right names."""
    started = time.process_time()
    report = case.report(seed, **options)
    seconds = time.process_time() - started
    found = names_of(report)
    if not case.names:
        word = "passed" if report.passed else "alarm"
    elif not found:
        word = "missed"
    elif {parts_of(name) for name in found} <= case.names:
        word = "named"
    else:
        word = "among" if {parts_of(name) for name in found} & case.names else "other"
    return Outcome(case, word, tuple(found), seconds)


def posed(inputs: Any, options: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attncli.pose(*inputs, **options)


def stored(output: Any, dtype: str) -> Any:
    """Return an output in its format; bfloat16 lies in float32."""
    if isinstance(output, dict):
        return {name: stored(array, dtype) for name, array in output.items()}
    if dtype == "bfloat16":
        return FORMATS[dtype](output).astype("f4")
    with np.errstate(over="ignore"):
        return np.asarray(output).astype(dtype)


class Rows:
    """A table of cases: a function that is assigned to a name is one more of them."""

    def __init__(self, add_row: Callable[[str, Any], None]) -> None:
        self._add_row = add_row

    def __setitem__(self, row: str, function: Callable[..., Any]) -> None:
        self._add_row(row, function)


def told(row: str) -> list[str]:
    """Return the names that are right for a row; none for what passes."""
    names = row.partition(" @ ")[0]
    return [] if names == "passes" else names.split("|")


def family(
    name: str,
    *,
    shapes: Any = SHAPE,
    options: Any = None,
    dtype: str = "float32",
    inputs: str | None = None,
    change: Any = None,
    output: str = "context",
    beside: tuple[str, ...] = (),
) -> Rows:
    """Return a table of cases.

    Parameters
    ----------
    name : str
        Part, or part and family: ``"mask/padding"``.
    shapes : tuple
        Of query, key and value; one shape is that of all three, and two are of query and of both
        others.
    options : dict or callable
        What is told to `attncli.pose`; a callable gets a random generator.
    dtype, inputs : str
        Of output and inputs; inputs are of the output's format unless told.
    change : callable, optional
        Changes the inputs, a list of arrays, before they are given.
    output : str
        What the functions return.
    beside : tuple of str
        Names that may stand beside that of each row, or not.
    """
    all_shapes = _three(shapes)

    def add_row(row: str, function: Any) -> None:
        names = told(row)
        names += [f"{name}+{other}" for name in names for other in beside]

        def given(seed: int) -> Given:
            return _given(seed, row, all_shapes, options, inputs or dtype, change)

        def make(seed: int) -> Any:
            own = given(seed)
            with np.errstate(all="ignore"):
                wrong = function(own)
                if getattr(wrong, "dtype", None) in (bool, np.bool_):
                    wrong = own.attend(wrong)
            wrong = wrong if isinstance(wrong, dict) or output == "context" else {output: wrong}
            return posed(own.inputs, own.options), stored(wrong, dtype), {}

        def stated(seed: int) -> Any:
            own = given(seed)
            return own.inputs, own.options

        add(f"{name}/{row}", names, make, stated=stated)

    return Rows(add_row)


def add(name: str, names: Any, make: Any, *, stated: Any = None) -> None:
    """Add a case that makes its own problem."""
    if name in CASES:
        raise ValueError(f"two cases have the name {name}")
    found = frozenset(parts_of(each) for each in names)
    CASES[name] = Case(name, name.partition("/")[0], found, make, stated)


def _three(shapes: Any) -> list[tuple[int, ...]]:
    if isinstance(shapes[0], int):
        return [shapes] * 3
    return [shapes[0], shapes[1], shapes[1]] if len(shapes) == 2 else list(shapes)


def _given(seed: int, row: str, shapes: Any, options: Any, dtype: str, change: Any) -> Given:
    made = draw(seed, *shapes, dtype="float64")
    if change is not None:
        made = change(made)
    made = [stored(array, dtype) for array in made]
    random = np.random.default_rng([seed, zlib.crc32(row.encode())])
    told = options(np.random.default_rng(seed + 100)) if callable(options) else dict(options or {})
    return Given(made, told, random)


def chosen(only: str = "") -> Iterator[Case]:
    """Yield cases whose name holds some text."""
    return (case for case in CASES.values() if only in case.name)
