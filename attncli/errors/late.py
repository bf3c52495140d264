"""Functions that are imported when they are called: one run reads and writes few formats."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def late(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module that is imported with the first call."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module), name)(*arguments)

    return call
