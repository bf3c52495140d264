"""Entries of a dump that no problem has: outputs, or rules under the names of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.dtypes import readable
from attncli.elsewhere import option_of
from attncli.errors import InputError, UsageError
from attncli.gather.entries import OF_FILES, nearest_name, serves_for, unknown_entry
from attncli.loading.contents import LoadedArray
from attncli.loading.source import is_file
from attncli.text import printable
from attncli.warning import warn

if TYPE_CHECKING:
    from attncli.elsewhere import Here
    from attncli.loading.contents import LoadedMapping

__all__ = ["is_single", "pass_over"]

# Beside query and key stand outputs of any name; only what is nearly an option is told.
_ALIKE = 0.8


def pass_over(name: str, document: LoadedMapping) -> None:
    """Leave out what a program wrote beside the inputs: an output perhaps, or a loss."""
    try:
        value = _alone(document.entries[name])
    except InputError:  # of elements that are not read: no concern of this problem
        value = []
    single = is_single(value)
    meant = nearest_name(name, likeness=_ALIKE, arrays=not single)
    if meant is None:
        if "mask" in name.lower():
            warn(
                f"{document.name}: the entry {printable(name)!r} is ignored; the entries that hide "
                "keys are mask and key_padding_mask"
            )
        return
    here = serves_for(name)
    idle = _idle(value, here)
    if idle is None:
        if here is not None and here.rule:
            raise _another_name(name, document, here, value)
        if single and (here is None or here.name):
            raise unknown_entry(name, document)
    elif here is not None and (here.name or here.rule):
        meant = f"{idle} changes nothing here"
    warn(f"{document.name}: the entry {printable(name)!r} is ignored; {meant}")


def _idle(value: object, here: Here | None) -> str | None:
    """Return what a value that changes nothing is called; None where it may change something."""
    if value is None or value is False:
        return "null or false"
    if here is None or not isinstance(value, (LoadedArray, int, float)):
        return None
    numbers = readable(value.values) if isinstance(value, LoadedArray) else np.asarray(value)
    if numbers.size == 0:
        return "an empty array"
    return next((f"{number:g}" for number in here.idle if (numbers == number).all()), None)


def _are_added(value: object) -> bool:
    """Return whether the numbers of a mask are added to scores: none of them says true."""
    if not isinstance(value, LoadedArray) or value.values.dtype.kind in "bui":
        return False
    numbers = readable(value.values)
    return numbers.size > 0 and bool((numbers <= 0).all())


def _alone(value: object) -> object:
    """Return the number or truth value of an array that holds one, and anything else as it is."""
    if isinstance(value, LoadedArray) and value.values.size == 1:
        return value.values.item() if value.values.dtype.kind in "biuf" else value
    return value


def is_single(value: object) -> bool:
    """Return whether a value is one number, truth value or word."""
    return not isinstance(_alone(value), (LoadedArray, list))


def _another_name(name: str, document: LoadedMapping, here: Here, value: object) -> UsageError:
    """Return the error for a rule that a program wrote under the name of another library."""
    shown, taken = printable(name), ""
    option = "bias" if here.name == "mask" and _are_added(value) else here.name
    if is_single(value) and here.name:
        taken = f" give {here.switch or option_of(here.name)}, and"
    elif is_file(document.name) and here.same and option in OF_FILES:
        taken = f" {option_of(option)} {document.name}#{shown} takes it, and"
    return UsageError(
        unknown_entry(name, document).message,
        hint=f"{here.hint()};{taken} --without {shown} leaves it out",
    )
