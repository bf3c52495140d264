"""The attention calculator: weights and context for these queries, keys and values.

>>> import attncli
>>> attncli.attention([[1.0, 0.0]], [[1.0, 0.0]], [[2.0, 3.0]]).context
array([[2., 3.]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncli.api import attention, solve
    from attncli.api.gradients import Gradients, gradients
    from attncli.capture.recorder import capture
    from attncli.engine.merging import merge
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
    from attncli.gather import load
    from attncli.problem.posing import pose
    from attncli.problem.problem import Problem
    from attncli.problem.projection import Projected, project
    from attncli.problem.result import Attention
    from attncli.referee import CheckReport, check
    from attncli.referee.asserting import assert_attention
    from attncli.view.page.inline import view

# Read by the build.
__version__ = "0.2.0"
# As in ``[project.urls]``: reading the installed metadata would add 20 ms to every help.
DOCUMENTATION = "https://attncli.github.io/attncli"
ISSUES = "https://github.com/attncli/attncli/issues"

__all__ = [
    "Attention",
    "AttnError",
    "AttnWarning",
    "CheckReport",
    "DataError",
    "Explanation",
    "Gradients",
    "InputError",
    "OutputError",
    "Problem",
    "Projected",
    "ShapeError",
    "UsageError",
    "__version__",
    "assert_attention",
    "attention",
    "capture",
    "check",
    "explain",
    "gradients",
    "load",
    "merge",
    "pose",
    "project",
    "solve",
    "view",
]

# Handed out when asked for, so that `attncli --help` need not import NumPy.
_HOMES = {
    "attention": "api",
    "Gradients": "api.gradients",
    "gradients": "api.gradients",
    "capture": "capture.recorder",
    "merge": "engine.merging",
    "load": "gather",
    "check": "referee",
    "assert_attention": "referee.asserting",
    "CheckReport": "referee.report",
    "explain": "explanation.explaining",
    "Explanation": "explanation.data",
    "pose": "problem.posing",
    "Problem": "problem.problem",
    "Projected": "problem.projection",
    "project": "problem.projection",
    "Attention": "problem.result",
    "solve": "api",
    "view": "view.page.inline",
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
