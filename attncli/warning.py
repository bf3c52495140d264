"""Warnings that name the user's line, not one of ours."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from attncli.errors import AttnWarning

__all__ = ["warn"]

_PACKAGE = str(Path(__file__).parent) + os.sep


def warn(message: str) -> None:
    """Issue an `AttnWarning` at the line outside attncli that asked."""
    level, frame = 2, sys._getframe(1)  # noqa: SLF001 - inspect imports 20 ms of modules
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, AttnWarning, stacklevel=level)
