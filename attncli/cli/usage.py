"""What Typer found wrong with a command line, in the words of all other errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attncli.cli.tried import COMMANDS, OPTIONS
from attncli.elsewhere import ELSEWHERE, option_of
from attncli.errors import UsageError
from attncli.gather.entries import KNOWN
from attncli.loading.number import DECIMAL_POINTS, has_decimal_comma, is_numeric
from attncli.loading.source import is_file
from attncli.text import did_you_mean, number_hint, quoted

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["usage_error"]

_LATEX = {"latex", "tex", "md"}
_HALF = {"float16", "bfloat16", "half", "fp16", "bf16"}
# What compute and heatmap have, and what a user may try.
_TO_FILES = ("--out", "--save", "--output", "-o")
_TO_FILES_HINT = (
    "compute writes numbers into files with --save, heatmap a picture with --out; the text of any "
    "command goes into a file with > FILE; what check judges is given with --expect"
)
_DASHES = {
    "No such option: -#": "a member of standard input is given behind --: -- '-#name'",
    "No such option: -": "a file whose name begins with - is given as ./-name",
}
_VALUE = re.compile(
    r"Invalid value for '(?P<option>[^']+)'(?: / '[^']+')*: (?P<what>.+)", re.DOTALL
)
_UNKNOWN = re.compile(r"No such option: (--\S+)")
_NO_COMMAND = re.compile(r"No such command '(?P<word>[^']+)'.*", re.DOTALL)
_FOUND = r"(?P<quote>['\"])(?P<found>.*)(?P=quote)"
_CHOICE = re.compile(_FOUND + r" is not one of (?P<known>'.+')", re.DOTALL)
_KIND = re.compile(_FOUND + r" is not a valid (?P<kind>int|integer|float)(?: range)?", re.DOTALL)
_RANGE = re.compile(
    r"(?P<found>\S+) is not in the range (?:(?P<least>\S+?)<=)?x(?:[<>]=(?P<end>\S+))?"
)


def usage_error(message: str, command: str | None, options: Collection[str]) -> UsageError:
    """Return the error that a message of Typer's says, with its hint.

    Parameters
    ----------
    message : str
    command : str or None
        ``attncli compute``, as far as it is known.
    options : collection of str
        Those that the command has.
    """
    words = message.rstrip(".").replace("\n", " ")
    hint = f"{command or 'attncli'} --help shows what there is"
    file = _NO_COMMAND.fullmatch(words)
    if file is not None and is_file(file["word"]):
        return UsageError(words, hint="give a command before the files: attncli compute FILES")
    command_meant = None if file is None else COMMANDS.get(file["word"].lower())
    if file is not None and command_meant is not None:
        return UsageError(f"No such command '{file['word']}'", hint=f"here it is {command_meant}")
    unknown = _unknown_option(words, options)
    if unknown is not None:
        return unknown
    value = _VALUE.fullmatch(words)
    if value is None:
        return UsageError(words, hint=hint)
    expected, better = _expected(value["what"])
    if value["option"] == "--heads" and "," in expected:
        better = "--heads says how many there are; --head picks some of them"
    return UsageError(f"{value['option']}: {expected}", hint=better or hint)


def _unknown_option(words: str, options: Collection[str]) -> UsageError | None:
    """Return the error for an option that is known elsewhere; None for any other message."""
    if words in _DASHES:
        return UsageError(words, hint=_DASHES[words])
    meant = next((name for name in _TO_FILES if f"option: {name} " in f"{words} "), None)
    if meant is not None:  # options of like letters are no help
        return UsageError(f"No such option: {meant}", hint=_TO_FILES_HINT)
    unknown = _UNKNOWN.match(words)
    hint = None if unknown is None else _known_as(unknown[1], options)
    return UsageError(f"No such option: {unknown[1]}", hint=hint) if unknown and hint else None


def _known_as(option: str, options: Collection[str]) -> str | None:
    """Return what serves in the place of an option that there is not."""
    for needed, words in OPTIONS.get(option, ()):
        if needed in options:
            return words
    if option.lower() in options:
        return f"options are written in small letters: {option.lower()}"
    here = ELSEWHERE.get(_as_argument(option).lower())
    if here is not None and (not here.name or option_of(here.name) in options):
        return here.hint(as_options=True)
    name = option.removeprefix("--no-")
    entry = "alibi_slopes" if name == "alibi" else _as_argument(name)
    if name == option or f"--{name}" not in options or entry not in KNOWN:
        return None
    return f"leave --{name} out; --without {entry} leaves out what a problem file or --config says"


def _as_argument(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _expected(what: str) -> tuple[str, str | None]:
    """Return what was expected and found, and a hint if a word is nearly known."""
    if choice := _CHOICE.fullmatch(what):
        known = re.findall(r"'([^']*)'", choice["known"])
        meant = _also_called(choice["found"], known) or did_you_mean(choice["found"], known)
        return f"expected one of {', '.join(known)}; found {quoted(choice['found'])}", meant
    if kind := _KIND.fullmatch(what):
        number = "a number" if kind["kind"] == "float" else "a whole number"
        return f"expected {number}; found {quoted(kind['found'])}", _number_hint(**kind.groupdict())
    if found := _RANGE.fullmatch(what):
        ends = found["least"], found["end"]
        limits = f"from {ends[0]} to {ends[1]}" if all(ends) else f"of at least {ends[1]}"
        return f"expected a number {limits}; found {found['found']}", None
    return what, None


def _number_hint(found: str, kind: str, **_: str) -> str | None:
    """Return what is wrong with a number that a program would write."""
    if is_numeric(found) and ("_" in found or not found.isascii()):
        return "write it in the digits 0 to 9, without underscores"
    if kind != "float":
        return "give one of them" if "," in found else None
    if has_decimal_comma(found):
        return DECIMAL_POINTS
    return number_hint(found)


def _also_called(found: str, known: list[str]) -> str | None:
    if found.lower() in _LATEX and "markdown" in known:
        return "did you mean markdown? Its formulas are LaTeX"
    if found.lower() in _HALF and "float32" in known:
        return "inputs of 16 bits are read as they are, and computed with in float32"
    if found.lower() in _HALF and known == ["bfloat16"]:
        return "files say themselves that they hold float16; of bfloat16, NPY files do not"
    if (corner := _corner(found)) in known:
        return f"did you mean {corner}?"
    return None


def _corner(found: str) -> str:
    """Return how a corner is called here: PyTorch's are upper left and lower right."""
    hyphened = found.lower().replace("_", "-")
    return hyphened.replace("upper-", "top-").replace("lower-", "bottom-")
