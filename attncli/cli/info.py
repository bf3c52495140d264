"""``attncli info``: what is in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from attncli.cli.groups import GroupedCommand, grouped
from attncli.cli.options import SHOWN
from attncli.cli.terminal import advice, console, is_terminal, piped_in, print_text, say_error
from attncli.errors import AttnError, UsageError
from attncli.text import json_text

if TYPE_CHECKING:
    from attncli.describing import FileInfo

__all__ = ["add_to"]

WRONG = 2


@dataclass(eq=False, repr=False)
class InfoOptions:
    """Which files, and how they are told."""

    files: Annotated[
        list[str] | None,
        Argument(
            metavar="[FILES]...",
            help="Files of numbers, checkpoints, pictures by attncli; - for standard input; "
            "FILE#NAME takes one member.",
            rich_help_panel="Files",
            show_default=False,
        ),
    ] = None
    format: Annotated[Literal["table", "json"], Option("--format", "-f", rich_help_panel=SHOWN)] = (
        "table"
    )
    numbers: Annotated[
        bool,
        Option(
            "--numbers/--no-numbers",
            help="Range and non-finite count: reads the whole file. Without them the headers "
            "of NPY, NPZ and safetensors are enough.",
            rich_help_panel=SHOWN,
        ),
    ] = True
    dtype: Annotated[
        Literal["bfloat16"] | None,
        Option(help="Read 2-byte elements of NPY files as bfloat16.", rich_help_panel=SHOWN),
    ] = None
    color: Annotated[
        Literal["auto", "always", "never"],
        Option(help="NO_COLOR is respected.", rich_help_panel=SHOWN),
    ] = "auto"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("info", cls=GroupedCommand)(grouped(info))


def info(options: InfoOptions) -> None:
    """Tell shape, dtype, range and members of files.

    For a checkpoint also its attention layers, each with what to give to --checkpoint;
    for a picture that attncli drew, how it was made.

    attncli info model.safetensors
    """
    files = options.files or (["-"] if piped_in() else [])
    if not files:
        raise UsageError("info needs a file", hint="attncli info model.safetensors")
    if files.count("-") > 1:
        raise UsageError("standard input (-) can be read once only")
    with advice(quiet=False):
        found, errors = _inspected(files, options)
    if options.format == "json":
        _print_json(found)
    else:
        _print_tables(found, options.color)
    for error in errors:
        say_error(error)
    if errors:
        raise typer.Exit(WRONG)


def _inspected(files: list[str], options: InfoOptions) -> tuple[list[FileInfo], list[AttnError]]:
    """Return what the good files hold; one bad file does not hide the others."""
    from attncli.describing import inspect  # noqa: PLC0415

    found, errors = [], []
    for file in files:
        try:
            found.append(inspect(file, numbers=options.numbers, dtype=options.dtype))
        except AttnError as error:
            errors.append(error)
    return found, errors


def _print_json(found: list[FileInfo]) -> None:
    from attncli.view.info import info_dict  # noqa: PLC0415

    print_text(json_text({"schema": 1, "files": [info_dict(each) for each in found]}))


def _print_tables(found: list[FileInfo], color: str) -> None:
    from attncli.view.info import info_parts  # noqa: PLC0415

    screen = console(color)
    for each in found:
        for part in info_parts(each, width=screen.width if is_terminal() else None):
            screen.print(part)
