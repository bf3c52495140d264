"""Names that files, options and messages share."""

from __future__ import annotations

from typing import Literal

# Where the first query stands, and what true means in a mask.
Align = Literal["top-left", "bottom-right"]
MaskMeans = Literal["keep", "drop"]
# Which components of query and key are rotated together.
Pairing = Literal["half", "interleaved"]
# The computing dtype.
PrecisionName = Literal["float32", "float64"]
# How query and key are compared.
Score = Literal["dot", "cosine", "general", "additive"]
# The schema version of JSON and YAML output. It grows when readers have to change.
SCHEMA = 1

# Stages of the scores: each L × S, like the weights.
SCORE_STAGES = ("scores", "raw", "capped")
SQUARE = ("weights", *SCORE_STAGES)
# The outputs of attention, in the order in which they are shown.
OUTPUTS = ("weights", "context", *SCORE_STAGES, "lse")
# The rules that hide keys: options, and fields of `attncli.problem.visibility.Visibility`.
HIDING_RULES = (
    *("mask", "key_padding_mask", "kv_lengths", "query_lengths", "causal", "window"),
    "segment_ids",
)
# The inputs of attention, given or projected.
INPUTS = ("query", "key", "value")
# Summaries of the weights: statistics, and the strongest keys.
SUMMARIES = ("stats", "top")
# The summary of all layers: weights, averaged over the heads.
ROLLOUT = "rollout"
# The results of a backward pass, each with its input; and its arguments, each with its output.
GRADIENTS = {
    "dquery": "query",
    "dkey": "key",
    "dvalue": "value",
    "dbias": "bias",
    "dsinks": "sinks",
}
UPSTREAM = {"dcontext": "context", "dlse": "lse"}
# The short names that other programs use.
_ALSO = {
    "query": ("q",),
    "key": ("k",),
    "value": ("v",),
    "context": ("o", "out", "output"),
}
# The names that compute can show.
SHOWABLE = (*OUTPUTS, *SUMMARIES, *INPUTS, *GRADIENTS, ROLLOUT)
# Entries that hold labels: of queries and keys alike, of queries, of keys.
LABELS = ("tokens", "query_labels", "key_labels")


def _spelled(of: str) -> list[str]:
    names = (of, *_ALSO.get(of, ()))
    return [form for name in names for form in (f"d{name}", f"grad_{name}", f"{name}.grad")]


_GRADIENT_NAMES = {
    form: name for name, of in {**GRADIENTS, **UPSTREAM}.items() for form in _spelled(of)
}


def gradient_name(name: str) -> str | None:
    """Return the name of a gradient that is spelled in any usual way; None for other names.

    Examples
    --------
    >>> gradient_name("dQ"), gradient_name("grad_output"), gradient_name("query.grad")
    ('dquery', 'dcontext', 'dquery')
    """
    return _GRADIENT_NAMES.get(name.lower())
