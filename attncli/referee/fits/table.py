"""What a fit is: a way to read a mistake off the numbers of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case

__all__ = ["Fitting", "at_first"]


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


def at_first(look: Callable[[Case], Mistake | None], needs: str = "") -> Fitting:
    """Look only at the first case, which is enough."""
    return Fitting(lambda cases: look(cases[0]), frozenset(needs.split()))
