"""``heatmap --grid``: the weights of one query as the patches of an image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attncli.cli.declaring import PICTURE, Options, Rule, option, switch
from attncli.errors import UsageError
from attncli.errors.text import quoted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attncli.summaries.maps import Maps
    from attncli.view.page import Patches

__all__ = ["PatchOptions"]


class PatchOptions(Options):
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

    COMBINATIONS: tuple[Rule, ...] = (
        Rule("query image blocks", "it is for patches, as in 14x14", needs="grid"),
        Rule("blocks", "without an image, patches are blocks anyway", needs="image"),
        Rule("image", "it is only for files", needs="out"),
        Rule("grid", "it draws the weights of one query", excludes="rows cols minus what"),
    )

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.grid is not None and self.shape is None:
            raise UsageError(
                f"--grid: expected rows and columns, as in 14x14; found {quoted(self.grid)}"
            )

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
