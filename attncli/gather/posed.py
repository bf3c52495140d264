"""What was gathered, posed as a problem."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from attncli.posing import pose

if TYPE_CHECKING:
    from attncli.gather.reader import Gathered
    from attncli.problem import Problem

__all__ = ["posed"]


def posed(gathered: Gathered) -> Problem:
    """Return the checked problem of what files and options say.

    Raises
    ------
    AttnError
        They do not fit together.
    """
    problem = pose(**cast("dict[str, Any]", gathered.arguments), sources=gathered.sources)
    return problem if gathered.projected is None else replace(problem, made_from=gathered.projected)
