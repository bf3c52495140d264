"""What a fit is, and the names of what fits find: ``words.csv`` has a line for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.referee.mistakes.table import Mistake, fields_of, where_it_applies, words_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from attncli.referee.mistakes.table import Change
    from attncli.referee.parts import Case

__all__ = ["WORDS", "Fitting", "at_first", "found", "needs_of", "told"]

_NAMED = 4


# {0}, {1}, … stand for what is found.
WORDS = words_beside(__file__)


class Fitting(NamedTuple):
    """A way to read a mistake off the numbers of the files.

    Attributes
    ----------
    look : callable
        Cases in, a mistake out; None where the files hold nothing that can be read, or nothing of
        the kind.
    needs : frozenset of str
        The axes that are whole in these cases: ``batch``, ``heads``, ``rows``.
    of_part : bool
        What is found is of its part alone: elsewhere it is read again.
    """

    look: Callable[[Sequence[Case]], Mistake | None]
    needs: frozenset[str] = frozenset()
    of_part: bool = False


def needs_of(name: str) -> frozenset[str]:
    """Return the axes that are whole where a name is looked for."""
    return frozenset(WORDS[name]["needs"].split())


def at_first(look: Callable[[Case], Mistake | None], name: str) -> Fitting:
    """Look for a name only at the first case, which is enough."""
    return Fitting(lambda cases: look(cases[0]), needs_of(name))


def found(name: str, change: Change, *words: str, **more: Any) -> Mistake:
    """Return a mistake that was read off the files, with words for what was found."""
    fields = fields_of(WORDS[name], words)
    return Mistake(name, change=where_it_applies(change), **fields, **more)


def told(pairs: Iterable[tuple[str, str]], verb: str) -> str:
    """Say what stands, or reads, where; some of it where there is much."""
    words = [f"{one} {verb} {other}" for one, other in pairs]
    more = len(words) - _NAMED
    return "; ".join(words[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
