"""The orders in which ranks hold the tokens of a sequence, where a long one is split among them.

References
----------
Brandon et al. 2023, "Striped Attention: Faster Ring Attention for Causal Transformers", section 3;
Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.3.2, for two chunks a rank, one
from each end of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RankOrder", "order_told", "rank_orders"]

Indices = npt.NDArray[np.intp]
_MOST_RANKS = 64


@dataclass(frozen=True, eq=False)
class RankOrder:
    """The tokens of all ranks in a row.

    Attributes
    ----------
    kind : str
        ``zigzag`` or ``striped``.
    ranks : int
    tokens : ndarray of int (L,)
        Which token stands at each place.
    """

    kind: str
    ranks: int
    tokens: Indices

    @cached_property
    def places(self) -> Indices:
        """At which place each token stands, (L,)."""
        return np.argsort(self.tokens)

    @cached_property
    def local(self) -> Indices:
        """At which place of its rank each token stands, (L,)."""
        return self.places % (len(self.tokens) // self.ranks)

    @property
    def words(self) -> str:
        """What the order is called, and what it is."""
        n = self.ranks
        if self.kind == "zigzag":
            holds = f"rank r holds chunks r and {2 * n - 1} − r of {2 * n}"
        else:
            holds = f"rank r holds tokens r, r + {n}, r + {2 * n} and so on"
        return f"the {self.kind} order of {n} ranks ({holds})"


def rank_orders(count: int) -> Iterator[RankOrder]:
    """Yield the orders in which ranks may hold so many tokens, those of few ranks first."""
    tokens = np.arange(count)
    for ranks in range(2, min(_MOST_RANKS, count // 2) + 1):
        if count % (2 * ranks) == 0:
            ends = tokens.reshape(2, ranks, -1)
            pairs = np.stack([ends[0], ends[1, ::-1]], axis=1)
            yield RankOrder("zigzag", ranks, pairs.ravel())
        if count % ranks == 0:
            yield RankOrder("striped", ranks, tokens.reshape(-1, ranks).T.ravel())


def order_told(tokens: npt.NDArray[Any]) -> str | None:
    """Say in which order of ranks tokens (L,) stand, or of which they were freed unasked.

    None where they stand in another one.
    """
    for order in rank_orders(len(tokens)):
        if np.array_equal(tokens, order.tokens):
            return f"in {order.words}"
        if np.array_equal(tokens, order.places):
            return f"as if they were put back from {order.words}, in which they did not stand"
    return None
