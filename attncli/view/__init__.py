"""How a result is shown: tables, text, pictures in the terminal and in files.

``attncli.view(problem)`` shows the page of `attncli.view.page` in a notebook.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package itself, callable: importing one of its modules would hide a function `view`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from attncli.view.page.inline import view  # noqa: PLC0415

        return view(*args, **options)


sys.modules[__name__].__class__ = _Callable
