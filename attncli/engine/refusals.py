"""What the engine says of numbers that are not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from attncli.errors import DataError

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["NotFiniteError", "refuse_scores"]


class NotFiniteError(Exception):
    """Something that nobody has looked at yet is not finite."""


def refuse_scores(problem: Problem) -> NoReturn:
    """Raise the error of scores that are not finite.

    Raises
    ------
    NotFiniteError
        Key and value are still unread: it may be their fault.
    DataError
        They are not to blame.
    """
    if problem.unread is not None:
        raise NotFiniteError
    narrow = problem.dtype.itemsize < 8
    wider = "compute in float64 (--precision float64), or " if narrow else ""
    raise DataError(
        f"the scores exceed the range of {problem.dtype.name}: query and key are too large",
        hint=f"{wider}give a smaller scale",
    )
