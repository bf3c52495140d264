"""A picture into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from attncli._version import __version__
from attncli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.cli.options import AverageOptions, ProblemOptions
    from attncli.view.pictures.picture import Picture

__all__ = [
    "DPI",
    "Look",
    "Target",
    "as_metadata",
    "figure_target",
    "refuse_unknown_map",
    "write_figure",
]

Kind: TypeAlias = Literal["png", "svg", "pdf"]

_FORMATS: dict[str, Kind] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
DPI = 150
_MOST_NAMED, _LONGEST_NAME = 2, 24


class Look(NamedTuple):
    """How a figure looks: the options of the same names."""

    cmap: str | None = None
    annotate: bool | None = None
    digits: int = 2
    dpi: int = DPI
    size: tuple[float, float] | None = None


class Target(NamedTuple):
    """A file for a figure, and the format that its name asks for; PNG where it can ask for none."""

    path: str
    kind: Kind


def figure_target(option: str, path: str) -> Target:
    """Return where a figure goes.

    Raises
    ------
    UsageError
        The name asks for another format; ``option`` gave it.
    """
    from attncli.save.files import is_direct

    suffix = Path(path).suffix.lower()
    if path and not suffix and is_direct(path):  # /dev/stdout, a pipe such as /dev/fd/63
        return Target(path, "png")
    if suffix not in _FORMATS:
        raise UsageError(f"{option}: expected a .png, .svg or .pdf file; found {path!r}")
    return Target(path, _FORMATS[suffix])


def refuse_unknown_map(name: str | None) -> None:
    """Refuse a colour map that matplotlib does not have, before anything is computed."""
    if name is not None:
        from attncli.view.figure.drawing import colormap

        colormap(name)


def as_metadata(
    options: ProblemOptions, others: Mapping[str, object], average: AverageOptions
) -> dict[str, str]:
    """Return what was asked for, by the names of the options; what was not is left out."""
    asked = {**options.given(), **others, "files": options.files, "without": options.without}
    if average.average_heads:
        asked |= vars(average)
    return {
        name: " ".join(value) if isinstance(value, list) else str(value)
        for name, value in asked.items()
        if value is not None
    }


def write_figure(
    picture: Picture, target: Target, look: Look, options: Mapping[str, str]
) -> tuple[str, ...]:
    """Draw a picture into a file; return what its reader must know, a sentence each.

    Parameters
    ----------
    picture : Picture
    target : Target
    look : Look
    options : mapping of str to str
        What was asked for, for the file's metadata.
    """
    import logging

    # Where no folder can keep its cache of fonts, matplotlib would write that to stderr.
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
    from attncli.save.files import whole_file
    from attncli.view.figure.drawing import draw, fit, render
    from attncli.view.figure.style import boxed_texts

    picture = fit(picture, dpi=look.dpi, size=look.size)
    figure = draw(picture, **look._asdict())
    # Nothing here differs between two equal runs: same input, same bytes.
    metadata = {"Software": f"attncli {__version__}", "what": picture.what, **options}
    data = render(figure, target.kind, dpi=look.dpi, metadata=metadata)
    with whole_file(target.path) as stream:
        stream.write(data)
    notes = [note for note in (picture.note, picture.scale_advice) if note]
    boxed = [] if target.kind == "svg" else boxed_texts(picture)
    if boxed:
        notes.append(
            f"no font here for {_named(boxed)}: boxes are drawn; a .svg file keeps the characters, "
            f"a .{target.kind} needs a font that has them (Noto Sans CJK, Noto Emoji)"
        )
    return tuple(notes)


def _named(texts: Sequence[str]) -> str:
    """Return the first of some labels or titles, and how many more there are."""
    from attncli.view.labels import shorten

    more = len(texts) - _MOST_NAMED
    words = ", ".join(shorten(text, _LONGEST_NAME) for text in texts[:_MOST_NAMED])
    return f"{words} and {more} more" if more > 0 else words
