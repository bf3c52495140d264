"""``attncli check`` of many files: one row a file, a summary, and one exit code."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.cli.terminal import limits, print_document, print_parts
from attncli.errors import AttnError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.cli.check import CheckOptions
    from attncli.referee.report import CheckReport
    from attncli.view.dumps import Judged

# Files of a folder that can hold inputs and outputs together.
_ENDINGS = {".npz", ".safetensors"}
# An output of the file itself: #out, or weights=#w.
_MEMBER = re.compile(r"([\w.]+=)?#")


def dump_files(options: CheckOptions) -> list[str]:
    """Return the files to be judged one by one; none if the files hold one problem."""
    from attncli.loading.source import is_folder

    files = options.files or []
    if not options.expect:
        _refuse_missing(files)
    if len(files) == 1 and is_folder(files[0]):
        return _in_folder(files[0]) if options.layer is None and options.call is None else []
    if options.expect:
        several = all(map(_MEMBER.match, options.expect))
    else:  # files of other kinds are Q K V without an output to judge
        several = len(files) > 1 and all(is_folder(f) or Path(f).suffix in _ENDINGS for f in files)
    if not several:
        return []
    return [each for file in files for each in (_in_folder(file) if is_folder(file) else [file])]


def _refuse_missing(files: Sequence[str]) -> None:
    for file in files:
        path = file.partition("#")[0]
        if file != "-" and not os.path.exists(path):  # noqa: PTH110 - false for impossible names
            raise InputError(f"{path} does not exist", hint="give a folder of dumps, or files")


def _in_folder(folder: str) -> list[str]:
    found = sorted(str(path) for path in Path(folder).iterdir() if path.suffix in _ENDINGS)
    if not found:
        raise InputError(f"{folder} holds no dumps", hint="dumps end in .safetensors or .npz")
    return found


def options_of(file: str, options: CheckOptions) -> CheckOptions:
    """Return the options for one file, whose own outputs are judged by default."""
    named = [
        word.replace("#", f"{file}#", 1) if _MEMBER.match(word) else word
        for word in options.expect or ()
    ]
    return options.but(files=[file], expect=named or _judged_members(file))


def of_one_file(options: CheckOptions) -> CheckOptions:
    """Return the options for one file, which may be chosen from a folder."""
    from attncli.gather import dump_file
    from attncli.loading.source import is_folder

    files = options.files or []
    if files and is_folder(files[0]):
        file = dump_file(files[0], options.layer, options.call)
        return options_of(file, options.but(layer=None, call=None))
    # Without a gradient, the file may be the query.
    found = _judged_members(files[0]) if len(files) == 1 and not options.expect else []
    return options.but(expect=found) if any("=" in word for word in found) else options


def _judged_members(file: str) -> list[str]:
    """Return the outputs to judge in a file: ``out``, and gradients."""
    from attncli.errors.names import GRADIENTS, gradient_name
    from attncli.loading import headers

    names = [member.name for member in headers(file)]
    found = {gradient_name(name): name for name in names}
    held = GRADIENTS if "dcontext" in found else ()
    words = [f"{full}={file}#{found[full]}" for full in held if full in found]
    return words if words and "out" not in names else [f"{file}#out", *words]


def judge_it(file: str, judge: Callable[[], CheckReport]) -> Judged:
    """Return the report on a file, or the error that kept it from being judged."""
    from attncli.view.dumps import Judged

    try:
        return Judged(file, judge())
    except AttnError as error:
        return Judged(file, error=error)


def tell_all(found: Sequence[Judged], options: CheckOptions) -> None:
    """Print the table or the JSON of many reports, and write the JUnit file."""
    from attncli.view.dumps import as_dict, as_junit, table_parts

    if options.junit is not None:
        from attncli.save.files import whole_file

        with whole_file(options.junit) as stream:
            stream.write(as_junit(found))
    if options.format == "json":
        from attncli.errors.text import json_text

        print_document(json_text(as_dict(found)))
        return
    print_parts(table_parts(found, limits(options.color)), options.color)
