"""The answer: the outputs of attention for a problem."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, eq=False, kw_only=True)
class Attention:
    """The outputs that were asked for, in the computing dtype; the others are None.

    Attributes
    ----------
    raw : ndarray (…, L, S)
        scale · QKᵀ, or scale times another score function; unitless.
    capped : ndarray (…, L, S)
        raw after the softcap; equal to raw if there is none.
    scores : ndarray (…, L, S)
        capped + bias − slope · |i + offset − j|, and −inf where the query does not see the key:
        logits.
    weights : ndarray (…, L, S)
        Softmax of the scores over the keys. Rows sum to 1, to less with sinks, and to 0 if the
        query sees no key.
    context : ndarray (…, L, E)
        weights · V, in the layout of the query; after an output projection (…, L, out).
    lse : ndarray (…, L)
        Natural logarithm of the softmax's denominator, in nats.
    """

    raw: npt.NDArray[Any] | None = None
    capped: npt.NDArray[Any] | None = None
    scores: npt.NDArray[Any] | None = None
    weights: npt.NDArray[Any] | None = None
    context: npt.NDArray[Any] | None = None
    lse: npt.NDArray[Any] | None = None

    def __repr__(self) -> str:
        """Return the names, dtypes and shapes of the outputs, without their numbers."""
        arrays = ((one.name, getattr(self, one.name)) for one in fields(self))
        told = (f"{n}: {a.dtype.name} {a.shape}" for n, a in arrays if a is not None)
        return f"<Attention: {', '.join(told) or 'no outputs'}>"
