"""Entries of a problem file that are left out: the same problem without a rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.gather.entries import KNOWN, full_name, nearest_name
from attncli.loading.contents import LoadedMapping
from attncli.loading.lazy import LazyEntries
from attncli.text import first_few, printable, quoted

if TYPE_CHECKING:
    from attncli.loading.contents import LoadedArray

__all__ = ["entry_names", "leave_out", "no_problem_file"]

_LISTED = 16


def entry_names(without: object) -> frozenset[str]:
    """Return the long names of entries, of their list or of text with commas.

    Raises
    ------
    UsageError
        One is no name.
    """
    if without is None:
        return frozenset()
    names = without.split(",") if isinstance(without, str) else without
    try:
        each = [*names] if isinstance(names, Iterable) else None
    except TypeError:  # an array without axes
        each = None
    if each is None:
        raise _no_entry(names)
    return frozenset(map(_long, each))


def leave_out(
    contents: LoadedArray | LoadedMapping, left: frozenset[str]
) -> LoadedArray | LoadedMapping:
    """Return what a file holds without some entries, whose values are not read.

    Parameters
    ----------
    contents : LoadedArray or LoadedMapping
    left : frozenset of str
        Long names of entries.

    Raises
    ------
    UsageError
        It has no such entry, or is a single array.
    """
    if not left:
        return contents
    if not isinstance(contents, LoadedMapping):
        raise no_problem_file(f"{contents.name} is a single array")
    names = {name: full_name(name) for name in contents.entries}
    missing = left - set(names.values())
    if missing:
        # Rules first: beside them a file may hold a thousand outputs.
        held = sorted(names, key=lambda name: names[name] not in KNOWN)
        missed = min(missing)
        meant = None if missed in KNOWN else nearest_name(missed)
        if meant is not None:
            raise _no_entry(missed, meant)
        raise UsageError(
            f"without: {contents.name} has no entry {quoted(missed)}",
            hint=f"it has {first_few([printable(name) for name in held], _LISTED)}",
        )
    kept = (name for name, full in names.items() if full not in left)
    entries = LazyEntries(kept, contents.entries.__getitem__)
    return LoadedMapping(entries, contents.name, contents.folder, contents.dump)


def no_problem_file(found: str) -> UsageError:
    """Return the error where there is no problem file that could lose an entry."""
    return UsageError(
        f"without: expected a problem file, whose entries can be left out; {found}",
        hint="leave out the option itself",
    )


def _long(name: object) -> str:
    full = full_name(name.strip()) if isinstance(name, str) else ""
    if not full:
        raise _no_entry(name)
    return full


def _no_entry(name: object, hint: str | None = None) -> UsageError:
    return UsageError(
        f"without: expected names of entries, as in causal,mask; found {quoted(str(name))}",
        hint=hint,
    )
