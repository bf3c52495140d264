"""Labels of queries and keys: which one a user names, and whether two files agree on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncli.errors import UsageError
from attncli.text import did_you_mean, first_few, label_text, quoted, whole_number
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["advise_on_order", "named_index"]

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
    """Return the index of a query or a key that a user named by its index or its label.

    Parameters
    ----------
    name : str
        What is given, as an error should say it.
    text : str
        A whole number within range, counted from 0, is an index, and a negative one counts from
        the end unless it is a label; anything else is a label.
    count : int
    labels : sequence of str or None
    of : {"query", "key"}
    also : str
        What else could have been given, with a comma behind it.

    Raises
    ------
    UsageError
        There is none, or several have this label.

    Warns
    -----
    AttnWarning
        Another one has this index for its label.
    """
    labels = labels or ()
    found = _labelled(text, labels)
    index = whole_number(text)
    if index is not None and 0 <= index < count:
        if found and index not in found:
            warn(
                f"{of} {index} is the one of this index, counted from 0; the label {quoted(text)} "
                f"is that of {of} {found[0]}"
            )
        return index
    if len(found) == 1:
        return found[0]
    if index is not None and not found and -count <= index < 0:
        return index + count
    if found:
        places = first_few([str(index) for index in found])
        raise UsageError(
            f"{name}: {quoted(text)} is the label of {len(found)} {_PLURAL[of]}: {places}",
            hint="name one by its index, or as "
            + quoted(f"{_shown(labels[found[0]])} ({found[0]})"),
        )
    known = f" or one of the labels ({', '.join(map(quoted, labels[:8]))}" if labels else ""
    known += (", …)" if len(labels) > 8 else ")") if labels else ""
    indices = f"{'or ' if also and not labels else ''}an index from {-count} to {count - 1}"
    several = "," in text and also
    raise UsageError(
        f"{name}: expected {also}{indices}{known}; found {quoted(text)}",
        hint="rows and columns lie side by side: give the first and the last, as in a:b"
        if several
        else did_you_mean(text, labels),
    )


def advise_on_order(
    name: str, labels: Sequence[str] | None, other: str, known: Sequence[str] | None
) -> None:
    """Warn where two files hold the same labels in another order.

    Parameters
    ----------
    name, other : str
        The files.
    labels, known : sequence of str or None
        What they hold.

    Warns
    -----
    AttnWarning
        With the first place where they differ.
    """
    pairs = [*zip(labels or (), known or (), strict=False)]
    at = next((i for i, (label, right) in enumerate(pairs) if label != right), None)
    if at is None or sorted(labels or ()) != sorted(known or ()):
        return
    label, right = map(quoted, pairs[at])
    warn(
        f"{name}: label {at} is {label}, but in {other} {right}: rows and columns belong together "
        "by their place, not by their label. Bring them in one order"
    )


def _labelled(text: str, labels: Sequence[str]) -> list[int]:
    """Return the places of a label, or the one of a label with its index: ``the (4)``.

    A label without anything to be seen may be named by the signs that tables have for it.
    """
    found = [index for index, label in enumerate(labels) if label == text]
    if not found:
        found = [index for index, label in enumerate(labels) if _shown(label) == text]
    label, opening, rest = text.rpartition(" (")
    index = whole_number(rest[:-1]) if opening and rest.endswith(")") else None
    if not found and index is not None and 0 <= index < len(labels):
        found = [index] if label in (labels[index], _shown(labels[index])) else []
    return found


def _shown(label: str) -> str:
    """Return what stands for a label in tables, if nothing of it could be seen; else the label."""
    return label if label.strip(" ") else label_text(label)
