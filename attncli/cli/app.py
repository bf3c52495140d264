"""The program: its commands, and what it says of itself."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from attncli._version import __version__
from attncli.cli.groups import GroupedCommand, grouped
from attncli.cli.terminal import print_text

__all__ = ["COMMANDS", "build"]

COMMANDS = ("compute", "heatmap", "explain", "check", "info")


def build(argv: list[str]) -> typer.Typer:
    """Return the program with the command that is called, or with all of them.

    Reading the options of a command that nobody calls would take as long as computing a
    small problem.
    """
    app = typer.Typer(
        # Rich help and tracebacks import 100 ms of modules.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_program)
    called = [name for name in COMMANDS if argv[:1] == [name]]
    for name in called or COMMANDS:
        command = getattr(import_module(f"attncli.cli.{name}"), name)
        app.command(name, cls=GroupedCommand)(grouped(command))
    return app


def _version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it with the value
    if wanted:
        print_text(f"attncli {__version__}")
        raise typer.Exit


def _program(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001, FBT002 - Typer's callback handles it
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Calculate attention: weights and context for these queries, keys and values.

    attncli compute q.csv k.csv v.csv prints them as tables; attncli heatmap q.csv k.csv
    --out weights.png draws the weights. Without files, both show a built-in example.

    attncli COMMAND --help shows the options of a command.
    """
    if context.invoked_subcommand is None:
        print_text(context.get_help())
