"""All conventions, in the order in which they are applied when two come together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from attncli.referee.catalogue.alibi import ALIBI
from attncli.referee.catalogue.attended import ATTENDED
from attncli.referee.catalogue.axes import AXES
from attncli.referee.catalogue.blind_rows import BLIND_ROWS
from attncli.referee.catalogue.blocks import BLOCKS
from attncli.referee.catalogue.causal import CAUSAL
from attncli.referee.catalogue.causal_blocks import CAUSAL_BLOCKS
from attncli.referee.catalogue.embeddings import EMBEDDINGS
from attncli.referee.catalogue.fused_projection import FUSED
from attncli.referee.catalogue.heads import HEADS
from attncli.referee.catalogue.hiding import HIDING, TOGETHER
from attncli.referee.catalogue.inputs import INPUTS
from attncli.referee.catalogue.mask import MASKS
from attncli.referee.catalogue.norms import EMBEDDING_NORMS, OUTPUT_NORMS, QUERY_KEY_NORMS
from attncli.referee.catalogue.online import ONLINE
from attncli.referee.catalogue.other_weights import OTHER_WEIGHTS
from attncli.referee.catalogue.output_projection import OUTPUT
from attncli.referee.catalogue.outputs import FEW_DIGITS, GIVEN, LSE, SCORES, WEIGHTS
from attncli.referee.catalogue.packed import PACKED
from attncli.referee.catalogue.padding import PADDING
from attncli.referee.catalogue.pooled import POOLED
from attncli.referee.catalogue.positions import POSITIONS
from attncli.referee.catalogue.precision import PRECISION
from attncli.referee.catalogue.products import PRODUCTS
from attncli.referee.catalogue.quantized import NOT_SCALED_BACK, QUANTIZED
from attncli.referee.catalogue.residual import RESIDUAL
from attncli.referee.catalogue.rope_rotation import ROPE_ROTATION
from attncli.referee.catalogue.rope_use import ROPE_USE
from attncli.referee.catalogue.scale import SCALES
from attncli.referee.catalogue.score_function import FUNCTION
from attncli.referee.catalogue.scores import BIAS, SOFTCAP
from attncli.referee.catalogue.segments import SEGMENTS
from attncli.referee.catalogue.short_sums import SHORT_SUMS
from attncli.referee.catalogue.short_weights import SHORT_WEIGHTS
from attncli.referee.catalogue.sinks import SINKS
from attncli.referee.catalogue.softmax import SOFTMAX
from attncli.referee.catalogue.splits import SPLITS
from attncli.referee.catalogue.stored_projections import STORED_PROJECTIONS
from attncli.referee.catalogue.strides import SHARED, SHARED_BIAS, SHARED_SINKS, SHARED_SLOPES
from attncli.referee.catalogue.window import WINDOW
from attncli.referee.fitted.added_vector import added_vector
from attncli.referee.fitted.another_factor import another_factor
from attncli.referee.fitted.another_mask import another_mask, strongest_keys
from attncli.referee.fitted.another_number import another
from attncli.referee.fitted.another_sink import another_sink
from attncli.referee.fitted.by_head import scale_by_head, slopes_by_head
from attncli.referee.fitted.chunks import chunks_unasked
from attncli.referee.fitted.counted_keys import counted_keys
from attncli.referee.fitted.diagonal_blocks import diagonal_blocks
from attncli.referee.fitted.diagonals import another_offset, prefix_unasked
from attncli.referee.fitted.dropout import dropout, output_dropout, zeroed_weights
from attncli.referee.fitted.empty_pages import empty_pages
from attncli.referee.fitted.epsilon import epsilon_added
from attncli.referee.fitted.misplaced_inputs import misplaced_inputs
from attncli.referee.fitted.misplaced_outputs import (
    misplaced_columns,
    misplaced_outputs,
    misplaced_rows,
)
from attncli.referee.fitted.misplaced_tokens import misplaced_tokens
from attncli.referee.fitted.misread_pages import misread_pages
from attncli.referee.fitted.one_part import one_part
from attncli.referee.fitted.other_length import other_length
from attncli.referee.fitted.other_lengths import (
    causal_and_padding_unasked,
    other_lengths,
    other_padding,
    padding_on_the_left_unasked,
)
from attncli.referee.fitted.quantities import QUANTITIES
from attncli.referee.fitted.rank_causal import rank_causal
from attncli.referee.fitted.rope_positions import (
    rope_positions_restart,
    rope_queries_moved,
    rope_query_positions_restart,
)
from attncli.referee.fitted.rounded_blind_rows import blind_rows_rounded
from attncli.referee.fitted.segments_cut_short import segments_cut_short
from attncli.referee.fitted.segments_elsewhere import segments_elsewhere
from attncli.referee.fitted.sinks_counted import sinks_counted
from attncli.referee.fitted.some_components import some_components
from attncli.referee.fitted.unstated_segments import segments_unasked
from attncli.referee.fitted.unwritten import unwritten
from attncli.referee.fitted.zeros_counted import zeros_counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.case import Case
    from attncli.referee.convention import Convention, Need

__all__ = ["CONVENTIONS", "FITTED", "SHOWN", "Fitting"]

# Inputs first, because some build the recipe anew; then from the product to the files.
# What happens to fully masked rows is decided when every rule is known.
CONVENTIONS = (
    *EMBEDDING_NORMS,
    *QUERY_KEY_NORMS,
    *EMBEDDINGS,
    *POSITIONS,
    *STORED_PROJECTIONS,
    *FUSED,
    *ATTENDED,
    *HEADS,
    *SHARED,
    *PACKED,
    *INPUTS,
    *FUNCTION,
    *PRODUCTS,
    *SCALES,
    *ROPE_USE,
    *ROPE_ROTATION,
    *SOFTCAP,
    *BIAS,
    *SHARED_BIAS,
    *ALIBI,
    *SHARED_SLOPES,
    *MASKS,
    *PADDING,
    *SEGMENTS,
    *CAUSAL,
    *CAUSAL_BLOCKS,
    *WINDOW,
    *TOGETHER,
    *BLOCKS,
    *HIDING,
    *BLIND_ROWS,
    *SOFTMAX,
    *OTHER_WEIGHTS,
    *SINKS,
    *SHARED_SINKS,
    *ONLINE,
    *SPLITS,
    *PRECISION,
    *SHORT_SUMS,
    *OUTPUT,
    *RESIDUAL,
    *OUTPUT_NORMS,
    *GIVEN,
    *LSE,
    *WEIGHTS,
    *SCORES,
    *FEW_DIGITS,
    *AXES,
    *POOLED,
    *QUANTIZED,
    *SHORT_WEIGHTS,
)


class Fitting(NamedTuple):
    """A way to read a mistake off the numbers of the files.

    Attributes
    ----------
    look : callable
        Cases in, a convention out; None where the files hold nothing that can be read, or nothing
        of the kind.
    needs : frozenset of str
        The axes that are whole in these cases: ``batch``, ``heads``, ``rows``.
    of_heads : bool
        It reads the output of each head: behind an output projection, what was projected.
    """

    look: Callable[[Sequence[Case]], Convention | None]
    needs: frozenset[Need] = frozenset()
    of_heads: bool = True


def _at_first(
    look: Callable[[Case], Convention | None], *needs: Need, of_heads: bool = True
) -> Fitting:
    """Look only at the first case, which is enough."""
    return Fitting(lambda cases: look(cases[0]), frozenset(needs), of_heads)


def _as_known(convention: Convention) -> Fitting:
    """Try a known convention that another number, which is read off, may come to as well."""
    return Fitting(lambda _: convention, of_heads=False)


# Made for the files.
FITTED = (
    *(_at_first(partial(another, quantity), of_heads=False) for quantity in QUANTITIES),
    _at_first(another_factor, of_heads=False),
    Fitting(added_vector, frozenset({"batch", "heads"}), of_heads=False),
    _at_first(zeros_counted),
    _at_first(blind_rows_rounded),
    _at_first(epsilon_added, "heads"),
    _at_first(sinks_counted, "heads"),
    _at_first(another_sink, "heads"),
    Fitting(other_lengths, frozenset({"batch", "heads"}), of_heads=False),
    Fitting(causal_and_padding_unasked, frozenset({"batch", "heads"}), of_heads=False),
    Fitting(other_padding, frozenset({"batch", "heads"}), of_heads=False),
    Fitting(padding_on_the_left_unasked, frozenset({"batch", "heads"}), of_heads=False),
    Fitting(another_offset, frozenset({"batch", "heads"}), of_heads=False),
    Fitting(prefix_unasked, frozenset({"batch", "heads"}), of_heads=False),
    Fitting(chunks_unasked, frozenset({"batch", "heads"}), of_heads=False),
    _at_first(diagonal_blocks, "rows", of_heads=False),
    _at_first(rank_causal, "rows", of_heads=False),
    _at_first(rope_queries_moved, of_heads=False),
    _at_first(rope_query_positions_restart, of_heads=False),
    _at_first(rope_positions_restart, of_heads=False),
    Fitting(segments_unasked, frozenset({"batch", "rows"}), of_heads=False),
    Fitting(segments_cut_short, frozenset({"batch", "heads"}), of_heads=False),
    Fitting(segments_elsewhere, frozenset({"batch", "rows"}), of_heads=False),
    _at_first(counted_keys, "batch"),
    _at_first(some_components),
    _at_first(empty_pages),
    _at_first(misread_pages, "heads"),
    _at_first(one_part),
    _at_first(other_length, of_heads=False),
    Fitting(dropout),
    Fitting(output_dropout),
    Fitting(strongest_keys),
    Fitting(unwritten),
    _at_first(misplaced_outputs, "batch", "heads"),
    _at_first(misplaced_inputs, "batch", "heads"),
    _at_first(misplaced_tokens, "batch", "heads", "rows"),
    _at_first(misplaced_rows, "rows", of_heads=False),
    _at_first(misplaced_columns),
    _at_first(slopes_by_head, "heads"),
    _at_first(scale_by_head, "heads"),
    *map(_as_known, NOT_SCALED_BACK),
)

# Made of everything that the weights of the files show: they explain much, but say little. The
# mask of one head may be something else in the others.
SHOWN = (Fitting(another_mask, frozenset({"heads"})), Fitting(zeroed_weights))
