"""``attncli info``: what is in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import typer

from attncli.cli.declaring import MOST_USED, argument, option
from attncli.cli.ending import WRONG
from attncli.cli.options import Formatted, ProblemOptions, ScreenOptions
from attncli.cli.terminal import advice, limits, piped_in, print_document, print_parts, say_error
from attncli.errors import AttnError, UsageError
from attncli.errors.names import SCHEMA
from attncli.errors.text import counted, json_text, printable

if TYPE_CHECKING:
    from attncli.loading.info import FileInfo
    from attncli.view.info import LayerInfo


class InfoOptions(Formatted, ScreenOptions):
    """The files, and the form of the answer."""

    files: list[str] | None = argument(
        "Files of numbers, checkpoints, pictures by attncli. - is standard input, FILE#NAME one "
        "member of a file. Default: what is piped in."
    )
    format: Literal["table", "json"] = option(
        MOST_USED, None, "json is for scripts.", "--format", "-f", default="table"
    )
    numbers: bool = option(
        MOST_USED,
        None,
        "Show the range and the non-finite numbers. This reads the whole file; without it, the "
        "headers of NPY, NPZ and safetensors are enough.",
        "--numbers/--no-numbers",
        default=True,
    )
    dtype: Literal["bfloat16"] | None = ProblemOptions.dtype


def info(options: InfoOptions) -> None:
    """Show shape, dtype, range and members of files.

    It also lists the attention layers of a checkpoint, each with the --checkpoint argument to
    give, and the options that a picture by attncli was drawn with.

    Of a folder that attncli capture wrote, it lists the recorded calls.

    Example: attncli info model.safetensors

    Example: attncli info layer.npz q.csv weights.png
    """
    from attncli.gather import recorded_calls
    from attncli.loading import refuse_two_streams
    from attncli.loading.source import is_folder

    files = options.files or (["-"] if piped_in() else [])
    if not files:
        raise UsageError("info needs a file", hint="attncli info model.safetensors")
    refuse_two_streams(files)
    folders = {f: calls for f in files if is_folder(f) and (calls := recorded_calls(f))}
    files = [file for file in files if file not in folders]
    with advice(quiet=options.quiet):
        found, errors = _inspected(files, options)
    _print(found, folders, options)
    for error in errors:
        say_error(error)
    if errors:
        raise typer.Exit(WRONG)


def _inspected(files: list[str], options: InfoOptions) -> tuple[list[FileInfo], list[AttnError]]:
    """Return what the good files hold; one bad file does not hide the others."""
    from attncli.loading.info import inspect

    found, errors = [], []
    for file in files:
        try:
            found.append(inspect(file, numbers=options.numbers, dtype=options.dtype))
        except AttnError as error:
            errors.append(error)
    return found, errors


def _layers(file: FileInfo) -> list[LayerInfo]:
    from attncli.checkpoints.layers import layer_widths
    from attncli.checkpoints.names import find_layers
    from attncli.loading import split_member
    from attncli.view.info import LayerInfo

    if split_member(file.name)[1] is not None:
        return []
    # A member without a shape is a word, such as the name of a file.
    shapes = {member.name: member.shape for member in file.members if member.shape}
    return [
        LayerInfo(
            f"{file.name}#{layer.prefix}" if layer.prefix else file.name,
            layer,
            layer_widths(layer, shapes),
        )
        for layer in find_layers(shapes)
    ]


def _print(
    found: list[FileInfo], folders: dict[str, list[dict[str, Any]]], options: InfoOptions
) -> None:
    from attncli.view.info import info_dict, info_parts

    if options.format == "json":
        files = [info_dict(each, _layers(each)) for each in found]
        files += [{"file": folder, "calls": calls} for folder, calls in folders.items()]
        print_document(json_text({"schema": SCHEMA, "files": files}))
        return
    from attncli.view.dumps import calls_table

    shown = limits(options.color)
    for each in found:
        print_parts(info_parts(each, _layers(each), shown), options.color)
    for folder, calls in folders.items():
        title = f"{printable(folder)}: {counted(len(calls), 'recorded call')}"
        print_parts([title, *calls_table(calls, shown)], options.color)
