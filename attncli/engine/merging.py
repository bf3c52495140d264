"""`merge`: results over parts of the keys become the result over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, ShapeError, UsageError
from attncli.problem.result import Attention

if TYPE_CHECKING:
    from collections.abc import Iterable

Array = npt.NDArray[Any]


def merge(
    parts: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    sinks: npt.ArrayLike | None = None,
    sinks_in: Literal["none", "one", "every"] = "one",
    lse_base: float | None = None,
) -> Attention:
    r"""Merge attention over disjoint parts of the keys, of the same queries.

    .. code-block:: text

        m       = max over parts of lse_p
        total   = Σ exp(lse_p − m)
        context = Σ exp(lse_p − m) · context_p / total
        lse     = m + ln total

    The sums are made in float64, so order and grouping of the parts change only their last bits.

    Parameters
    ----------
    parts : iterable of (context (…, L, E), lse (…, L))
        A part that saw no key for a query has lse −inf there; its context does not count.
    sinks : array_like (H,), optional
        One logit a head that counts in the denominator only. Needed if `sinks_in` is not
        ``"one"``. The axis of heads is the last but one of lse.
    sinks_in : {"one", "none", "every"}
        Which parts hold the sinks already. Sinks count once in the result. ``"one"`` changes
        nothing; ``"none"`` adds them; ``"every"`` takes out all but one.
    lse_base : float, optional
        The base of the parts' lse, and of the result's: 2 for kernels that work with exp2.
        Natural logarithms unless given. Sinks are in nats.

    Returns
    -------
    Attention
        With ``context`` and ``lse``, in the widest dtype of the parts, at least float32.

    Raises
    ------
    ShapeError
        The shapes of the parts differ, or there is not one sink for each head.
    DataError
        An lse is NaN or +inf.
    UsageError
        There is no part, or `sinks` is missing.

    References
    ----------
    Dao et al. 2023, "Flash-Decoding"; Ye et al. 2025, "FlashInfer", section 2.2.

    Examples
    --------
    >>> import attncli
    >>> import numpy as np
    >>> q, k, v = np.eye(2), np.eye(2)[[0, 1, 1]], np.arange(6.0).reshape(3, 2)
    >>> parts = [attncli.attention(q, k[s], v[s], outputs=("context", "lse"))
    ...          for s in (slice(0, 1), slice(1, 3))]
    >>> whole = attncli.merge([(part.context, part.lse) for part in parts])
    >>> np.allclose(whole.context, attncli.attention(q, k, v).context)
    True
    """
    pairs = [(np.asarray(context), np.asarray(lse)) for context, lse in parts]
    if not pairs:
        raise UsageError("merge needs at least one part")
    _check_shapes(pairs)
    unit = 1.0 if lse_base is None else float(np.log(lse_base))
    dtype = np.result_type(np.float32, *(array.dtype for pair in pairs for array in pair))
    logs = [lse.astype(np.float64) * unit for _, lse in pairs]
    highest = np.maximum.reduce(logs)
    logits = None
    if sinks_in != "one":
        if sinks is None:
            raise UsageError(f"sinks_in={sinks_in!r} needs sinks, one logit a head")
        logits = np.asarray(sinks, np.float64).reshape(-1, 1)
        heads = highest.shape[-2] if highest.ndim > 1 else 1
        if len(logits) not in (1, heads):
            raise ShapeError(f"sinks: expected {heads}, one a head; found {len(logits)}")
        highest = np.maximum(highest, logits)
    shift = np.where(np.isneginf(highest), 0.0, highest)
    total = np.zeros(shift.shape)
    summed = np.zeros((*shift.shape, pairs[0][0].shape[-1]))
    for (context, _), log in zip(pairs, logs, strict=True):
        weight = np.exp(log - shift)
        total += weight
        # A part that saw no key may hold anything.
        summed += np.where(weight[..., None] > 0, weight[..., None] * context, 0.0)
    if logits is not None:
        times = 1 if sinks_in == "none" else 1 - len(pairs)
        total = np.maximum(total + times * np.exp(logits - shift), 0.0)
    empty = total == 0
    context = summed / np.where(empty, 1.0, total)[..., None]
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(total)) / unit
    return Attention(context=context.astype(dtype), lse=lse.astype(dtype))


def _check_shapes(pairs: list[tuple[Array, Array]]) -> None:
    first_context, first_lse = pairs[0]
    for number, (context, lse) in enumerate(pairs):
        if not (lse < np.inf).all():
            raise DataError(f"part {number}: expected an lse below inf; found NaN or inf")
        if context.shape[:-1] != lse.shape:
            raise ShapeError(
                f"part {number}: expected an lse for each row of the context, "
                f"{context.shape[:-1]}; found {lse.shape}"
            )
        if context.shape != first_context.shape or lse.shape != first_lse.shape:
            raise ShapeError(
                f"part {number}: expected a context of shape {first_context.shape} like part 0; "
                f"found {context.shape}"
            )
