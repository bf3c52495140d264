"""Fittings, and the names of the mistakes that they find: ``words.csv`` has a line for each."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors.text import first_few
from attncli.referee.mistakes.table import Mistake, fields_of, where_it_applies, words_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from attncli.referee.formats import Array
    from attncli.referee.mistakes.table import Change
    from attncli.referee.parts import Case

_NAMED = 4


# {0}, {1}, … stand for the fitted parameters.
WORDS = words_beside(__file__)


class Fitting(NamedTuple):
    """A way to read a mistake off the numbers of the files."""

    look: Callable[[Sequence[Case]], Mistake | None]  # None if the files show no such mistake
    needs: frozenset[str] = frozenset()  # axes that must be whole: ``batch``, ``heads``, ``rows``
    of_part: bool = False  # the fit holds for one part only: in another part it is made anew


def needs_of(name: str) -> frozenset[str]:
    """Return the axes that must be whole for a fit."""
    return frozenset(WORDS[name]["needs"].split())


def at_first(look: Callable[[Case], Mistake | None], name: str) -> Fitting:
    """Make a fitting that looks at the first case only."""
    return Fitting(lambda cases: look(cases[0]), needs_of(name))


def found(name: str, change: Change, *words: str, **more: Any) -> Mistake:
    """Return the mistake of this name, with its words from the table."""
    fields = fields_of(WORDS[name], words)
    return Mistake(name, change=where_it_applies(change), **fields, **more)


def told(pairs: Iterable[tuple[str, str]], verb: str) -> str:
    """Join pairs of words by a verb."""
    return _first_of([f"{one} {verb} {other}" for one, other in pairs])


def by_entry(words: Sequence[str]) -> str:
    """Return the words of each batch entry, or once if all are alike."""
    if len(set(words)) == 1:
        return words[0]
    return _first_of([f"batch entry {b}: {one}" for b, one in enumerate(words)])


def _first_of(words: Sequence[str]) -> str:
    """Return the first four of some words, and count the others."""
    more = len(words) - _NAMED
    return "; ".join(words[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def ranges(numbers: Array) -> str:
    """List numbers, with consecutive ones as a range."""
    runs = groupby(enumerate(numbers.tolist()), key=lambda pair: pair[1] - pair[0])
    rows = [[number for _, number in run] for _, run in runs]
    return first_few([f"{r[0]} to {r[-1]}" if len(r) > 1 else str(r[0]) for r in rows])
