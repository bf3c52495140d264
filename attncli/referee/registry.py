"""All conventions, in the order in which they are applied when two come together."""

from __future__ import annotations

from attncli.referee.conventions_axes import AXES
from attncli.referee.conventions_blocks import BLOCKS, ONLINE
from attncli.referee.conventions_causal import CAUSAL
from attncli.referee.conventions_heads import HEADS
from attncli.referee.conventions_hiding import HIDING, TOGETHER
from attncli.referee.conventions_mask import MASKS
from attncli.referee.conventions_outputs import LSE, SCORES
from attncli.referee.conventions_padding import BLIND_ROWS, PADDING
from attncli.referee.conventions_position import ALIBI, ROPE
from attncli.referee.conventions_projection import OUTPUT
from attncli.referee.conventions_scale import INPUTS, SCALES
from attncli.referee.conventions_scores import BIAS, SOFTCAP
from attncli.referee.conventions_sinks import SINKS
from attncli.referee.conventions_softmax import PRECISION, SOFTMAX
from attncli.referee.conventions_window import WINDOW

__all__ = ["CONVENTIONS"]

# Inputs first, because some build the recipe anew; then from the product to the files.
# What happens to queries that see no key is decided when every rule is known.
CONVENTIONS = (
    *HEADS,
    *INPUTS,
    *SCALES,
    *ROPE,
    *SOFTCAP,
    *BIAS,
    *ALIBI,
    *MASKS,
    *PADDING,
    *CAUSAL,
    *WINDOW,
    *TOGETHER,
    *BLOCKS,
    *HIDING,
    *BLIND_ROWS,
    *SOFTMAX,
    *SINKS,
    *ONLINE,
    *PRECISION,
    *OUTPUT,
    *LSE,
    *SCORES,
    *AXES,
)
