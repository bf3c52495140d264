"""Record the attention calls of running PyTorch code as problem files.

``attncli.capture("dumps/")`` is the door. PyTorch is imported here and nowhere else in attncli.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package itself, callable: importing a submodule binds its name to the package."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from attncli.capture.recorder import capture  # noqa: PLC0415

        return capture(*args, **options)


sys.modules[__name__].__class__ = _Callable
