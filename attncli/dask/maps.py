"""The maps of a heatmap, of weights or scores that a cluster computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.dask.cluster import computed
from attncli.summaries.maps import Labels, Maps, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import dask.array as da


class LazyMaps(Maps):
    """Maps of lazy arrays (B, H, L, S): what is drawn, and the scores that tell hidden keys.

    Parameters
    ----------
    values, scores : dask.array.Array
    axes, labels
        As for `Maps`.
    client : distributed.Client or None
    """

    def __init__(
        self,
        values: da.Array,
        scores: da.Array,
        axes: str,
        labels: tuple[Labels, Labels],
        client: Any,
    ) -> None:
        super().__init__(values.shape, axes, labels, values.dtype)
        self._values, self._scores, self._client = values, scores, client

    def rows(self, batch: int, head: int, span: tuple[int, int]) -> Iterator[Rows]:
        """Yield some rows of one map, each computed by the workers."""
        for start, stop in self._spans(span):
            part = batch, head, slice(start, stop)
            values, scores = computed([self._values[part], self._scores[part]], self._client)
            yield Rows(start, values, np.isneginf(scores), scores)
