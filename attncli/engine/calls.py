"""Calls that are written down first and carried out afterwards.

A tile displaces the interpreter's code and objects from the processor's cache, so the first
microseconds of Python after each product take many times as long as elsewhere, and other threads
wait for the interpreter's lock meanwhile. What a block needs is therefore worked out before its
first tile, and only a loop over calls is left between products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Call", "carry_out"]

Call = tuple[Callable[..., object], tuple[Any, ...]]


def carry_out(calls: Iterable[Call]) -> None:
    """Make some calls, each a function and its arguments, once all of them are known."""
    for function, arguments in list(calls):
        function(*arguments)
