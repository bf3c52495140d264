"""What files and options say, on its way to a problem."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from attncli.posing import pose

if TYPE_CHECKING:
    import numpy.typing as npt

    from attncli.problem import Problem
    from attncli.projection import Projected

__all__ = ["Gathered"]


@dataclass(eq=False)
class Gathered:
    """What the files and options say, not yet checked against each other.

    Attributes
    ----------
    arguments : dict
        Keyword arguments of `attncli.pose`, query, key and value included.
    sources : dict of str to str
        The file of each argument that has one.
    inputs : list of str
        Every file that was read, without ``#NAME``.
    bfloat16 : bool
        Whether any array among them is of this dtype.
    projected : Projected or None
        What query, key and value were made from, where they were.
    notes : list of str
        What a user should know of how the arguments came about.
    norm_before : dict of str to ndarray
        ``weight`` and ``bias`` of the norm in front of a layer: those that its checkpoint holds.
    """

    arguments: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    bfloat16: bool = False
    projected: Projected | None = None
    notes: list[str] = field(default_factory=list)
    norm_before: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def posed(self) -> Problem:
        """Return the checked problem.

        Raises
        ------
        AttnError
            Files and options do not fit together.
        """
        problem = pose(**cast("dict[str, Any]", self.arguments), sources=self.sources)
        return problem if self.projected is None else replace(problem, made_from=self.projected)
