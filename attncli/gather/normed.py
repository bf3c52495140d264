"""Whether embeddings are what a layer reads: in many models, what a norm in front of it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.array_likes import as_ndarray
from attncli.dtypes import BFLOAT16, widen
from attncli.errors import InputError
from attncli.text import printable
from attncli.warning import warn

if TYPE_CHECKING:
    from attncli.gather.gathered import Gathered
    from attncli.gather.layer import StoredLayer

__all__ = ["note_norm"]

Array = npt.NDArray[Any]
# Rows that are looked at.
_ROWS = 64
# A norm makes the root mean square of a row 1, or a little less, as it adds to the squares. The
# rounding to 16 bits changes it by far less than a hundredth.
_LEAST, _MOST = 0.9, 1.01
# So many rows may be shorter, of padding or tiny before the norm, and so many longer.
_SHORTER, _LONGER = 1 / 2, 1 / 10


def note_norm(gathered: Gathered, stored: StoredLayer) -> None:
    """Note the norm in front of a layer, and warn of embeddings that cannot have come out of it.

    Warns
    -----
    AttnWarning
    """
    members = stored.layer.norm_before
    if not members or "x" not in gathered.arguments:
        return
    rows = as_ndarray("x", gathered.arguments["x"])
    real = rows.dtype.kind in "fiu" or rows.dtype == BFLOAT16
    try:
        parts = {part: stored.fetch(name).ravel() for part, name in members.items()}
    except InputError:  # of a file that only this look would need
        return
    if not real or rows.ndim not in (2, 3) or rows.shape[-1] != parts["weight"].size:
        return
    gathered.norm_before = parts
    gain, shift = (widen(parts.get(part, np.zeros(1)), np.float64) for part in ("weight", "bias"))
    some = widen(rows.reshape(-1, gain.size)[:_ROWS], np.float64)
    some = some[some.any(axis=1)] - shift  # without padding
    # Gemma stores the weight less 1. A weight of 0 hides what went in.
    may_be = [each for each in (gain, 1 + gain) if each.all()]
    if not some.size or not gain.all() or any(_have_rms_1(some / each) for each in may_be):
        return
    name = printable(members["weight"].removesuffix(".weight"))
    warn(
        f"{gathered.sources.get('x', 'x')} does not look like what {name} gives, the norm through "
        f"which this layer's input goes in {stored.file}: is it from before that norm? Then the "
        "weights are not the model's"
    )


def _have_rms_1(rows: Array) -> bool:
    """Return whether the root mean squares of most rows are 1 or little less, and hardly any more.

    Rows of another origin may have a mean square near 1, but some of them have more.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.square(rows).mean(axis=1))
    shorter, longer = np.mean(lengths < _LEAST), np.mean(~(lengths < _MOST))
    return bool(shorter <= _SHORTER and longer <= _LONGER)
