"""Attention of Dask arrays: lazy, block by block, on one machine or many.

Dask schedules, retries and moves the data; attncli computes the blocks. This package needs the
extra ``attncli[dask]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncli.dask.arrays import attention
    from attncli.dask.checking import check

__all__ = ["attention", "check"]

_HOMES = {"attention": "arrays", "check": "checking"}


def __getattr__(name: str) -> object:
    # Workers need neither: `dask.array` takes a second to import.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
