"""All conventions, in the order in which they are applied when two come together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attncli.referee.another_factor import another_factor
from attncli.referee.another_mask import another_mask, strongest_keys
from attncli.referee.another_number import QUANTITIES, another
from attncli.referee.conventions_alibi import ALIBI
from attncli.referee.conventions_attended import ATTENDED
from attncli.referee.conventions_axes import AXES
from attncli.referee.conventions_blocks import BLOCKS, ONLINE
from attncli.referee.conventions_causal import CAUSAL
from attncli.referee.conventions_embeddings import EMBEDDINGS
from attncli.referee.conventions_function import FUNCTION
from attncli.referee.conventions_fused import FUSED
from attncli.referee.conventions_heads import HEADS
from attncli.referee.conventions_hiding import HIDING, TOGETHER
from attncli.referee.conventions_mask import MASKS
from attncli.referee.conventions_outputs import LSE, SCORES
from attncli.referee.conventions_padding import BLIND_ROWS, PADDING
from attncli.referee.conventions_positions import POSITIONS
from attncli.referee.conventions_products import PRODUCTS
from attncli.referee.conventions_projection import OUTPUT
from attncli.referee.conventions_residual import RESIDUAL
from attncli.referee.conventions_rope import ROPE
from attncli.referee.conventions_scale import INPUTS, SCALES
from attncli.referee.conventions_scores import BIAS, SOFTCAP
from attncli.referee.conventions_shared import SHARED, SHARED_BIAS, SHARED_SINKS, SHARED_SLOPES
from attncli.referee.conventions_sinks import SINKS
from attncli.referee.conventions_softmax import PRECISION, SOFTMAX
from attncli.referee.conventions_splits import SPLITS
from attncli.referee.conventions_turns import TURNS
from attncli.referee.conventions_window import WINDOW
from attncli.referee.dropout import dropout, zeroed_weights
from attncli.referee.one_part import one_part
from attncli.referee.zeros_counted import zeros_counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.case import Case
    from attncli.referee.convention import Convention

    # Cases and a deadline in, a convention out, or None.
    Fitted = Callable[[Sequence[Case], float], Convention | None]

__all__ = ["CONVENTIONS", "FITTED", "SHOWN"]

# Inputs first, because some build the recipe anew; then from the product to the files.
# What happens to queries that see no key is decided when every rule is known.
CONVENTIONS = (
    *EMBEDDINGS,
    *POSITIONS,
    *FUSED,
    *ATTENDED,
    *HEADS,
    *SHARED,
    *INPUTS,
    *FUNCTION,
    *PRODUCTS,
    *SCALES,
    *ROPE,
    *TURNS,
    *SOFTCAP,
    *BIAS,
    *SHARED_BIAS,
    *ALIBI,
    *SHARED_SLOPES,
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
    *SHARED_SINKS,
    *ONLINE,
    *SPLITS,
    *PRECISION,
    *OUTPUT,
    *RESIDUAL,
    *LSE,
    *SCORES,
    *AXES,
)


def _of_first(fitted: Callable[[Case, float], Convention | None]) -> Fitted:
    """Look at one case alone, which tells enough."""
    return lambda cases, deadline: fitted(cases[0], deadline)


# Made for the files.
FITTED: tuple[Fitted, ...] = (
    *(_of_first(partial(another, quantity)) for quantity in QUANTITIES),
    *map(_of_first, (another_factor, zeros_counted, one_part)),
    dropout,
    strongest_keys,
)

# Made of all that the weights of the files show: they explain much, and say little.
SHOWN: tuple[Callable[[Sequence[Case]], Convention | None], ...] = (another_mask, zeroed_weights)
