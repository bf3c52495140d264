"""Which module of a model is running, in each thread, and what it is called."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.nn.modules import module as hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class _Stack(threading.local):
    def __init__(self) -> None:
        self.modules: list[torch.nn.Module] = []


_STACK = _Stack()


@contextmanager
def watched_modules() -> Iterator[None]:
    """Follow the modules that run, of every model and in every thread."""
    before = hooks.register_module_forward_pre_hook(_enter)
    after = hooks.register_module_forward_hook(_leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def running() -> torch.nn.Module | None:
    """Return the innermost module that runs in this thread."""
    return _STACK.modules[-1] if _STACK.modules else None


def name_of(module: torch.nn.Module) -> str:
    """Return the name of a module in the outermost one that runs, such as ``layers.3.attn``."""
    root = _STACK.modules[0] if _STACK.modules else module
    return next((name for name, each in root.named_modules() if each is module), "")


def _enter(module: torch.nn.Module, _: Any) -> None:
    _STACK.modules.append(module)


def _leave(module: torch.nn.Module, *_: Any) -> None:
    # A block may begin while a module runs: that one was never entered here.
    if module in _STACK.modules:
        while _STACK.modules.pop() is not module:
            pass
