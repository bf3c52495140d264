"""The names of entries in problem files and of options, and their kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import InputError, UsageError
from attncli.errors.elsewhere import ELSEWHERE
from attncli.errors.names import (
    GRADIENTS,
    LABELS,
    OUTPUTS,
    SUMMARIES,
    UPSTREAM,
    gradient_name,
)
from attncli.errors.text import did_you_mean, first_few, printable, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attncli.errors import AttnError
    from attncli.loading.contents import LoadedMapping

_SHORT = {
    "q": "query",
    "k": "key",
    "v": "value",
    # Names in the models of Transformers.
    "query_states": "query",
    "key_states": "key",
    "value_states": "value",
}
PROJECTIONS = ("wq", "wk", "wv", "bq", "bk", "bv")
# Norms of the projected query and key.
NORMS = ("q_norm", "k_norm", "norm_eps")
MATRICES = (
    *("query", "key", "value", "mask", "bias", "key_padding_mask", "score_weight"),
    *("x", "wq", "wk", "wv", "wo"),
)
# Arguments that may be a short list, such as 3,5, instead of a file.
_LISTS = (
    *("kv_lengths", "query_lengths", "query_offset", "alibi_slopes", "sinks", "score_vector"),
    *("rope_frequencies", "segment_ids", "kv_segment_ids"),
    *("bq", "bk", "bv", "bo", "q_norm", "k_norm"),
)
OF_FILES = (*MATRICES, *_LISTS, "window")
# Options that are words.
WORDS = ("mask_means", "causal_align", "rope", "score", "layout", "precision", "positions")
# Options that are one word, number or truth value.
SINGLE = (
    *(*WORDS, "plain", "scale", "causal", "softcap", "rope_base", "heads", "kv_heads"),
    *("norm_eps", "transposed"),
)
# Files of models, which are not arrays.
MODELS = ("checkpoint", "config")
KNOWN = (*OF_FILES, *SINGLE, *LABELS, *MODELS)
# Entries of a problem file that an option replaces besides the entry of its own name.
_REPLACES = {
    "plain": ("scale",),
    "scale": ("plain",),
    "tokens": ("query_labels", "key_labels"),
    "rope_base": ("rope_frequencies",),
    "rope_frequencies": ("rope_base",),
}
# The labels that the rows of a table are, and below, its columns.
ROWS_ARE = {
    "x": ("query_labels", "key_labels"),
    "query": ("query_labels",),
    "key": ("key_labels",),
    "value": ("key_labels",),
    "mask": ("query_labels",),
    "bias": ("query_labels",),
}
COLUMNS_ARE = {
    **dict.fromkeys(("mask", "bias", "key_padding_mask"), "key_labels"),
    **dict.fromkeys(("query", "key"), "features"),
}
RESULTS = ("schema", *OUTPUTS, *SUMMARIES, *GRADIENTS, *UPSTREAM)
# Names that may also be written in capitals, as in formulas.
_SYMBOLS = {"query", "key", "value", "x", *PROJECTIONS, "wo", "bo"}


def full_name(name: str) -> str:
    """Return the long name of an entry; names of matrices may be capitals."""
    small = _SHORT.get(name.lower(), name.lower())
    return small if small in _SYMBOLS else gradient_name(name) or name


def replaced_by(given: Iterable[str]) -> set[str]:
    """Return the long names of entries that the given options replace."""
    names = {*given}
    return names.union(*(_REPLACES.get(name, ()) for name in names))


def spellings(names: Iterable[str]) -> set[str]:
    """Return all names that a problem file may use for some entries."""
    long = {*names}
    short = {name for name, full in _SHORT.items() if full in long}
    return {form for name in long | short for form in (name, name.upper(), name.capitalize())}


def nearest_name(name: str) -> str | None:
    """Return a hint: the option for another library's name, or the most similar name."""
    here = ELSEWHERE.get(name.lower())
    return here.hint() if here else did_you_mean(name, (*_SHORT, *KNOWN))


def unknown_entry(name: str, document: LoadedMapping) -> UsageError:
    """Return the error for an unknown entry."""
    left_out = f"--without {printable(name)} leaves it out" if document.dump else None
    hint = "; ".join(filter(None, (nearest_name(name), left_out)))
    return UsageError(
        f"{document.name}: unknown entry {quoted(name)}",
        hint=hint
        or "a problem holds query, key, value, and options of attncli.attention by their names: "
        "mask, causal, scale, …",
    )


def missing_input(missing: str, document: LoadedMapping) -> AttnError:
    """Return the error for a problem without query or key."""
    from attncli.checkpoints.names import find_layers  # noqa: PLC0415

    names = list(document.entries)
    if not names:
        return UsageError(
            f"{missing} is missing", hint="give query, key and value, or x with wq, wk and wv"
        )
    hint = None
    if document.dump and find_layers(names):
        hint = f"to use a layer of a checkpoint: attncli compute x.npy --checkpoint {document.name}"
    elif "scores" in names:
        hint = "to draw finished scores: attncli heatmap --what scores"
    elif document.dump:
        hint = f"say which arrays are query, key and value: {document.name}#{printable(names[0])} …"
    return InputError(
        f"{document.name}: expected query, key and value; {missing} is missing "
        f"(found {first_few([printable(name) for name in names])})",
        hint=hint,
    )
