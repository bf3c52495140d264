"""The names that a problem file and the command line know, and what each of them takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.text import printable

if TYPE_CHECKING:
    from attncli.loading.contents import LoadedMapping

__all__ = [
    "KNOWN",
    "LABELS",
    "LISTS",
    "MATRICES",
    "PROJECTIONS",
    "RESULTS",
    "ROWS_ARE",
    "SHORT",
    "unknown_entry",
]

SHORT = {"q": "query", "k": "key", "v": "value"}
PROJECTIONS = ("wq", "wk", "wv", "bq", "bk", "bv")
_EMBEDDED = ("x", "wq", "wk", "wv", "wo")
MATRICES = (
    *("query", "key", "value", "mask", "bias", "key_padding_mask", "score_weight"),
    *_EMBEDDED,
)
# A short list on the command line or in a problem file serves as well as a file.
LISTS = (
    *("kv_lengths", "query_lengths", "query_offset", "alibi_slopes", "sinks", "score_vector"),
    *("bq", "bk", "bv", "bo"),
)
_PLAIN_OPTIONS = (
    "scale",
    "mask_means",
    "causal",
    "causal_align",
    "window",
    "softcap",
    "rope",
    "rope_base",
    "score",
    "heads",
    "kv_heads",
    "layout",
    "precision",
    "positions",
)
LABELS = ("tokens", "query_labels", "key_labels")
KNOWN = (*MATRICES, *LISTS, *_PLAIN_OPTIONS, *LABELS, "plain", "checkpoint")
ROWS_ARE = {
    "x": ("query_labels", "key_labels"),
    "query": ("query_labels",),
    "key": ("key_labels",),
    "value": ("key_labels",),
}
RESULTS = ("schema", "weights", "context", "scores", "raw", "capped", "lse", "stats", "top")


def unknown_entry(name: str, document: LoadedMapping) -> UsageError:
    """Return the error for an entry that no problem file has, with the nearest that one may."""
    # Made here, not at the top: only an error pays for the imports.
    from difflib import get_close_matches  # noqa: PLC0415

    from attncli.checkpoint_names import find_layers  # noqa: PLC0415

    if find_layers(document.entries):
        return UsageError(
            f"{document.name} is a checkpoint: it holds weights and no embeddings",
            hint=f"attncli compute x.npy --checkpoint {document.name}",
        )
    known = [*SHORT, *KNOWN]
    close = get_close_matches(name, known, n=1)
    return UsageError(
        f"{document.name}: unknown entry {printable(name)!r}",
        hint=f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}",
    )
