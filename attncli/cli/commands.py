"""The program and its commands: their options, their help, and wrong command lines."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

from attncli import DOCUMENTATION, ISSUES, __version__
from attncli.cli.declaring import HEADINGS, RUN, Declared, Options, one_of
from attncli.cli.terminal import print_text
from attncli.errors import UsageError

COMMANDS = ("compute", "heatmap", "explain", "check", "merge", "info", "capture")
_PROJECT = f"\b\nDocumentation: {DOCUMENTATION}\nQuestions and mistakes: {ISSUES}"


def build(argv: list[str]) -> typer.Typer:
    """Return the program with the command that is called; building all commands takes long."""
    app = typer.Typer(
        # Importing Rich for help and tracebacks takes 100 ms.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        epilog=_PROJECT,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_program)
    called = [name for name in COMMANDS if argv[:1] == [name]]
    for name in called or COMMANDS:
        command = getattr(import_module(f"attncli.cli.{name}"), name)
        settings = {"help_option_names": ["--help"]}
        add = app.command(name, cls=Command, epilog=_PROJECT, context_settings=settings)
        add(with_options(command))
    app.command("help")(_help)
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

    attncli COMMAND -h shows the most used options of a command, attncli help COMMAND all.
    """
    if context.invoked_subcommand is None:
        print_text(context.get_help())


def _help(
    _: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", autocompletion=one_of(*COMMANDS))
    ] = None,
) -> None:
    """Show all options of a command: help COMMAND."""  # `main` calls COMMAND --help instead


def _brief(context: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - as `_version`
    if wanted and isinstance(context.command, Command):
        print_text(context.command.brief_help(context))
        raise typer.Exit


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer takes it: one parameter for each option, and ``-h``."""
    kind: type[Options] = get_type_hints(command)["options"]
    hints = {**get_type_hints(kind), "brief": bool}

    def call(brief: bool = False, **values: Any) -> None:  # noqa: ARG001, FBT001, FBT002
        command(kind(**values))

    told = typer.Option("-h", callback=_brief, is_eager=True, help="Show the most used options.")
    parameters = []
    for name, one in {"brief": Declared(False, told), **kind.declared()}.items():  # noqa: FBT003
        # Typer keeps an option's first name as its default until it sees the annotation.
        named = one.told.default is not ...
        if hints[name] is bool and not named:  # no --no-causal beside --causal
            one.told.param_decls = (f"--{name.replace('_', '-')}",)
        annotation: Any = Annotated[hints[name], one.told]
        parameter = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=one.default
        )
        parameters.append(parameter)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__, call.__doc__ = {}, command.__doc__
    return call


class Command(typer.core.TyperCommand):
    """A command whose help lists the options under their headings, the most used ones first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read a command line; refuse an option given twice if one value would be lost."""
        args = _with_usual_values(args)
        _refuse_repeated(self.make_parser(ctx).parse_args([*args])[2])
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any, *, headings: Any = HEADINGS) -> None:
        """Write the options, heading by heading."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in headings}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            heading = getattr(parameter, "rich_help_panel", None) or HEADINGS[-1]
            if record is not None and heading in sections:
                sections[heading].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def brief_help(self, ctx: Any) -> str:
        """Return the help that fits a terminal: files, most used options and examples."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        told = (self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(told[0])
        self.format_options(ctx, formatter, headings=HEADINGS[:2])
        with formatter.section("Examples"):
            for text in told:
                if text.strip().startswith("Example: "):
                    formatter.write_text(" ".join(text.split()).removeprefix("Example: "))
        with formatter.section("More"):
            formatter.write_text(f"All options: {ctx.command_path} --help\n")
            for line in _PROJECT.splitlines()[1:]:
                formatter.write_text(line)
        return str(formatter.getvalue()).rstrip("\n")


def _with_usual_values(args: list[str]) -> list[str]:
    """Return the words of a command line with ``--rollout half`` for ``--rollout`` alone."""
    bare = [
        word == "--rollout" and args[at + 1 : at + 2] not in (["raw"], ["half"])
        for at, word in enumerate(args)
    ]
    return [f"{word}=half" if alone else word for word, alone in zip(args, bare, strict=True)]


def _refuse_repeated(order: list[Any]) -> None:
    # Options under Running may be repeated: the last one counts.
    counts = Counter(option.name for option in order)
    for option in order:
        single = option.param_type_name == "option" and not (option.multiple or option.is_flag)
        if single and counts[option.name] > 1 and option.rich_help_panel != RUN:
            raise UsageError(f"{max(option.opts, key=len)} is given twice")


def usage_error(error: typer.TyperException, argv: list[str]) -> UsageError:
    """Return Typer's error as a `UsageError` with a hint."""
    from attncli.loading.source import is_file

    words = error.format_message().rstrip(".").replace("\n", " ")
    parameter = getattr(error, "param", None)
    if isinstance(error, typer.BadParameter) and parameter is not None:
        words = f"{max(parameter.opts, key=len)}: {error.message.rstrip('.')}"
    if words.startswith("No such command") and is_file(argv[0]):
        return UsageError(words, hint="give a command before the files: attncli compute FILES")
    command = f"attncli {argv[0]}" if argv[:1] and argv[0] in COMMANDS else "attncli"
    return UsageError(words, hint=f"{command} --help shows what there is")
