"""How options are declared and read, and which of them go together."""

from collections.abc import Callable, Collection, Iterable
from copy import copy
from math import inf
from typing import Any, NamedTuple, Self

from typer import Argument, BadParameter, Option

from attncli.errors import UsageError
from attncli.errors.names import gradient_name
from attncli.errors.text import did_you_mean

# The headings of the help.
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
# In the order of the help; -h shows the files and the most used options only.
HEADINGS = (
    *("Files", MOST_USED, PICTURE, JUDGING, SHOWN, SCORES, RULES, SELF, SHAPES, LABELS, RUN),
    "Other",
)
LIST = "LIST or FILE"


class Declared(NamedTuple):
    """The default of an option, and its declaration for Typer."""

    default: Any
    told: Any


class Rule(NamedTuple):
    """Options that need another one or exclude others, and why; blanks separate names."""

    options: str
    why: str
    needs: str = ""
    excludes: str = ""


class Options:
    """The options of a command, one attribute each; commands inherit groups of options."""

    # Dataclasses would take half a millisecond of start-up for each method that they make.
    COMBINATIONS: tuple[Rule, ...] = ()

    def __init__(self, **values: Any) -> None:
        usual = {name: one.default for name, one in self.declared().items()}
        vars(self).update(usual | values)
        given = self.given()
        for kind in type(self).__mro__:
            for rule in vars(kind).get("COMBINATIONS", ()):
                self._hold(rule, given)

    @classmethod
    def declared(cls) -> dict[str, Declared]:
        """Return the declaration of each option, by its name."""
        found: dict[str, Declared] = {}
        for kind in cls.__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, Declared):
                    found.setdefault(name, value)
        return found

    def given(self) -> dict[str, Any]:
        """Return the options whose values are not the defaults, by name."""
        return {
            name: value
            for name, one in self.declared().items()
            if (value := vars(self)[name]) not in (one.default, [])
        }

    def but(self, **changes: Any) -> Self:
        """Return a copy with other values of some options."""
        made = copy(self)
        vars(made).update(changes)
        return made

    def refuse(self, names: str, why: str, hint: str | None = None) -> None:
        """Raise an error where one of these options is given."""
        given = self.given()
        for name in names.split():
            if name in given:
                raise UsageError(f"{self._words(name)} {why}", hint=hint)

    def _hold(self, rule: Rule, given: Collection[str]) -> None:
        for name in rule.options.split():
            if name in given and rule.excludes:
                self.refuse(rule.excludes, f"does not go with {self._words(name)}: {rule.why}")
            elif name in given and rule.needs not in given:
                self.refuse(name, f"needs --{rule.needs}: {rule.why}")

    def _words(self, name: str) -> str:
        """Return an option as it was given; a choice, such as --what scores, with its value."""
        flag, value = f"--{name.replace('_', '-')}", vars(self)[name]
        chosen = isinstance(value, str) and self.declared()[name].told.metavar is None
        return f"{flag} {value}" if chosen else flag


def option(
    panel: str, metavar: str | None, words: str, *names: str, default: Any = None, **more: Any
) -> Any:
    """Declare an option under a heading of the help; its name is the attribute's by default."""
    return Declared(
        default, Option(*names, metavar=metavar, help=words, rich_help_panel=panel, **more)
    )


def switch(panel: str, words: str, *names: str) -> Any:
    """Declare an option without a value."""
    return option(panel, None, words, *names, default=False)


def count(
    panel: str,
    metavar: str,
    words: str,
    *,
    least: float = -inf,
    most: float = inf,
    default: int | None = None,
) -> Any:
    """Declare a whole number."""
    return option(panel, metavar, words, parser=between(least, most, _whole), default=default)


def number_option(panel: str, words: str) -> Any:
    """Declare a number."""
    return option(panel, "NUMBER", words, parser=number)


def argument(words: str, metavar: str = "[FILES]...") -> Any:
    """Declare a positional argument."""
    told = Argument(metavar=metavar, help=words, rich_help_panel="Files", show_default=False)
    return Declared(None, told)


def number(text: str) -> float:
    """Read a number, written as in all text formats."""
    from attncli.loading.number import NumberOverflowError, parse_number

    try:
        found = parse_number(str(text))
    except NumberOverflowError as error:
        raise BadParameter(str(error)) from None
    if found is None:
        raise BadParameter(f"expected a number such as 0.5; found {text!r}")
    return found


def _whole(text: str) -> int:
    from attncli.errors.text import whole_number

    found = whole_number(str(text))
    if found is None:
        raise BadParameter(f"expected a whole number; found {text!r}")
    return found


def between(
    least: float, most: float = inf, read: Callable[[str], float] = number
) -> Callable[[str], float]:
    """Return a reader of numbers in a range."""

    def checked(text: str) -> float:
        found = read(text)
        if not least <= found <= most:
            limits = f"of at least {least}" if most == inf else f"from {least} to {most}"
            raise BadParameter(f"expected a number {limits}; found {text}")
        return found

    return checked


def by_name(
    flag: str, words: Iterable[str] | None, names: Collection[str], usual: str
) -> dict[str, str]:
    """Read values given as [NAME=]VALUE; those without a name go under the usual name."""
    found: dict[str, str] = {}
    for word in words or ():
        name, separator, value = word.partition("=")
        full = gradient_name(name) or name
        if not separator or (full not in names and not name.isidentifier()):
            # A path may have an equals sign.
            full, value = usual, word
        if full not in {*names, usual}:
            raise UsageError(
                f"{flag} {word}: expected a name of {', '.join(names)}; found {name!r}",
                hint=did_you_mean(name, names),
            )
        if full in found:
            raise UsageError(f"{flag} is given twice for {full}: {found[full]} and {value}")
        found[full] = value
    return found


def one_of(*words: str) -> Any:
    """Return a shell completion that offers these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def list_of(*words: str) -> Any:
    """Return a shell completion for a list with commas, in which each word stands once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        left = [word for word in words if word not in before.split(",")]
        return [before + comma + word for word in left if word.startswith(last)]

    return complete
