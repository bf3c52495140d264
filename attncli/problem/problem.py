"""The question: query, key, value and every rule that applies to them.

`Problem` is frozen and has passed every check (`attncli.problem.posing`), so the engine makes none.
All its arrays have four axes (`attncli.problem.layout`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, UsageError
from attncli.errors.names import GRADIENTS, HIDING_RULES, INPUTS
from attncli.numerics.dtypes import in_float64, widen
from attncli.numerics.finite import all_finite
from attncli.numerics.positions import BASE, rope_frequencies
from attncli.problem.selecting import select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.errors.names import MaskMeans, Pairing, Score
    from attncli.problem.layout import Layout
    from attncli.problem.output import OutputProjection
    from attncli.problem.projection import Projected
    from attncli.problem.shards import Shard
    from attncli.problem.visibility import Visibility

Array = npt.NDArray[Any]
# Rules of a problem, by the names of the options that give them.
_RULES = (
    *HIDING_RULES,
    *("bias", "alibi_slopes", "softcap", "sinks", "rope", "score_weight", "score_vector"),
)


class Rope(NamedTuple):
    """Rotary position embedding: how components are paired, and how fast each pair turns.

    Attributes
    ----------
    pairing : {"half", "interleaved"}
    base : float
        Pair p turns by base^(−2p/D) radians for each position.
    frequencies : tuple of float, or None
        Radians for each position, instead of the base; only this many pairs are turned.
    """

    pairing: Pairing
    base: float = BASE
    frequencies: tuple[float, ...] | None = None

    def of_width(self, width: int) -> npt.NDArray[np.float64]:
        """Return the frequency of each pair of components, for rows of this width."""
        if self.frequencies is not None:
            return np.array(self.frequencies)
        return rope_frequencies(width, self.base)


def default_scale(score: Score, width: int) -> float:
    """Return the default scale: 1/√D for the dot product, 1 for other scores."""
    return 1.0 / math.sqrt(width) if score == "dot" else 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A checked attention problem. Make one with `attncli.pose`.

    Attributes
    ----------
    query : ndarray (B, H, L, D)
    key : ndarray (B or 1, G, S, D)
        Query head h reads key/value head h // (H/G).
    value : ndarray (B or 1, G, S, E), or None where only weights are asked for
        All three as stored: any real floating dtype, bfloat16 included.
    dtype : dtype
        The computing dtype: float32 or float64.
    layout : Layout
        The axes in which results are returned.
    visible : Visibility
        Which key each query sees.
    scale : float
        Multiplies the product of query and key; 1/√D unless given.
    score : {"dot", "cosine", "general", "additive"}
    score_weight : ndarray (D, D of the key), or None
        For ``general``, where the widths of query and key may differ.
    score_vector : ndarray (D,), or None
        For ``additive``.
    softcap : float or None
        Scores are squeezed into (−softcap, softcap).
    bias : ndarray (B or 1, H or 1, L or 1, S or 1), or None
        Added to the capped scores; −inf allowed.
    alibi_slopes : ndarray (H,) of float64, or None
        ALiBi.
    sinks : ndarray (H,) of float64, or None
        Each head has one logit that counts in the denominator only.
    rope : Rope or None
    output : OutputProjection or None
        Applied to the whole context at the end. A selected head has none, because its context
        is only part of the input.
    mask_means : {"keep", "drop"}
        How the masks were written, for advice; in ``visible``, true always means may attend.
    query_labels, key_labels : tuple of str, or None
        Length L and S.
    unread : callable, or None
        Returns key and value after checking them and the query. Set while all three are
        unchecked and may hold NaN or inf, which the engine notices in its results.
    made_from : Projected or None
        What query, key and value were made from, if known, so that `attncli.check` can name
        mistakes made there. The engine ignores it, and a selected part has none.
    shard : Shard or None
        Where a part begins in the whole, so that `attncli.check` can name mistakes of parts. All
        other attributes are those of the part.
    """

    query: Array
    key: Array
    value: Array | None
    dtype: np.dtype[Any]
    layout: Layout
    visible: Visibility
    scale: float
    score: Score = "dot"
    score_weight: Array | None = None
    score_vector: Array | None = None
    softcap: float | None = None
    bias: Array | None = None
    alibi_slopes: Array | None = None
    sinks: Array | None = None
    rope: Rope | None = None
    output: OutputProjection | None = None
    mask_means: MaskMeans = "keep"
    query_labels: tuple[str, ...] | None = None
    key_labels: tuple[str, ...] | None = None
    unread: Callable[[], tuple[Array, Array | None]] | None = None
    made_from: Projected | None = None
    shard: Shard | None = None

    @property
    def arrays(self) -> list[Array]:
        """All arrays that the outputs are computed from."""
        parts = [*vars(self).values(), *self.visible]
        if self.output is not None:
            parts += [self.output.weight, self.output.bias]
        return [part for part in parts if isinstance(part, np.ndarray)]

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of weights (as of scores), lse, context and mean weights, as returned.

        In the user's axes, and only for outputs that the problem has.
        """
        weights = self.layout.weights_shape(self.shape)
        shapes = {"weights": weights, "lse": weights[:-1]}
        batch, heads, queries, _ = self.shape
        if self.value is not None:
            parts = (heads, self.value.shape[3])
            if self.output is not None:
                parts = (1, self.output.weight.shape[1])
            context = np.broadcast_to(0.0, (batch, parts[0], queries, parts[1]))
            shapes["context"] = self.layout.join(context).shape
        if "h" in self.layout.weight_axes:
            shapes["mean weights"] = (*weights[:-3], *weights[-2:])
        return shapes

    @property
    def gradient_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the gradients that the problem can have, by name.

        In the user's axes. A query that stands for all batch entries has one gradient.
        """
        shapes = {}
        for name, of in GRADIENTS.items():
            array = getattr(self, of)
            if array is None:
                continue
            shape = array.shape
            if of in INPUTS:
                entries = 1 if array.strides[0] == 0 else shape[0]
                shape = self.layout.join(np.broadcast_to(0.0, (entries, *shape[1:]))).shape
            elif of == "bias":
                shape = self.layout.drop(array).shape
            shapes[name] = shape
        return shapes

    def __repr__(self) -> str:
        parts = [f"{name} {getattr(self, name).shape}" for name in INPUTS if self._has(name)]
        facts = [f"layout {self.layout.axes}", self.dtype.name, f"scale {self.scale:.4g}"]
        rules = [name for name in _RULES if self._has(name)]
        if self.output is not None:
            rules.append("wo")
        return f"<Problem: {', '.join(parts)}; {', '.join(facts + rules)}>"

    def _has(self, name: str) -> bool:
        value = getattr(self, name, None)
        if value is None:
            value = getattr(self.visible, name, None)
        return value is not None and value is not False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, L, S): the shape of the weights before axes are dropped."""
        # Not cached: for one problem, the lock of a cached property takes longer.
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    def key_head(self, head: int) -> int:
        """Return which head of key and value a query head reads."""
        heads, groups = self.query.shape[1], self.key.shape[1]
        return int(head // (heads // groups))

    @property
    def is_product(self) -> bool:
        """Whether scores are products Q Kᵀ; additive ones are sums over tanh(q + k)."""
        return self.score != "additive"

    def read(self) -> Problem:
        """Return the problem with its inputs checked, and the padding of keys set to zero.

        Raises
        ------
        DataError
            A query, or a key or value that some query sees, is not finite.
        """
        if self.unread is None:
            return self
        key, value = self.unread()
        return replace(self, key=key, value=value, unread=None)

    def input(self, name: str) -> Array:
        """Return query, key or value in the user's axes and the computing dtype, not rotated.

        Raises
        ------
        UsageError
            The problem has no value.
        """
        array = getattr(self, name)
        if array is None:
            raise UsageError(
                f"there is no {name} to show", hint=f"give {name}, or leave it out of --show"
            )
        return self.layout.join(widen(array, self.dtype))

    def projected(self, context: Array, *, threads: int | None = None) -> Array:
        """Return the context, in the user's axes, after the output projection if there is one.

        The rows of padded queries stay 0, even if the projection has a bias.

        Raises
        ------
        DataError
            The projection exceeds the range of the computing dtype.
        """
        if self.output is None:
            return context
        made = self.output(context, threads=threads)
        if not all_finite(made):
            raise DataError(
                f"the context exceeds the range of {self.dtype.name} after its projection",
                hint=in_float64(self.dtype),
            )
        padded = self.visible.padded_queries
        if padded is not None:
            each = np.broadcast_to(padded, (self.shape[0], self.shape[2]))
            made[self.layout.join(each[:, None, :, None])[..., 0]] = 0
        return made

    def select(
        self,
        *,
        batch: int | Sequence[int] | None = None,
        head: int | Sequence[int] | None = None,
        rows: tuple[int, int] | None = None,
    ) -> Problem:
        """Return the problem of some batch entries, heads or queries.

        Its results are those of the whole problem, apart from rounding. An axis with one selected
        index is dropped, as in NumPy.

        Parameters
        ----------
        batch, head : int or sequence of int, optional
            One, or several in their order. Negative ones count from the end.
        rows : (start, stop), optional
            Queries to keep.

        Raises
        ------
        UsageError
            There is no such batch entry, head or query, or one is given twice.
        """
        return select(self.read(), batch=batch, head=head, rows=rows)


def posed_problem(value: object) -> None:
    """Refuse anything but a `Problem`, such as arrays."""
    if not isinstance(value, Problem):
        raise UsageError(
            f"problem: expected what attncli.pose or attncli.load returns; "
            f"found {type(value).__name__}",
            hint="attncli.pose(query, key, value) makes one",
        )
