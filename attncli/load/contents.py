"""What a file turns out to hold: one array, or a mapping of named entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

__all__ = ["Contents", "LoadedArray", "LoadedMapping"]


@dataclass(frozen=True, eq=False)
class LoadedArray:
    """One array and where it came from.

    Attributes
    ----------
    values : ndarray
        Real numbers or booleans, as stored; text formats give float64.
    name : str
        How errors name it: ``q.csv``, ``dump.npz#q``, ``standard input``.
    row_labels, column_labels : tuple of str or None
        The label column and the header row of a CSV or TSV that has them.
    """

    values: npt.NDArray[Any]
    name: str
    row_labels: tuple[str, ...] | None = None
    column_labels: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class LoadedMapping:
    """Named entries and where they came from.

    Attributes
    ----------
    entries : mapping of str to object
        A `LoadedArray` where the file holds numbers in nested lists or an array
        member; otherwise what the file says: bool, int, float, str, None, or a
        list of str (labels). Members of NPZ and safetensors are read when asked for.
    name : str
        How errors name the file.
    folder : str
        The folder that relative file names in it are relative to.
    """

    entries: Mapping[str, object]
    name: str
    folder: str = "."


Contents = LoadedArray | LoadedMapping
