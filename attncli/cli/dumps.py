"""``attncli check`` of many files: one row a file, a summary, and one exit code."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.cli.question import is_folder
from attncli.cli.terminal import console, limits, print_document, progress_bar
from attncli.errors import AttnError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.cli.options import CheckOptions, ProblemOptions, RunOptions
    from attncli.referee.report import CheckReport
    from attncli.view.dumps import Judged

__all__ = [
    "dump_files",
    "judge_files",
    "judge_it",
    "judged_members",
    "options_of",
    "tell_all",
]

# Files of a folder that can hold inputs and outputs together.
_ENDINGS = {".npz", ".safetensors"}


def dump_files(options: ProblemOptions, judging: CheckOptions) -> list[str]:
    """Return the files to be judged one by one; empty where the files are those of one problem.

    A folder stands for its dumps, unless --layer or --call choose one. Several files are dumps if
    --expect is not given, or names a member of each: ``#out``.
    """
    files = options.files or []
    chosen = options.layer is not None or options.call is not None
    if not judging.expect:
        _refuse_missing(files)
    if len(files) == 1 and is_folder(files[0]) and not chosen:
        return _in_folder(files[0])
    of_members = all(
        "#" in word and not word.partition("#")[0].rpartition("=")[2]
        for word in judging.expect or []
    )
    if not of_members or (len(files) < 2 and not judging.expect):
        return []
    if not judging.expect and not all(is_folder(f) or Path(f).suffix in _ENDINGS for f in files):
        return []  # Q K V, of which an output is missing
    return [each for file in files for each in (_in_folder(file) if is_folder(file) else [file])]


def _refuse_missing(files: Sequence[str]) -> None:
    """Say that a file or a folder does not exist, before an output to judge is asked for."""
    for file in files:
        path = file.partition("#")[0]
        if file != "-" and not os.path.exists(path):  # noqa: PTH110 - false of names no file can have
            raise InputError(f"{path} does not exist", hint="give a folder of dumps, or files")


def _in_folder(folder: str) -> list[str]:
    found = sorted(str(path) for path in Path(folder).iterdir() if path.suffix in _ENDINGS)
    if not found:
        raise InputError(f"{folder} holds no dumps", hint="dumps end in .safetensors or .npz")
    return found


def options_of(
    file: str, options: ProblemOptions, judging: CheckOptions
) -> tuple[ProblemOptions, CheckOptions]:
    """Return the options of a run that judges one file, by default what `judged_members` finds."""
    own, judged = copy.copy(options), copy.copy(judging)
    own.files = [file]
    named = [word.replace("#", f"{file}#", 1) for word in judging.expect or ()]
    judged.expect = named or judged_members(file)
    return own, judged


def judged_members(file: str) -> list[str]:
    """Return what a file has to judge: its ``out``, and the gradients that it holds."""
    from attncli.errors.names import GRADIENTS, gradient_name
    from attncli.loading import headers

    names = [member.name for member in headers(file)]
    found = {gradient_name(name): name for name in names}
    held = GRADIENTS if "dcontext" in found else ()
    words = [f"{full}={file}#{found[full]}" for full in held if full in found]
    return words if words and "out" not in names else [f"{file}#out", *words]


def judge_files(
    files: Sequence[str], judge: Callable[[str], CheckReport], run: RunOptions
) -> list[Judged]:
    """Judge one file after the other; an error of one does not hide the others."""
    found = []
    with progress_bar(f"judging {len(files)} files", quiet=run.quiet) as told:
        for number, file in enumerate(files):
            if told is not None:
                told(number, len(files))
            found.append(judge_it(file, judge))
    return found


def judge_it(file: str, judge: Callable[[str], CheckReport]) -> Judged:
    """Return the report on a file, or the error that kept it from being judged."""
    from attncli.view.dumps import Judged

    try:
        return Judged(file, judge(file))
    except AttnError as error:
        return Judged(file, error=error)


def tell_all(found: Sequence[Judged], judging: CheckOptions, run: RunOptions) -> None:
    """Print the table or the JSON of many reports, and write the JUnit file."""
    from attncli.view.dumps import as_dict, as_junit, table_parts

    if judging.junit is not None:
        from attncli.save.files import whole_file

        with whole_file(judging.junit) as stream:
            stream.write(as_junit(found))
    if judging.format == "json":
        from attncli.errors.text import json_text

        print_document(json_text(as_dict(found)))
        return
    screen = console(run.color)
    for part in table_parts(found, limits(run.color)):
        screen.print(part)
