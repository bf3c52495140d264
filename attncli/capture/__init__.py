"""Record the attention calls of running PyTorch code as problem files.

Users call ``attncli.capture("dumps/")``. Only this package and the reader of ``.pt`` files import
PyTorch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package as a function, because an import binds the name `attncli.capture` to it."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from attncli.capture.recorder import capture  # noqa: PLC0415

        return capture(*args, **options)


sys.modules[__name__].__class__ = _Callable
