"""The attention calculator: weights and context for these queries, keys and values.

>>> import attncli
>>> attncli.attention([[1.0, 0.0]], [[1.0, 0.0]], [[2.0, 3.0]]).context
array([[2., 3.]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli._version import __version__

if TYPE_CHECKING:
    from attncli.api import attention
    from attncli.capture.recorder import capture
    from attncli.errors import (
        AttnError,
        AttnWarning,
        DataError,
        InputError,
        OutputError,
        ShapeError,
        UsageError,
    )
    from attncli.explanation.data import Explanation
    from attncli.explanation.explaining import explain
    from attncli.loaded import load
    from attncli.posing import pose
    from attncli.problem import Problem
    from attncli.projection import Projected, project
    from attncli.referee import CheckReport, check
    from attncli.result import Attention
    from attncli.solving import solve

__all__ = [
    "Attention",
    "AttnError",
    "AttnWarning",
    "CheckReport",
    "DataError",
    "Explanation",
    "InputError",
    "OutputError",
    "Problem",
    "Projected",
    "ShapeError",
    "UsageError",
    "__version__",
    "attention",
    "capture",
    "check",
    "explain",
    "load",
    "pose",
    "project",
    "solve",
]

# Handed out when asked for, so that `attncli --help` need not import NumPy.
_HOMES = {
    "attention": "api",
    "capture": "capture.recorder",
    "load": "loaded",
    "check": "referee",
    "CheckReport": "referee.report",
    "explain": "explanation.explaining",
    "Explanation": "explanation.data",
    "pose": "posing",
    "Problem": "problem",
    "Projected": "projection",
    "project": "projection",
    "Attention": "result",
    "solve": "solving",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    thing = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)
