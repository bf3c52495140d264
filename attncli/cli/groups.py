"""Options that several commands share: each group is one dataclass, written once.

A command names the groups it takes as parameters, its own before those that others share;
`grouped` spreads their fields into the signature that Typer reads, and puts the dataclasses
together again for the call. The help shows the options in this order, under the headings that
they name.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer.core

from attncli.cli.options import RUN
from attncli.errors import UsageError

__all__ = ["GroupedCommand", "ReaderGoneError", "grouped"]


# What serves where an option is given twice.
_ONCE = {
    "--mask": "combine them in one file, or give padding with --key-padding-mask: a key is seen if "
    "every rule allows it",
    "--bias": "add them up in one file",
    "--head": "give several heads with commas: --head 0,3",
    "--batch": "give several batch entries with commas: --batch 0,3",
}
_NUMBERS = {"float", "int", "integer"}  # as versions of Typer call them


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
    """A command whose help lists the options under their headings, in their order.

    Its numbers are those of all text formats, which Python's own may go beyond.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if parameter.type.name.partition(" ")[0] in _NUMBERS:
                parameter.type = _strict(parameter.type)

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that refuses options given twice, of which one would be lost."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            values, left, order = parse(args)
            _refuse_repeated(order)
            return values, left, order

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, heading by heading; the files come first."""
        sections: dict[str, list[tuple[str, str]]] = {}
        files_first = sorted(self.get_params(ctx), key=lambda one: one.param_type_name == "option")
        for parameter in files_first:
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = getattr(parameter, "rich_help_panel", None) or "Other"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _refuse_repeated(order: list[Any]) -> None:
    """Refuse an option that came twice; of how the program runs, the last one serves."""
    counts = Counter(option.name for option in order)
    for option in order:
        single = option.param_type_name == "option" and not (option.multiple or option.is_flag)
        if single and counts[option.name] > 1 and option.rich_help_panel != RUN:
            name = max(option.opts, key=len)
            # explain and check take one head.
            several = option.type.name.partition(" ")[0] not in _NUMBERS
            raise UsageError(f"{name} is given twice", hint=_ONCE.get(name) if several else None)


def _strict(kind: Any) -> Any:
    """Return a type of numbers that takes no underscores and no digits of other scripts."""
    of_python = kind.convert

    def convert(value: Any, param: Any, ctx: Any) -> Any:
        # Imports NumPy, which the help does without.
        from attncli.loading.number import NumberOverflowError, is_numeric, parse_number

        if isinstance(value, str):
            try:
                known = parse_number(value) is not None or not is_numeric(value)
            except NumberOverflowError as error:
                strict.fail(str(error), param, ctx)
            if not known:
                strict.fail(f"{value!r} is not a valid {kind.name}.", param, ctx)
        return of_python(value, param, ctx)

    strict = copy.copy(kind)  # the library's own serves other options, too
    strict.convert = convert
    return strict
