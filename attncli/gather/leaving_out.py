"""What is left out of a problem file, a configuration or a layer: the same without a rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.gather.entries import KNOWN, full_name, nearest_name
from attncli.loading.contents import LazyEntries, LoadedMapping
from attncli.text import first_few, printable, quoted

if TYPE_CHECKING:
    from attncli.checkpoints.config import LayerConfig
    from attncli.checkpoints.names import Layer
    from attncli.loading.contents import LoadedArray

__all__ = [
    "entry_names",
    "in_no_model",
    "leave_out",
    "leave_out_of_config",
    "leave_out_of_layer",
    "no_problem_file",
]

_LISTED = 16
# Of a layer of a checkpoint.
_OPTIONAL = ("wo", "bo", "sinks")


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
    contents: LoadedArray | LoadedMapping, left: frozenset[str], models: Collection[str] = ()
) -> tuple[LoadedArray | LoadedMapping, frozenset[str]]:
    """Return what a file holds without some entries, and the names that it has no entry of.

    Values that are left out are not read.

    Parameters
    ----------
    contents : LoadedArray or LoadedMapping
    left : frozenset of str
        Long names of entries.
    models : collection of str
        Which of ``checkpoint`` and ``config`` are read, too, and may hold what the file does not.

    Raises
    ------
    UsageError
        It has no such entry, or is a single array.
    """
    if not left:
        return contents, left
    if not isinstance(contents, LoadedMapping):
        if not in_no_model(left, models):
            return contents, left
        raise no_problem_file(f"{contents.name} is a single array")
    names = {name: full_name(name) for name in contents.entries}
    unmet = left - set(names.values())
    if nowhere := in_no_model(unmet, {*models, *names} - left):
        # Rules first: beside them a file may hold a thousand outputs.
        held = sorted(names, key=lambda name: names[name] not in KNOWN)
        raise _missing(nowhere, held, f"{contents.name} has no entry", "it has")
    kept = (name for name, full in names.items() if full not in left)
    entries = LazyEntries(kept, contents.entries.__getitem__)
    return LoadedMapping(entries, contents.name, contents.folder, contents.dump), unmet


def in_no_model(names: frozenset[str], models: Collection[str]) -> frozenset[str]:
    """Return which names neither the layer of a checkpoint nor a configuration may hold.

    Parameters
    ----------
    names : frozenset of str
    models : collection of str
        Which of ``checkpoint`` and ``config`` are read.
    """
    if "config" in models:
        return frozenset()
    return names.difference(_OPTIONAL if "checkpoint" in models else ())


def leave_out_of_layer(
    layer: Layer, left: frozenset[str], unmet: frozenset[str], file: str, *, configured: bool
) -> tuple[Layer, frozenset[str]]:
    """Return a checkpoint's layer without some parts, and the names that are still unmet.

    Without ``wo`` there is no ``bo``, either.

    Parameters
    ----------
    layer : Layer
    left : frozenset of str
        Names of parts: ``wo``, ``bo``, ``sinks``.
    unmet : frozenset of str
        Those of them that no problem file had.
    file : str
        How errors name the checkpoint.
    configured : bool
        Whether a configuration is read, too, which may say what the layer does not hold.

    Raises
    ------
    UsageError
        It has no such part.
    """
    held = [name for name in _OPTIONAL if name in layer.members]
    unmet = unmet.difference(held)
    if unmet and not configured:
        raise _missing(unmet, held, f"{file}: the layer has no optional part", "it has")
    gone = left & {*_OPTIONAL} | ({"bo"} if "wo" in left else set())
    members = {name: member for name, member in layer.members.items() if name not in gone}
    return replace(layer, members=members), unmet


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
        Those of them that neither a problem file nor the layer had.
    file : str
        How errors name the configuration.

    Raises
    ------
    UsageError
        It says nothing of one that is unmet.
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
        hint=f"{has} {first_few([printable(name) for name in held], _LISTED)}" if held else None,
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
