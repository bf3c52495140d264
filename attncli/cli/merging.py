"""``--merge``: weights between words instead of subwords."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.cli.question import computed
from attncli.errors import ShapeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.cli.options import MergeOptions
    from attncli.cli.question import Asked
    from attncli.gather import Finished
    from attncli.summaries.words import Words

_OF_WORDS = "subwords joined (summed over keys, averaged over queries)"


def merged(asked: Asked | Finished, options: MergeOptions) -> Finished:
    """Return the weights between words, as finished weights.

    Raises
    ------
    UsageError
        The tokens have no names.
    ShapeError
        A file has groups for another number of tokens.
    """
    from attncli.numerics.indices import EVERYTHING
    from attncli.summaries.words import merged_hidden, merged_weights

    asked = computed(asked, options)
    weights, hidden = asked.checked("weights", EVERYTHING), asked.hidden_cells(EVERYTHING)
    groups, file = _groups(options), [] if options.merge == "words" else [str(options.merge)]
    queries = _words("queries", asked.query_labels, weights.shape[-2], groups)
    keys = _words("keys", asked.key_labels, weights.shape[-1], groups)
    shape = *asked.values.shape[:-2], len(queries.names), len(keys.names)
    gone = None if hidden is None else merged_hidden(hidden, queries, keys).reshape(shape)
    return asked._replace(
        values=merged_weights(weights, queries, keys).reshape(shape),
        name=f"{asked.name}, by words",
        inputs=(*asked.inputs, *file),
        query_labels=queries.names,
        key_labels=keys.names,
        hidden=gone,
        remark=", ".join(filter(None, (asked.remark, _OF_WORDS))),
    )


def _groups(options: MergeOptions) -> Sequence[str] | None:
    """Return the groups of ``--merge FILE``; None for ``--merge words``."""
    from attncli.loading.source import open_source
    from attncli.loading.words import read_words

    if options.merge == "words":
        return None
    return read_words(open_source(str(options.merge)))


def _words(
    what: str, labels: Sequence[str] | None, count: int, groups: Sequence[str] | None
) -> Words:
    from attncli.summaries.words import words_of

    if groups is not None and len(groups) != count:
        raise ShapeError(f"--merge: expected {count} groups, one a token; found {len(groups)}")
    if labels is None:
        raise UsageError(
            f"--merge: the {what} have no names", hint="give --tokens, one subword for each"
        )
    return words_of(labels, groups)
