"""Everything that the diagnosis of a mismatch starts from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from attncli.problem.problem import Problem
    from attncli.referee.comparison import Judged
    from attncli.referee.report import Place
    from attncli.referee.rounding import Precision

__all__ = ["Question"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Question:
    """Everything that the diagnosis knows.

    Attributes
    ----------
    problem : Problem
        In float64.
    outputs : mapping of str to Judged
        Conventions earn their own tolerances unless the user gave one.
    averaged : bool
        The weights are the mean of the heads.
    doubtful : sequence of Place
        Rows that look wrong; the textbook formula is measured there, too.
    nan_rows : mapping of str to ndarray of bool (B, H, L)
        Of outputs, rows that are NaN for a reason of their own: whatever is tried is NaN there.
    """

    problem: Problem
    outputs: Mapping[str, Judged]
    averaged: bool = False
    doubtful: Sequence[Place] = ()
    nan_rows: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[str, Array]:
        """The numbers of the files, in the axes of the user."""
        return {name: output.file.values for name, output in self.outputs.items()}

    @property
    def precisions(self) -> dict[str, Precision]:
        """The format of each file."""
        return {name: output.file.precision for name, output in self.outputs.items()}

    @cached_property
    def shaped(self) -> dict[str, Array]:
        """The files whose shape is right, as (B, H, L, ·)."""
        return {
            name: canonical(self.problem, name, output.file.values)
            for name, output in self.outputs.items()
            if output.errors is not None
        }

    @property
    def comparable(self) -> dict[str, Array]:
        """The same; none where a shape is wrong, as only whole files compare then."""
        return self.shaped if len(self.shaped) == len(self.outputs) else {}

    def about(self, names: tuple[str, ...]) -> Question:
        """Return the same question about only some of the outputs."""
        outputs = {name: self.outputs[name] for name in self.outputs if name in names}
        return replace(self, outputs=outputs, averaged=self.averaged and "weights" in names)
