"""The tree of errors; the modules beside it hold the words and names that all packages share.

::

    AttnError (ValueError)          anything a user can mend
    ├── UsageError                  options that are unknown, out of range or contradict each other
    │   └── UnknownArgumentError    the name of an argument (TypeError, too)
    ├── InputError                  a file that cannot be read as what it should be
    ├── ShapeError                  arrays whose shapes do not fit together
    ├── DataError                   values that are not allowed where they stand
    └── OutputError                 a result that cannot be written where it should go

    AttnWarning (UserWarning)       a result that is right but probably not what was meant

Every error is one sentence that says what is wrong, where, what was expected
and what was found; ``hint`` is a second sentence that says how to mend it.
"""

from __future__ import annotations

import sys
import warnings

__all__ = [
    "AttnError",
    "AttnWarning",
    "DataError",
    "InputError",
    "OutputError",
    "ShapeError",
    "UnknownArgumentError",
    "UsageError",
    "warn",
]

# The folder of the package, with the separator behind it.
_PACKAGE = __file__.rpartition("errors")[0]


class AttnError(ValueError):
    """Base of all errors that attncli raises on purpose.

    Parameters
    ----------
    message : str
        What is wrong, where, what was expected and what was found.
    hint : str, optional
        How to mend it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} (hint: {self.hint})"


class UsageError(AttnError):
    """Options that are unknown, out of range or contradict each other."""


class UnknownArgumentError(UsageError, TypeError):
    """A function has no such argument; like any such error in Python it is a `TypeError`."""


class InputError(AttnError):
    """A file that cannot be read as what it should be."""


class ShapeError(AttnError):
    """Arrays whose shapes do not fit together."""


class DataError(AttnError):
    """Values that are not allowed where they stand."""


class OutputError(AttnError):
    """A result that cannot be written where it should go."""


class AttnWarning(UserWarning):
    """A result that is right but probably not what was meant."""


def warn(message: str) -> None:
    """Issue an `AttnWarning` at the line outside attncli that made the call."""
    level, frame = 2, sys._getframe(1)  # noqa: SLF001 - inspect imports 20 ms of modules
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, AttnWarning, stacklevel=level)
