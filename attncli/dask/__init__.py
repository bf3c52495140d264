"""Attention of Dask arrays: lazy, block by block, on one machine or many.

Dask schedules, retries and moves the data; attncli computes the blocks. This package needs the
extra ``attncli[dask]``.
"""

from __future__ import annotations

from attncli.dask.arrays import attention
from attncli.dask.checking import check

__all__ = ["attention", "check"]
