"""How an option is declared: a field of a dataclass with its name, its words and how it is read."""

from dataclasses import field
from typing import Any

from typer import Argument, BadParameter, Option

__all__ = [
    "HEADINGS", "JUDGING", "LABELS", "LIST", "MOST_USED", "PICTURE", "RULES", "RUN", "SCORES",
    "SELF", "SHAPES", "SHOWN",
    "count", "file_argument", "list_of", "number", "number_option", "one_of", "option", "positive",
    "switch", "whole",
]  # fmt: skip

# The headings of the help, and what stands for the value of an option.
MOST_USED = "Most used"
RULES = "Which keys a query sees"
SCORES = "Scores"
SELF = "Self-attention: one file of embeddings X (or the three sources)"
SHAPES = "Shapes and numbers"
LABELS = "Labels"
SHOWN = "What is shown"
JUDGING = "How it is judged"
RUN = "Running"
PICTURE = "Picture"
# In the order of the help; files and what is used most come first, and are all that -h shows.
HEADINGS = (
    *("Files", MOST_USED, PICTURE, JUDGING, SHOWN, SCORES, RULES, SELF, SHAPES, LABELS, RUN),
    "Other",
)
LIST = "LIST or FILE"


def option(
    panel: str, metavar: str | None, words: str, *names: str, default: Any = None, **more: Any
) -> Any:
    """Return the field of an option: its heading, what its value is called, its help and its names.

    Without a ``metavar``, Typer names the value. Without names, the
    option has that of the field. The rest is as Typer's `Option` takes it.
    """
    told = Option(*names, metavar=metavar, help=words, rich_help_panel=panel, **more)
    return field(default=default, metadata={"option": told})


def switch(panel: str, words: str, *names: str) -> Any:
    """Return the field of an option without a value."""
    return option(panel, None, words, *names, default=False)


def count(
    panel: str, metavar: str, words: str, *, least: int | None = None, most: int | None = None
) -> Any:
    """Return the field of a whole number."""
    return option(panel, metavar, words, parser=whole(least, most))


def number_option(panel: str, words: str) -> Any:
    """Return the field of a number."""
    return option(panel, "NUMBER", words, parser=number)


def file_argument(words: str) -> Any:
    """Return the field of the files of a command."""
    told = Argument(metavar="[FILES]...", help=words, rich_help_panel="Files", show_default=False)
    return field(default=None, metadata={"option": told})


def number(text: str) -> float:
    """Read a number by the grammar of all text formats."""
    from attncli.loading.number import NumberOverflowError, parse_number

    try:
        found = parse_number(text)
    except NumberOverflowError as error:
        raise BadParameter(str(error)) from None
    if found is None:
        raise BadParameter(f"expected a number such as 0.5; found {text!r}")
    return found


def positive(text: str) -> float:
    """Read a number that is not negative."""
    found = number(text)
    if not found >= 0:
        raise BadParameter(f"expected a number of at least 0; found {text}")
    return found


def whole(least: int | None = None, most: int | None = None) -> Any:
    """Return how a whole number is read, in the digits 0 to 9."""

    def integer(text: str) -> int:
        from attncli.errors.text import whole_number

        found = whole_number(text)
        if found is None:
            raise BadParameter(f"expected a whole number; found {text!r}")
        if (least is not None and found < least) or (most is not None and found > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise BadParameter(f"expected a number {limits}; found {text}")
        return found

    return integer


def one_of(*words: str) -> Any:
    """Complete one of some words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def list_of(*words: str) -> Any:
    """Complete the last word of a list with commas, in which each stands once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        left = [word for word in words if word not in before.split(",")]
        return [before + comma + word for word in left if word.startswith(last)]

    return complete
