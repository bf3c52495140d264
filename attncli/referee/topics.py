"""The topics of conventions: which step each changes, and how the search treats it.

Two conventions on one topic exclude each other. A topic states in one place whatever else
the search has to know about its conventions. Each is used as `topics.NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem

__all__ = ["Topic"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Topic:
    """A step of attention that conventions change.

    Attributes
    ----------
    part_of : Topic or None
        A topic of which this is a part: their conventions exclude each other, too.
    outputs : frozenset of str or None
        The outputs in which its mistakes show; None for all of them.
    alone : bool
        Its conventions are never tried together with another one.
    like_a_scale : bool
        Two of its mistakes together may come to one other scale.
    only_rounds : bool
        Its conventions change nothing but roundings: beside another mistake one counts only
        where it leaves far less error.
    last : bool
        Its conventions are many or slow, and tried after those of all other topics.
    absent : callable
        Whether a problem has nothing that its mistakes could concern.
    """

    part_of: Topic | None = None
    outputs: frozenset[str] | None = None
    alone: bool = False
    like_a_scale: bool = False
    only_rounds: bool = False
    last: bool = False
    absent: Callable[[Problem], bool] = lambda _: False

    def excludes(self, other: Topic) -> bool:
        """Return whether conventions on the two topics change the same step."""
        return self in other.lineage or other in self.lineage

    @property
    def lineage(self) -> tuple[Topic, ...]:
        """The topic itself, and those of which it is a part."""
        return (self, *(() if self.part_of is None else self.part_of.lineage))

    def shows_in(self, outputs: frozenset[str]) -> bool:
        """Return whether its mistakes show in any of these outputs."""
        return self.outputs is None or bool(self.outputs & outputs)


_CONTEXT = frozenset({"context"})

# How query, key and value are made.
EMBEDDING_NORM = Topic(alone=True)
PROJECTION = Topic()
QUERY_PROJECTION = Topic(part_of=PROJECTION)
KEY_PROJECTION = Topic(part_of=PROJECTION)
VALUE_PROJECTION = Topic(part_of=PROJECTION)
PROJECTED_BIAS = Topic()
QUERY_KEY_NORM = Topic()
FOLDED_SCALE = Topic(alone=True)
FUSED_PROJECTION = Topic()
FUSED_PARTS = Topic(part_of=FUSED_PROJECTION, alone=True)
POSITIONS = Topic()
KEY_SOURCE = Topic()
INPUTS = Topic()
COPIES = Topic(part_of=INPUTS, alone=True)
# A reshaped key, and a slot of the cache that is not yet written.
SLOTS = Topic(part_of=INPUTS, alone=True)
VALUE_BLOCKS = Topic(part_of=INPUTS, outputs=_CONTEXT, alone=True)
KEY_BLOCKS = Topic(part_of=INPUTS, alone=True)
HEADS = Topic()
# Of some inputs, where another mistake would be no evidence.
MISREAD_HEADS = Topic(part_of=HEADS, alone=True)
# Which key/value head a query head reads.
SHARED_HEADS = Topic()
# There are many ways to go wrong, and each is enough.
NUMBER_OF_HEADS = Topic(outputs=_CONTEXT, alone=True)
STRIDES = Topic(alone=True)

# From the product to the scores.
SCALE = Topic(like_a_scale=True)
# Each of its conventions says which scale goes with it.
SCORE_FUNCTION = Topic(part_of=SCALE)
PRODUCTS = Topic(only_rounds=True)
STORED_SCORES = Topic(part_of=PRODUCTS, alone=True)
STORED_INPUTS = Topic(part_of=PRODUCTS, alone=True)
STORED_EXPONENTIALS = Topic(part_of=PRODUCTS, outputs=_CONTEXT, alone=True)
# There are as many ways as all others together have.
QUANTIZED = Topic(part_of=PRODUCTS, alone=True, last=True)
SHORT_WEIGHTS = Topic(part_of=PRODUCTS, outputs=_CONTEXT, alone=True, last=True)
ROPE = Topic()
# Who mistakes two of these makes two mistakes.
ROPE_PAIRING = Topic(part_of=ROPE)
ROPE_FREQUENCIES = Topic(part_of=ROPE)
ROPE_PLACE = Topic(part_of=ROPE)
ROPE_ORDER = Topic(part_of=ROPE, alone=True)
# A few cosines may be rounded either way, which beside another mistake would be no evidence.
ROPE_TABLE = Topic(part_of=ROPE, alone=True)
# Of any model: more than are tried beside another mistake.
ROPE_UNASKED = Topic(part_of=ROPE, alone=True)
NEW_POSITIONS = Topic(part_of=ROPE_PLACE, alone=True)
SOFTCAP = Topic()
BIAS = Topic(absent=lambda problem: problem.bias is None)
BIAS_PLACES = Topic(part_of=BIAS, alone=True)
ALIBI = Topic()
ALIBI_STORED = Topic(part_of=ALIBI, alone=True)

# Which keys a query sees.
MASK = Topic(absent=lambda problem: problem.visible.mask is None)
MASK_BITS = Topic(part_of=MASK, alone=True)
MASK_PLACES = Topic(part_of=MASK, alone=True)
PADDING = Topic()
PADDING_INVERTED = Topic(part_of=PADDING)
PADDING_ON_QUERIES = Topic(part_of=PADDING)
ROUNDED_LENGTHS = Topic(part_of=PADDING, alone=True)
QUERY_PADDING = Topic()
SEGMENTS = Topic(absent=lambda problem: problem.visible.segment_ids is None)
CAUSAL = Topic()
CAUSAL_BLOCKS = Topic(part_of=CAUSAL, alone=True)
WINDOW = Topic()
BLOCKS = Topic()
HIDING = Topic()
STRONGEST_KEYS = Topic()
BLIND_ROWS = Topic()
BLIND_ROWS_ROUNDED = Topic(part_of=BLIND_ROWS, alone=True)

# The softmax, and what follows it.
SOFTMAX = Topic()
# What is seldom done beside another mistake: on square matrices, which take long, or with log.
LOST_AXES = Topic(part_of=SOFTMAX, alone=True)
EPSILON = Topic(part_of=SOFTMAX, alone=True)
# A letter or a bracket in the wrong place.
MISTYPED = Topic(alone=True)
SOFTMAX_BASE = Topic(like_a_scale=True)
SINKS = Topic()
ONLINE_SOFTMAX = Topic(alone=True)
SPLITS = Topic(alone=True)
PRECISION = Topic(outputs=_CONTEXT, alone=True)
# A sum in 16 bits, a key at a time, takes longer than all else together.
SHORT_SUMS = Topic(part_of=PRECISION, outputs=_CONTEXT, alone=True, last=True)
DROPOUT = Topic()
FACTOR = Topic()
ADDED = Topic(outputs=_CONTEXT)
UNWRITTEN = Topic()
OUTPUT_PROJECTION = Topic(outputs=_CONTEXT)
OUTPUT_BIAS = Topic(outputs=_CONTEXT)
RESIDUAL = Topic()
OUTPUT_NORM = Topic(part_of=RESIDUAL, outputs=_CONTEXT, alone=True)

# How the outputs are written.
# The file is no output at all.
GIVEN = Topic(outputs=_CONTEXT, alone=True)
LSE = Topic(outputs=frozenset({"lse"}))
LSE_OF_BLIND_ROWS = Topic(outputs=frozenset({"lse"}))
FEW_DIGITS = Topic(alone=True)
WEIGHTS = Topic(outputs=frozenset({"weights"}))
SCORES = Topic(outputs=frozenset({"scores", "raw", "capped"}))
AXES = Topic()
