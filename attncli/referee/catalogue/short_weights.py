"""Weights of 8 bits: how a kernel holds exp(score − maximum) when it meets the values."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import tops, tops_so_far
from attncli.referee.catalogue.quantized import FLOAT8_INPUTS
from attncli.referee.catalogue.quantizing import Ways, quantized
from attncli.referee.convention import Convention, then
from attncli.referee.grids import FLOATS, Grid, on_grid
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.referee.recipe import Recipe

__all__ = ["SHORT_WEIGHTS"]

Array = npt.NDArray[Any]


class _Storing(NamedTuple):
    """How exponentials are stored.

    Attributes
    ----------
    grid : Grid
    times : int
        What they are multiplied with, so that small ones keep their bits.
    block : int
        Beside the largest score of all blocks of so many keys that were seen so far; 0: of all.
    backwards : bool
        The last block is seen first.
    """

    grid: Grid
    times: int = 1
    block: int = 0
    backwards: bool = False

    @property
    def name(self) -> str:
        """The end of a convention's name."""
        scaled = f"_times_{self.times}" if self.times > 1 else ""
        order = "_backwards" if self.backwards else ""
        return f"{self.grid.name}{scaled}" + (f"_of_{self.block}{order}" if self.block else "")

    @property
    def meaning(self) -> str:
        """As a sentence goes on behind "rounded to"."""
        scaled = f", times {self.times}" if self.times > 1 else ""
        if not self.block:
            return f"{self.grid.name}{scaled}, beside the largest score of the row"
        order = ", the last block first" if self.backwards else ""
        return (
            f"{self.grid.name}{scaled}, beside the largest score so far of blocks of "
            f"{self.block} keys{order}"
        )

    def stored(self, _: Recipe, weights: Array) -> Array:
        """Return the weights as they are when their exponentials went through the format."""
        of_blocks = partial(tops_so_far, block=self.block, backwards=self.backwards)
        top = of_blocks(weights) if self.block else tops(weights)
        scaled = (weights / top).astype(np.float32) * np.float32(self.times)
        return np.asarray(on_grid(self.grid, scaled) / np.float64(self.times) * top)


_E4M3, _E5M2 = FLOATS
_BLOCKS = (0, 64, 128)
_STORINGS = tuple(
    _Storing(grid, times, block, backwards)
    for grid, times, block, backwards in product((_E4M3, _E5M2), (1, 256), _BLOCKS, (False, True))
    # E5M2 has small numbers enough, and one block is seen in any order.
    if not (grid is _E5M2 and times > 1) and not (backwards and block == 0)
)


def _stored(storing: _Storing, ways: Ways, recipe: Recipe) -> Recipe | None:
    """Store the exponentials; inputs, too, where there are ways to quantize them."""
    problem = recipe.problem
    if problem.value is None or problem.shape[3] <= storing.block:
        return None
    made = quantized(ways, recipe) if ways else replace(recipe, codes=True)
    return None if made is None else then(made, after=storing.stored)


def _conventions(storing: _Storing) -> Iterator[Convention]:
    end = f"weights_in_{storing.name}"
    rounded = f"the weights are rounded to {storing.meaning}"
    yield _convention(end, rounded, storing, {})
    if storing.grid is not _E4M3:
        return
    simpler: tuple[str, ...] = ()
    for name, meaning, ways in FLOAT8_INPUTS:
        yield _convention(f"{name}_{end}", f"{meaning}; {rounded}", storing, ways, simpler)
        simpler = (*simpler, f"{name}_{end}")


def _convention(
    name: str, meaning: str, storing: _Storing, ways: Ways, simpler: tuple[str, ...] = ()
) -> Convention:
    return Convention(
        name=name,
        topic=topics.SHORT_WEIGHTS,
        meaning=meaning,
        fix="multiply the weights with the values in 16 bits or more, or judge by --rtol and "
        "--atol",
        shows="almost any input",
        apply=partial(_stored, storing, ways),
        variant_of=simpler,
    )


SHORT_WEIGHTS = tuple(one for storing in _STORINGS for one in _conventions(storing))
