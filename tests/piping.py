"""Bytes in a pipe for a run of the program in this process."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["piped"]


@contextmanager
def piped(data: bytes) -> Iterator[None]:
    """Let standard input be a pipe with these bytes; they have to fit into one."""
    theirs, ours = os.pipe()
    os.write(ours, data)
    os.close(ours)
    usual = os.dup(0)
    os.dup2(theirs, 0)
    os.close(theirs)
    try:
        with open(0, closefd=False) as stream, mock.patch.object(sys, "stdin", stream):
            yield
    finally:
        os.dup2(usual, 0)
        os.close(usual)
