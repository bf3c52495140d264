"""Options that several commands share: each group is one dataclass, written once.

A command names the groups it takes as parameters; `grouped` spreads their fields
into the signature that Typer reads, and puts the dataclasses together again for the
call. The help shows the options under the headings that they name.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer.core

__all__ = ["GroupedCommand", "ReaderGoneError", "grouped"]


class ReaderGoneError(Exception):
    """The reader of stdout went away."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each dataclass parameter spread into its fields."""
    groups: dict[str, type[Any]] = {}
    spread: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[parameter.name] = kind
            spread.extend(_parameters(kind))
        else:
            spread.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        together = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        try:
            command(**together, **values)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError as error:
            # Typer would turn it into exit code 1.
            raise ReaderGoneError from error

    call.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]
    call.__annotations__ = {}
    del call.__wrapped__
    return call


def _parameters(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=field.default,
        )
        for field in fields(kind)
    ]


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help lists the options under their headings, in their order."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, heading by heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = getattr(parameter, "rich_help_panel", None) or "Other"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
