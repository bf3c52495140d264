"""``attncli info``: what is in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from attncli.cli.ending import WRONG
from attncli.cli.options import SHOWN, Bfloat16, Color, Quiet
from attncli.cli.terminal import (
    advice,
    console,
    is_terminal,
    piped_in,
    print_document,
    say_error,
    shows_unicode,
)
from attncli.errors import AttnError, UsageError
from attncli.names import SCHEMA
from attncli.text import json_text

if TYPE_CHECKING:
    from attncli.describing.files import FileInfo

__all__ = ["info"]


@dataclass(eq=False, repr=False)
class InfoOptions:
    """Which files, and how they are told."""

    files: Annotated[
        list[str] | None,
        Argument(
            metavar="[FILES]...",
            help="Files of numbers, checkpoints, pictures by attncli. - is standard input, "
            "FILE#NAME one member of a file. Default: what is piped in.",
            rich_help_panel="Files",
            show_default=False,
        ),
    ] = None
    format: Annotated[
        Literal["table", "json"],
        Option("--format", "-f", help="json is for scripts.", rich_help_panel=SHOWN),
    ] = "table"
    numbers: Annotated[
        bool,
        Option(
            "--numbers/--no-numbers",
            help="Show the range and the non-finite numbers. This reads the whole file; without "
            "it, the headers of NPY, NPZ and safetensors are enough.",
            rich_help_panel=SHOWN,
        ),
    ] = True
    dtype: Bfloat16 = None
    quiet: Quiet = False
    color: Color = "auto"


def info(options: InfoOptions) -> None:
    """Show shape, dtype, range and members of files.

    It also lists the attention layers of a checkpoint, each with the --checkpoint argument to
    give, and the options that a picture by attncli was drawn with.

    Example: attncli info model.safetensors

    Example: attncli info layer.npz q.csv weights.png
    """
    from attncli.loading import refuse_two_streams

    files = options.files or (["-"] if piped_in() else [])
    if not files:
        raise UsageError("info needs a file", hint="attncli info model.safetensors")
    refuse_two_streams(files)
    with advice(quiet=options.quiet):
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
    from attncli.describing.files import inspect

    found, errors = [], []
    for file in files:
        try:
            found.append(inspect(file, numbers=options.numbers, dtype=options.dtype))
        except AttnError as error:
            errors.append(error)
    return found, errors


def _print_json(found: list[FileInfo]) -> None:
    from attncli.view.info import info_dict

    print_document(json_text({"schema": SCHEMA, "files": [info_dict(each) for each in found]}))


def _print_tables(found: list[FileInfo], color: str) -> None:
    from attncli.view.info import info_parts

    screen = console(color)
    for each in found:
        width = screen.width if is_terminal() else None
        for part in info_parts(each, width=width, unicode=shows_unicode()):
            screen.print(part)
