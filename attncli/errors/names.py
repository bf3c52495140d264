"""Names that files, options and messages share."""

from __future__ import annotations

from typing import Literal

__all__ = [
    "HIDING_RULES",
    "INPUTS",
    "LABELS",
    "OUTPUTS",
    "SCHEMA",
    "SCORE_STAGES",
    "SHOWABLE",
    "SQUARE",
    "SUMMARIES",
    "Align",
    "MaskMeans",
    "Pairing",
    "PrecisionName",
    "Score",
]

# Where the first query stands, and what true means in a mask.
Align = Literal["top-left", "bottom-right"]
MaskMeans = Literal["keep", "drop"]
# Which components of query and key are rotated together.
Pairing = Literal["half", "interleaved"]
# What is computed in.
PrecisionName = Literal["float32", "float64"]
# How query and key are compared.
Score = Literal["dot", "cosine", "general", "additive"]
# Of JSON and YAML: another number where a reader has to be changed.
SCHEMA = 1

# Stages of the scores: each L × S, as the weights.
SCORE_STAGES = ("scores", "raw", "capped")
SQUARE = ("weights", *SCORE_STAGES)
# What attention gives, in the order in which it is shown.
OUTPUTS = ("weights", "context", *SCORE_STAGES, "lse")
# What hides keys: options, and fields of `attncli.problem.visibility.Visibility`.
HIDING_RULES = (
    *("mask", "key_padding_mask", "kv_lengths", "query_lengths", "causal", "window"),
    "segment_ids",
)
# What attention begins with, given or projected.
INPUTS = ("query", "key", "value")
# What the weights come to: a list of figures, or of the strongest keys.
SUMMARIES = ("stats", "top")
# What compute shows.
SHOWABLE = (*OUTPUTS, *SUMMARIES, *INPUTS)
# Lists of words: of queries and keys both, of queries, of keys.
LABELS = ("tokens", "query_labels", "key_labels")
