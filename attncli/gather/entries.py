"""The names that a problem file and the command line know, and what each of them takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import InputError, UsageError
from attncli.names import LABELS, OUTPUTS, SUMMARIES
from attncli.text import did_you_mean, printable, quoted

if TYPE_CHECKING:
    from attncli.errors import AttnError
    from attncli.loading.contents import LoadedMapping

__all__ = [
    "COLUMNS_ARE",
    "KNOWN",
    "LABELS",
    "LISTS",
    "MATRICES",
    "NOTHING",
    "PROJECTIONS",
    "RESULTS",
    "ROWS_ARE",
    "SHORT",
    "WORDS",
    "full_name",
    "missing_input",
    "nearest_name",
    "unknown_entry",
]

SHORT = {
    "q": "query",
    "k": "key",
    "v": "value",
    # As models in Transformers call them.
    "query_states": "query",
    "key_states": "key",
    "value_states": "value",
}
PROJECTIONS = ("wq", "wk", "wv", "bq", "bk", "bv")
_EMBEDDED = ("x", "wq", "wk", "wv", "wo")
MATRICES = (
    *("query", "key", "value", "mask", "bias", "key_padding_mask", "score_weight"),
    *_EMBEDDED,
)
# A short list on the command line or in a problem file serves as well as a file.
LISTS = (
    *("kv_lengths", "query_lengths", "query_offset", "alibi_slopes", "sinks", "score_vector"),
    "rope_frequencies",
    *("bq", "bk", "bv", "bo"),
)
# Options that are words.
WORDS = ("mask_means", "causal_align", "rope", "score", "layout", "precision", "positions")
_PLAIN_OPTIONS = (
    *WORDS,
    *("scale", "causal", "window", "softcap", "rope_base", "heads", "kv_heads"),
)
KNOWN = (*MATRICES, *LISTS, *_PLAIN_OPTIONS, *LABELS, "plain", "checkpoint")
ROWS_ARE = {
    "x": ("query_labels", "key_labels"),
    "query": ("query_labels",),
    "key": ("key_labels",),
    "value": ("key_labels",),
    "mask": ("query_labels",),
    "bias": ("query_labels",),
}
COLUMNS_ARE = {"mask": "key_labels", "bias": "key_labels"}
RESULTS = ("schema", *OUTPUTS, *SUMMARIES)


# As mathematics writes them, in capitals.
_SYMBOLS = {"query", "key", "value", "x", *PROJECTIONS, "wo", "bo"}
# What other libraries call it, and what serves here.
NOTHING = "nothing"
_ELSEWHERE = {
    "attn_mask": "mask, or bias if its numbers are added to the scores",
    "attention_mask": "mask, or key_padding_mask if it is (B, S)",
    "src_mask": "mask",
    "tgt_mask": "mask",
    "key_mask": "key_padding_mask",
    "src_key_padding_mask": "key_padding_mask",
    "attn_bias": "bias",
    "attention_bias": "bias",
    "alibi": "alibi_slopes: true for those of the paper, or a list of them",
    "slopes": "alibi_slopes",
    "is_causal": "causal",
    "rope_theta": "rope_base",
    "inv_freq": "rope_frequencies",
    "dropout": f"{NOTHING}: attncli drops nothing out",
    "dropout_p": f"{NOTHING}: attncli drops nothing out",
    "enable_gqa": f"{NOTHING}: fewer key and value heads are shared as they are",
    "num_heads": "heads",
    "num_attention_heads": "heads",
    "num_kv_heads": "kv_heads",
    "num_key_value_heads": "kv_heads",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "window_size": "window",
    "local_window_size": "window",
    "soft_cap": "softcap",
    "query_seq_lengths": "query_lengths",
    "key_value_seq_lengths": "kv_lengths",
    "cache_seqlens": "kv_lengths",
    "threads": f"{NOTHING}: --threads is given on the command line",
    "average_heads": f"{NOTHING}: --average-heads is given on the command line",
}
_LISTED = 8


def full_name(name: str) -> str:
    """Return the long name of an entry; inputs and weights are known in capitals too."""
    small = SHORT.get(name.lower(), name.lower())
    return small if small in _SYMBOLS else name


def unknown_entry(name: str, document: LoadedMapping) -> UsageError:
    """Return the error for an entry that no problem file has, with the nearest that one may."""
    meant = nearest_name(name)
    return _checkpoint(document) or UsageError(
        f"{document.name}: unknown entry {quoted(name)}",
        hint=meant
        or "a problem holds query, key, value, and any option under its Python name: "
        "mask, causal, scale, …",
    )


def nearest_name(name: str, *, likeness: float = 0.6) -> str | None:
    """Return what a wrong name probably means, as a hint."""
    if name.lower() in _ELSEWHERE:
        return f"here it is {_ELSEWHERE[name.lower()]}"
    return did_you_mean(name, [*SHORT, *KNOWN], likeness=likeness)


def missing_input(missing: str, document: LoadedMapping) -> AttnError:
    """Return the error for a file without query or key."""
    names = list(document.entries)
    found = ", ".join(map(printable, names[:_LISTED])) + (", …" if len(names) > _LISTED else "")
    strange = [name for name in names if full_name(name) not in KNOWN]
    files = " ".join(f"{document.name}#{printable(name)}" for name in strange[:3])
    return _checkpoint(document) or InputError(
        f"{document.name}: expected query, key and value; {missing} is missing "
        f"(found {found or 'nothing'})",
        hint=f"say which they are: {files}" if len(strange) > 1 and document.dump else None,
    )


def _checkpoint(document: LoadedMapping) -> UsageError | None:
    from attncli.checkpoint_names import find_layers  # noqa: PLC0415

    if not find_layers(document.entries):
        return None
    return UsageError(
        f"{document.name} is a checkpoint: it holds weights but no embeddings",
        hint=f"attncli compute x.npy --checkpoint {document.name}",
    )
