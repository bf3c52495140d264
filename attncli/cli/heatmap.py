"""``attncli heatmap``: the weights as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from attncli._version import __version__
from attncli.cli.groups import GroupedCommand, grouped
from attncli.cli.options import PickOptions, ProblemOptions, RunOptions
from attncli.cli.question import Question, ask_or_read
from attncli.cli.terminal import (
    advice,
    color_depth,
    height,
    note,
    print_text,
    shows_unicode,
    width,
)
from attncli.errors import UsageError

if TYPE_CHECKING:
    import typer

    from attncli.gather import Finished
    from attncli.view.picture import Picture

__all__ = ["add_to"]

PICTURE = "Picture"
MOST_USED = "Most used"


@dataclass(frozen=True)
class PictureOptions:
    """What is drawn, and where it goes."""

    out: Annotated[
        str | None,
        Option(
            "--out",
            "-o",
            metavar="PATH",
            help="Draw into a .png, .svg or .pdf file; in the terminal unless given.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    title: Annotated[str | None, Option(metavar="TEXT", help="Title.", rich_help_panel=PICTURE)] = (
        None
    )
    cmap: Annotated[
        str | None,
        Option(metavar="NAME", help="Colour map of matplotlib; Blues.", rich_help_panel=PICTURE),
    ] = None
    annotate: Annotated[
        bool | None,
        Option(
            "--annotate/--no-annotate",
            help="Numbers in the cells; in small matrices unless given.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    digits: Annotated[
        int,
        Option(
            metavar="N", min=0, max=17, help="Digits of these numbers.", rich_help_panel=PICTURE
        ),
    ] = 2
    what: Annotated[
        Literal["weights", "scores"],
        Option(help="Scores diverge around 0.", rich_help_panel=PICTURE),
    ] = "weights"
    rows: Annotated[
        str | None,
        Option(metavar="A:B", help="Queries A to B - 1 alone.", rich_help_panel=PICTURE),
    ] = None
    cols: Annotated[
        str | None,
        Option(metavar="A:B", help="Keys A to B - 1 alone.", rich_help_panel=PICTURE),
    ] = None
    vmax: Annotated[
        str,
        Option(
            metavar="auto|X",
            help="The weight of the darkest blue; the largest one drawn unless given.",
            rich_help_panel=PICTURE,
        ),
    ] = "auto"
    log: Annotated[bool, Option("--log", help="Logarithmic colours.", rich_help_panel=PICTURE)] = (
        False
    )
    dpi: Annotated[
        int,
        Option(metavar="N", min=10, max=2400, help="Dots an inch.", rich_help_panel=PICTURE),
    ] = 150


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("heatmap", cls=GroupedCommand)(grouped(heatmap))


def heatmap(
    options: ProblemOptions, drawing: PictureOptions, pick: PickOptions, run: RunOptions
) -> None:
    """Draw the weights: darker blue is stronger attention.

    Takes the same problems as compute, and finished weights: one CSV or NPY file, or
    what "attncli compute --format json" writes.

    attncli heatmap q.csv k.csv --out weights.png
    """
    from attncli.save.files import refuse_inputs  # noqa: PLC0415

    outputs = [drawing.out] if drawing.out else []
    if drawing.out:
        _figure_format(drawing.out)
    with advice(quiet=run.quiet):
        asked = ask_or_read(options, pick, run)
        refuse_inputs(outputs, asked.inputs)
        picture = _picture(asked, drawing, pick, run)
    if drawing.out is None:
        _show(picture, drawing, run)
    else:
        _write(picture, drawing, drawing.out, quiet=run.quiet)


def _picture(
    asked: Question | Finished, drawing: PictureOptions, pick: PickOptions, run: RunOptions
) -> Picture:
    from attncli.view.maps import Wish, finished_picture, problem_picture  # noqa: PLC0415

    wish = Wish(
        what=drawing.what,
        rows=_range("--rows", drawing.rows),
        columns=_range("--cols", drawing.cols),
        title=drawing.title or _title(drawing.what, pick),
        vmax=_vmax(drawing.vmax),
        log=drawing.log,
        dpi=drawing.dpi,
    )
    if isinstance(asked, Question):
        return problem_picture(asked.problem, wish, threads=run.threads)
    if drawing.what != "weights":
        raise UsageError("finished weights hold no scores: leave out --what")
    return finished_picture(asked, wish, batch=pick.batch, head=pick.head)


def _title(what: str, pick: PickOptions) -> str | None:
    """Return the title of one head or batch entry; a picture of all has its own."""
    picked = (("batch", pick.batch), ("head", pick.head))
    where = [f"{axis} {index}" for axis, index in picked if index is not None]
    return f"Attention {what}: {', '.join(where)}" if where else None


def _range(option: str, text: str | None) -> tuple[int | None, int | None] | None:
    if text is None:
        return None
    try:
        start, stop = (int(part) if part.strip() else None for part in text.split(":"))
    except ValueError:
        raise UsageError(f"{option}: expected a:b, as in 0:64; found {text!r}") from None
    return start, stop


def _vmax(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--vmax: expected auto or a number; found {text!r}") from None


def _figure_format(path: str) -> Literal["png", "svg", "pdf"]:
    suffix = Path(path).suffix.lower()
    if suffix == ".svg":
        return "svg"
    if suffix == ".pdf":
        return "pdf"
    if suffix == ".png":
        return "png"
    raise UsageError(f"--out: expected a .png, .svg or .pdf file; found {path!r}")


def _write(picture: Picture, drawing: PictureOptions, path: str, *, quiet: bool) -> None:
    from attncli.save.files import whole_file  # noqa: PLC0415
    from attncli.view.figure import draw, fit, render  # noqa: PLC0415

    picture = fit(picture, dpi=drawing.dpi)
    figure = draw(
        picture,
        cmap=drawing.cmap,
        annotate=drawing.annotate,
        digits=drawing.digits,
        dpi=drawing.dpi,
    )
    data = render(figure, _figure_format(path), dpi=drawing.dpi, metadata=_metadata(picture))
    with whole_file(path) as stream:
        stream.write(data)
    if picture.note:
        note(picture.note, quiet=quiet)


def _metadata(picture: Picture) -> dict[str, str]:
    """Return what the file says of itself: nothing that differs between two equal runs."""
    return {
        "Software": f"attncli {__version__}",
        "what": picture.what,
        "queries": f"{picture.row_start}:{picture.row_start + picture.rows}",
        "keys": f"{picture.column_start}:{picture.column_start + picture.columns}",
    }


def _show(picture: Picture, drawing: PictureOptions, run: RunOptions) -> None:
    from attncli.view.blocks import draw_blocks  # noqa: PLC0415

    if drawing.cmap is not None:
        raise UsageError("--cmap is for files: give --out")
    print_text(
        draw_blocks(
            picture,
            width=width() or 80,
            height=height(),
            color=color_depth(run.color),
            unicode=shows_unicode(),
            annotate=drawing.annotate,
            digits=drawing.digits,
        )
    )
