"""The names that a problem file and the command line know, and what each of them takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attncli.elsewhere import ELSEWHERE, Here, option_of
from attncli.errors import InputError, UsageError
from attncli.gather.maps import looks_finished
from attncli.loading.contents import LoadedArray
from attncli.loading.source import STANDARD_INPUT
from attncli.names import LABELS, OUTPUTS, SUMMARIES
from attncli.text import did_you_mean, first_few, printable, quoted

if TYPE_CHECKING:
    from attncli.errors import AttnError
    from attncli.loading.contents import LoadedMapping

__all__ = [
    "COLUMNS_ARE",
    "KNOWN",
    "LABELS",
    "MATRICES",
    "MODELS",
    "NORMS",
    "OF_FILES",
    "PROJECTIONS",
    "RESULTS",
    "ROWS_ARE",
    "SINGLE",
    "WORDS",
    "full_name",
    "missing_input",
    "nearest_name",
    "serves_for",
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
# What is done to query and key when they are projected.
NORMS = ("q_norm", "k_norm", "norm_eps")
_EMBEDDED = ("x", "wq", "wk", "wv", "wo")
MATRICES = (
    *("query", "key", "value", "mask", "bias", "key_padding_mask", "score_weight"),
    *_EMBEDDED,
)
# A short list on the command line or in a problem file serves as well as a file.
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
    "norm_eps",
)
# Files that are no arrays.
MODELS = ("checkpoint", "config")
KNOWN = (*OF_FILES, *SINGLE, *LABELS, *MODELS)
ROWS_ARE = {
    "x": ("query_labels", "key_labels"),
    "query": ("query_labels",),
    "key": ("key_labels",),
    "value": ("key_labels",),
    "mask": ("query_labels",),
    "bias": ("query_labels",),
}
COLUMNS_ARE = dict.fromkeys(("mask", "bias", "key_padding_mask"), "key_labels")
RESULTS = ("schema", *OUTPUTS, *SUMMARIES)


# As mathematics writes them, in capitals.
_SYMBOLS = {"query", "key", "value", "x", *PROJECTIONS, "wo", "bo"}
# What serves for names that programs write. Those that are not rules of other libraries may be
# those of arrays that stand by.
_SERVES = {
    **ELSEWHERE,
    **{
        name: Here("", f"{option_of(name)} is given on the command line", rule=False)
        for name in ("threads", "average_heads")
    },
    **{
        f"w_{word}": Here(f"w{word[0]}", rule=False)
        for word in ("q", "k", "v", "o", "query", "key", "value")
    },
}

# What others call the embeddings that query and key are made from. Beside query and key, or in what
# a program dumped, it may be anything.
_EMBEDDINGS = {
    *("embeddings", "embedding", "emb", "e", "inputs", "input", "x_in"),
    *("hidden_states", "hidden"),
}
_LABELS_HINT = Here("tokens", ", or {query_labels} and {key_labels}").hint()


def full_name(name: str) -> str:
    """Return the long name of an entry; inputs and weights are known in capitals too."""
    small = SHORT.get(name.lower(), name.lower())
    return small if small in _SYMBOLS else name


def unknown_entry(name: str, document: LoadedMapping) -> UsageError:
    """Return the error for an entry that no problem file has, with the nearest that one may."""
    return _checkpoint(document) or UsageError(
        f"{document.name}: unknown entry {quoted(name)}",
        hint=_meant(name, document)
        or "a problem holds query, key, value, and options of attncli.attention by their names: "
        "mask, causal, scale, …",
    )


def _meant(name: str, document: LoadedMapping) -> str | None:
    """Return what a wrong name in a problem file probably means, as a hint."""
    if name == "labels":
        return _LABELS_HINT
    return Here("x").hint() if name in _misnamed_embeddings(document) else nearest_name(name)


def _misnamed_embeddings(document: LoadedMapping) -> list[str]:
    """Return the entries that probably are x, where nothing else is what attention starts with."""
    if document.dump or {"x", "query", "key"} & set(map(full_name, document.entries)):
        return []
    return [name for name in document.entries if name.lower() in _EMBEDDINGS]


def nearest_name(name: str, *, likeness: float = 0.6, arrays: bool = False) -> str | None:
    """Return what a wrong name probably means, as a hint; of an array, what may be one."""
    here = serves_for(name)
    known = (*SHORT, *(OF_FILES if arrays else KNOWN))
    return here.hint() if here else did_you_mean(name, known, likeness=likeness)


def serves_for(name: str) -> Here | None:
    """Return what serves in the place of an entry that a program wrote for another library."""
    return _SERVES.get(name.lower())


def missing_input(missing: str, document: LoadedMapping) -> AttnError:
    """Return the error for a file without query or key."""
    names = list(document.entries)
    found = first_few([printable(name) for name in names])
    strange = [name for name in names if full_name(name) not in KNOWN]
    empty = next((name for name in names if full_name(name) == missing), None)
    if empty is not None:
        return InputError(
            f"{document.name}#{printable(empty)}: expected numbers; found nothing (null)"
        )
    hint = None
    if strange and document.dump:
        hint = _which(_in_order(strange)[:3], document)
    elif "scores" in names:
        hint = "attncli heatmap --what scores draws finished scores"
    elif "schema" in names:
        hint = "compute --show weights -f json writes what heatmap draws"
    return _checkpoint(document) or InputError(
        f"{document.name}: expected query, key and value; {missing} is missing "
        f"(found {found or 'nothing'})",
        hint=hint,
    )


def _which(names: list[str], document: LoadedMapping) -> str:
    """Return how arrays are named that are perhaps query, key and value, or finished weights."""
    files = [f"{document.name}#{printable(name)}" for name in names]
    # One array alone cannot be both query and key.
    weights = [
        file
        for name, file in zip(names, files, strict=True)
        if len(names) == 1 or _is_finished(name, document)
    ]
    if weights:
        return f"if it holds finished weights, name them: attncli heatmap {weights[0]}"
    return f"say which they are: {' '.join(files)}"


def _is_finished(name: str, document: LoadedMapping) -> bool:
    """Return whether an entry looks like finished weights; what cannot be read does not."""
    try:
        entry = document.entries[name]
    except InputError:
        return False
    return isinstance(entry, LoadedArray) and looks_finished(entry.values)


def _in_order(names: list[str]) -> list[str]:
    """Return names of arrays with those first that say query, key and value, in this order."""
    said = [re.search(r"(?<![a-z])[qkv](?![a-z])|query|key|value", name.lower()) for name in names]
    places = ["qkv".index(found[0][0]) if found else 3 for found in said]
    return [name for _, name in sorted(zip(places, names, strict=True), key=lambda pair: pair[0])]


def _checkpoint(document: LoadedMapping) -> UsageError | None:
    from attncli.checkpoints.names import find_layers  # noqa: PLC0415

    names = document.entries
    if "x" in map(full_name, names) or _misnamed_embeddings(document):
        return None
    says_rules = not document.dump and any(name in SINGLE for name in names)
    if says_rules or not find_layers(names):
        return None
    return UsageError(
        f"{document.name} is a checkpoint: it holds weights but no embeddings",
        hint=f"attncli compute x.npy --checkpoint {document.name}"
        if document.name != STANDARD_INPUT
        else "name its file: attncli compute x.npy --checkpoint FILE; embeddings are called x",
    )
