"""Lists of functions with their arguments, so that little Python runs between products.

A tile displaces the interpreter's code and objects from the processor's cache, so the first
microseconds of Python after each product take many times as long as elsewhere, and other threads
wait for the interpreter's lock meanwhile. What some tiles need is therefore worked out before the
first of them, and only a loop over calls is left between products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

__all__ = ["Call", "carry_out"]

Call = tuple[Callable[..., object], tuple[Any, ...]]
# Calls that are known at a time: those of some eighty tiles, in 50 KB or more.
_AHEAD = 512


def carry_out(calls: Iterable[Call]) -> None:
    """Make calls, each a function and its arguments, after the next hundreds of them are known."""
    remaining = iter(calls)
    while ahead := list(islice(remaining, _AHEAD)):
        for function, arguments in ahead:
            function(*arguments)
