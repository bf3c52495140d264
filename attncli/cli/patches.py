"""``heatmap --grid``: the weights of one query as the patches of an image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncli.cli.declaring import PICTURE, option, switch
from attncli.errors import UsageError
from attncli.errors.text import quoted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attncli.summaries.maps import Maps
    from attncli.view.page import Patches

__all__ = ["PatchOptions"]


@dataclass(eq=False, repr=False)
class PatchOptions:
    """How the keys of a query lie in an image."""

    grid: str | None = option(
        PICTURE,
        "RxC",
        "Draw the weights of one query as a grid of patches, row by row: 14x14. A class token in "
        "front of them is left out.",
    )
    query: str | None = option(
        PICTURE, "I or LABEL", "The query of --grid. Default: 0, where models have a class token."
    )
    image: str | None = option(
        PICTURE, "FILE", "Lay the grid over the image that the patches were cut from."
    )
    blocks: bool = switch(PICTURE, "Over an image, fill each patch evenly. Default: smooth.")

    def __post_init__(self) -> None:
        if self.grid is None:
            alone = next((n for n in ("query", "image", "blocks") if getattr(self, n)), None)
            if alone:
                raise UsageError(f"--{alone} is for patches: give --grid, as in 14x14")
        elif self.shape is None:
            raise UsageError(
                f"--grid: expected rows and columns, as in 14x14; found {quoted(self.grid)}"
            )
        elif self.blocks and self.image is None:
            raise UsageError("--blocks is for an image: without one, patches are blocks anyway")

    @property
    def shape(self) -> tuple[int, int] | None:
        """Rows and columns; None without a grid."""
        found = re.fullmatch(r"([1-9]\d{0,3})[x×X]([1-9]\d{0,3})", self.grid or "")
        return (int(found[1]), int(found[2])) if found else None

    def query_of(self, maps: Maps) -> int:
        """Return the index of the query."""
        from attncli.problem.labels import named_index

        if self.query is None:
            return 0
        return named_index("--query", self.query, maps.shape[2], maps.labels[0], of="query")

    def pixels(self) -> npt.NDArray[np.uint8] | None:
        """Return the image (height, width, 3)."""
        from attncli.loading.pictures import read_image

        return None if self.image is None else read_image(self.image)

    def on_page(self, keys: int) -> Patches | None:
        """Return the patches of so many keys, as a page takes them."""
        from attncli.summaries.patches import first_patch
        from attncli.view.page import Patches, image_address

        if self.shape is None:
            return None
        pixels = self.pixels()
        image = "" if pixels is None else image_address(pixels)
        return Patches(self.shape, first_patch(keys, self.shape), image, not self.blocks)
