"""The table of mistakes.

Its rows are in the order of ``words.csv``, from the inputs to how the outputs are written. Two
mistakes that come together are applied in this order.
"""

from __future__ import annotations

from itertools import chain

from attncli.referee.mistakes import (
    heads,
    hiding,
    inputs,
    kernels,
    masks,
    outputs,
    projection,
    rope,
    rounding,
    scores,
    softmax,
)
from attncli.referee.mistakes.table import WORDS

__all__ = ["TABLE"]

_TOPICS = (
    *(heads, hiding, inputs, kernels, masks, outputs, projection, rope, rounding, scores, softmax),
)
_PLACES = {family: place for place, family in enumerate(WORDS)}
TABLE = tuple(
    sorted(
        chain.from_iterable(topic.ROWS for topic in _TOPICS),
        key=lambda mistake: _PLACES[mistake.family],
    )
)
