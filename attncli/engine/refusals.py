"""How the engine reports numbers that are not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from attncli.errors import DataError

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = ["NotFiniteError", "refuse_scores"]


class NotFiniteError(Exception):
    """A score or a sum is not finite, possibly because an input is not.

    Raised only while `Problem.unread` is set: nobody has checked the inputs yet.
    """


def refuse_scores(problem: Problem) -> NoReturn:
    """Raise the error of scores that are not finite.

    Raises
    ------
    NotFiniteError
        Query, key and value are still unread and may be the cause.
    DataError
        They are finite, so the product overflowed.
    """
    if problem.unread is not None:
        raise NotFiniteError
    narrow = problem.dtype.itemsize < 8
    wider = "compute in float64 (--precision float64), or " if narrow else ""
    raise DataError(
        f"the scores exceed the range of {problem.dtype.name}: {_suspects(problem)} are too large",
        hint=f"{wider}give a smaller scale",
    )


def _suspects(problem: Problem) -> str:
    """Return what the scores are made of, as a list in words."""
    others = {
        "score_weight": problem.score_weight,
        "score_vector": problem.score_vector,
        "bias": problem.bias,
        "alibi_slopes": problem.alibi_slopes,
    }
    names = ["query", "key", *(name for name, array in others.items() if array is not None)]
    return f"{', '.join(names[:-1])} {'and' if len(names) == 2 else 'or'} {names[-1]}"
