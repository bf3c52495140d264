"""The table of mistakes, in the order in which two that come together are applied.

Inputs come first, then what is made of them, up to how the outputs are written.
"""

from __future__ import annotations

from itertools import chain

from attncli.referee.mistakes.heads import ATTENDED, FUSED, HEADS
from attncli.referee.mistakes.inputs import INPUTS, SHARED
from attncli.referee.mistakes.kernels import BLOCKS, CAUSAL_BLOCKS, ONLINE, SPLITS
from attncli.referee.mistakes.masks import (
    BLIND_ROWS,
    CAUSAL,
    HIDING,
    MASKS,
    PADDING,
    SEGMENTS,
    TOGETHER,
    WINDOW,
)
from attncli.referee.mistakes.outputs import AXES, GIVEN, LSE, SCORES, WEIGHTS
from attncli.referee.mistakes.projection import BEFORE, BEHIND, NORMS
from attncli.referee.mistakes.rope import ROPE
from attncli.referee.mistakes.rounding import PRODUCTS, QUANTIZED, SHORT_SUMS, SHORT_WEIGHTS
from attncli.referee.mistakes.scores import ALIBI, BIAS, FUNCTION, SCALES, SOFTCAP
from attncli.referee.mistakes.softmax import SINKS, SOFTMAX

__all__ = ["TABLE"]

TABLE = (
    *chain(NORMS, BEFORE, FUSED, ATTENDED, HEADS, SHARED, INPUTS),
    *chain(FUNCTION, PRODUCTS, SCALES, ROPE, SOFTCAP, BIAS, ALIBI),
    *chain(MASKS, PADDING, SEGMENTS, CAUSAL, CAUSAL_BLOCKS, WINDOW, TOGETHER, BLOCKS, HIDING),
    *chain(BLIND_ROWS, SOFTMAX, SINKS, ONLINE, SPLITS, SHORT_SUMS),
    *chain(BEHIND, GIVEN, LSE, WEIGHTS, SCORES, AXES, QUANTIZED, SHORT_WEIGHTS),
)
