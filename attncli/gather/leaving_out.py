"""Entries of a problem file or configuration that are left out: the same without a rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.gather.entries import KNOWN, full_name, nearest_name
from attncli.loading.contents import LoadedMapping
from attncli.loading.lazy import LazyEntries
from attncli.text import first_few, printable, quoted

if TYPE_CHECKING:
    from attncli.checkpoints.config import LayerConfig
    from attncli.checkpoints.names import Layer
    from attncli.loading.contents import LoadedArray

__all__ = ["entry_names", "leave_out", "leave_out_of_config", "no_problem_file"]

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
    contents: LoadedArray | LoadedMapping, left: frozenset[str], *, configured: bool = False
) -> tuple[LoadedArray | LoadedMapping, frozenset[str]]:
    """Return what a file holds without some entries, and the names that it has no entry of.

    Values that are left out are not read.

    Parameters
    ----------
    contents : LoadedArray or LoadedMapping
    left : frozenset of str
        Long names of entries.
    configured : bool
        Whether a configuration is read, too, which may say what the file does not.

    Raises
    ------
    UsageError
        It has no such entry, or is a single array.
    """
    if not left:
        return contents, left
    if not isinstance(contents, LoadedMapping):
        if configured:
            return contents, left
        raise no_problem_file(f"{contents.name} is a single array")
    names = {name: full_name(name) for name in contents.entries}
    unmet = left - set(names.values())
    if unmet and not (configured or "config" in names.keys() - left):
        # Rules first: beside them a file may hold a thousand outputs.
        held = sorted(names, key=lambda name: names[name] not in KNOWN)
        raise _missing(unmet, held, f"{contents.name} has no entry", "it has")
    kept = (name for name, full in names.items() if full not in left)
    entries = LazyEntries(kept, contents.entries.__getitem__)
    return LoadedMapping(entries, contents.name, contents.folder, contents.dump), unmet


def leave_out_of_config(
    config: LayerConfig, layer: Layer, left: frozenset[str], unmet: frozenset[str], file: str
) -> tuple[LayerConfig, Layer]:
    """Return what a configuration says, and its layer, without some options and norms.

    Parameters
    ----------
    config : LayerConfig
    layer : Layer
    left : frozenset of str
        Names of options.
    unmet : frozenset of str
        Those of them that no problem file had.
    file : str
        How errors name the configuration.

    Raises
    ------
    UsageError
        It says nothing of one that no problem file had.
    """
    held = [*config.options, *({} if config.norm is None else layer.norms)]
    if unmet.difference(held):
        raise _missing(unmet.difference(held), held, f"{file} says nothing of", "it says")
    kept = {name: value for name, value in config.options.items() if name not in left}
    applied = {name: member for name, member in layer.norms.items() if name not in left}
    return config._replace(options=kept), replace(layer, norms=applied)


def no_problem_file(found: str) -> UsageError:
    """Return the error where there is no problem file that could lose an entry."""
    return UsageError(
        f"without: expected a problem file, whose entries can be left out; {found}",
        hint="leave out the option itself",
    )


def _missing(names: frozenset[str], held: list[str], lacks: str, has: str) -> UsageError:
    missed = min(names)
    meant = None if missed in KNOWN else nearest_name(missed)
    if meant is not None:
        return _no_entry(missed, meant)
    return UsageError(
        f"without: {lacks} {quoted(missed)}",
        hint=f"{has} {first_few([printable(name) for name in held], _LISTED)}",
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
