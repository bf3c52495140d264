"""The options that pick batch entries and heads."""

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from attncli.cli.options import SHOWN
from attncli.errors import UsageError
from attncli.indices import Indices, Picked, index_of, indices_in

__all__ = ["PickOneOptions", "PickOptions"]


class _Pick:
    """What both have in common: how the words are read."""

    batch: str | int | None
    head: str | int | None

    def among(self, counts: tuple[int, int], axes: str) -> Picked:
        """Return what is picked of so many batch entries and heads.

        Raises
        ------
        UsageError
            There is no such axis, by its letter, or no such index.
        """
        return Picked(
            _picked("--batch", self.batch, counts[0], exists="b" in axes),
            _picked("--head", self.head, counts[1], exists="h" in axes),
        )


@dataclass(eq=False, repr=False)
class PickOptions(_Pick):
    """Some batch entries, some heads."""

    batch: Annotated[
        str | None,
        Option(
            metavar="B",
            help="Only these batch entries, counted from 0: one (-1 is the last one), several "
            "(0,3) or a range (4:8, without 8).",
            rich_help_panel=SHOWN,
        ),
    ] = None
    head: Annotated[
        str | None,
        Option(
            metavar="H",
            help="Only these heads, in the same way. A terminal shows the first 4 tables or "
            "16 pictures, a pipe the first 16 tables.",
            rich_help_panel=SHOWN,
        ),
    ] = None


@dataclass(eq=False, repr=False)
class PickOneOptions(_Pick):
    """One batch entry, one head."""

    batch: Annotated[
        int | None,
        Option(
            metavar="B",
            help="Only one batch entry, counted from 0 (-1 is the last one).",
            rich_help_panel=SHOWN,
        ),
    ] = None
    head: Annotated[
        int | None,
        Option(
            metavar="H",
            help="Only one head, counted from 0 (-1 is the last one).",
            rich_help_panel=SHOWN,
        ),
    ] = None


def _picked(option: str, words: str | int | None, count: int, *, exists: bool) -> Indices | None:
    if words is None:
        return None
    if not exists:
        raise UsageError(
            f"{option} {words}: the inputs have no such axis", hint="see --layout and --heads"
        )
    if isinstance(words, int):
        return index_of(option, words, count)
    return indices_in(option, words, count)
