"""Labels of queries and keys: which one a user names, and whether two files agree on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncli.errors import UsageError, warn
from attncli.errors.text import counted, did_you_mean, first_few, label_text, quoted, whole_number
from attncli.numerics.indices import range_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLURAL = {"query": "queries", "key": "keys"}


def named_index(
    name: str,
    text: str,
    count: int,
    labels: Sequence[str] | None,
    *,
    of: Literal["query", "key"],
    also: str = "",
) -> int:
    """Return the index of the query or key that a user named by index or label.

    Parameters
    ----------
    name : str
        The argument's name, as errors show it.
    text : str
        A whole number within range is an index, counted from 0; a negative one counts from the
        end, unless it is a label. Any other text is a label, or a label with its index:
        ``the (4)``.
    count : int
    labels : sequence of str or None
    of : {"query", "key"}
    also : str
        Other accepted forms, for the error, with a comma at the end.

    Raises
    ------
    UsageError
        No query or key has this index or label, or several have this label.

    Warns
    -----
    AttnWarning
        Another query or key has this index as its label.
    """
    labels = labels or ()
    found = _places(text, labels)
    index = whole_number(text)
    if index is not None and 0 <= index < count:
        if found and index not in found:
            warn(
                f"{of} {index} is the {of} with this index, counted from 0; {quoted(text)} is also "
                f"the label of {of} {found[0]}"
            )
        return index
    if index is not None and not found and -count <= index < 0:
        return index + count
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{name}: {quoted(text)} is the label of {counted(len(found), of, _PLURAL[of])}: "
            f"{first_few([*map(str, found)])}",
            hint=f"name one by its index, or as '{_shown(labels[found[0]])} ({found[0]})'",
        )
    known = f" or one of the labels ({first_few([*map(quoted, labels)])})" if labels else ""
    raise UsageError(
        f"{name}: expected {also}an index from {-count} to {count - 1}{known}; "
        f"found {quoted(text)}",
        hint=did_you_mean(text, labels),
    )


def _places(text: str, labels: Sequence[str]) -> list[int]:
    """Return the indices whose label is a text: as it is, as in tables, or with its index."""
    for written in (labels, [*map(_shown, labels)]):
        found = [index for index, label in enumerate(written) if label == text]
        found = found or [i for i, label in enumerate(written) if f"{label} ({i})" == text]
        if found:
            return found
    return []


def _shown(label: str) -> str:
    """Return a label as tables show it: a blank one becomes visible signs."""
    return label if label.strip(" ") else label_text(label)


def named_range(
    name: str,
    text: str,
    count: int,
    labels: Sequence[str] | None,
    *,
    of: Literal["query", "key"],
) -> tuple[int, int]:
    """Return the start and stop of a range of queries or keys.

    Parameters
    ----------
    name : str
        The argument's name, as errors show it.
    text : str
        One index or label, or two with a colon between. A range ends before its last index, as
        in Python, but includes its last label.
    count : int
    labels : sequence of str or None
    of : {"query", "key"}

    Raises
    ------
    UsageError
        There is no such query or key, or the range is empty.
    """
    known = labels or ()

    def index_of_one(word: str) -> int:
        # Tokens may begin with a blank.
        label = word if word in known else word.strip()
        return named_index(name, label, count, labels, of=of, also="a:b, as in 0:64, ")

    if text.count(":") != 1 or text in known:
        index = index_of_one(text)
        return index, index + 1
    first, last = text.split(":")
    start, stop = (_end_of_range(word.strip(), count, known) for word in (first, last))
    if first.strip() and start is None:
        start = index_of_one(first)
    if last.strip() and stop is None:
        stop = index_of_one(last) + 1
    return range_of(name, (start, stop), count)


def _end_of_range(text: str, count: int, labels: Sequence[str]) -> int | None:
    """Return the index that ends a range; None for a label, even one that is a number."""
    index = whole_number(text)
    if index is not None and text in labels and not 0 <= index <= count:
        return None
    return index


def advise_on_order(
    name: str, labels: Sequence[str] | None, other: str, known: Sequence[str] | None
) -> None:
    """Warn where two files, ``name`` and ``other``, hold the same labels in another order."""
    pairs = [*zip(labels or (), known or (), strict=False)]
    at = next((i for i, (label, right) in enumerate(pairs) if label != right), None)
    if at is None or sorted(labels or ()) != sorted(known or ()):
        return
    label, right = map(quoted, pairs[at])
    warn(
        f"{name}: label {at} is {label}, but in {other} {right}: rows and columns belong together "
        "by their place, not by their label. Bring them in one order"
    )
