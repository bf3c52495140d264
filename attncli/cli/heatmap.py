"""``attncli heatmap``: the weights as a picture."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from attncli.cli.declaring import MOST_USED, PICTURE
from attncli.cli.drawing import (
    as_metadata,
    figure_target,
    refuse_unknown_map,
    write_figure,
)
from attncli.cli.options import AverageOptions, PickOptions, ProblemOptions, RunOptions
from attncli.cli.question import Asked, ask_or_read, refuse_average_of_one
from attncli.cli.terminal import (
    advice,
    color_depth,
    height,
    is_terminal,
    note,
    print_text,
    shows_unicode,
    width,
)
from attncli.errors import UsageError
from attncli.errors.text import places, quoted

if TYPE_CHECKING:
    from attncli.gather import Finished
    from attncli.numerics.indices import Picked
    from attncli.view.pictures.frame import Wish
    from attncli.view.pictures.picture import Picture

__all__ = ["heatmap"]

# Longer ones take matplotlib seconds, and no picture has the room.
_LONGEST_TITLE = 2000
# Dots per inch, and points of a label.
_DPI, _FONT_SIZE = 150, 9.0
# Inches of a side.
_LEAST, _MOST = 1.0, 100.0
_INCHES = r"\d+(?:\.\d*)?|\.\d+"
# In a terminal, more would scroll away.
_MOST_MAPS = 16


@dataclass(eq=False, repr=False)
class PictureOptions:
    """What is drawn, and where it goes."""

    out: Annotated[
        str | None,
        Option(
            "--out",
            "-o",
            metavar="PATH",
            help="Draw into a .png, .svg or .pdf file. Default: draw in the terminal.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    what: Annotated[
        Literal["weights", "scores"],
        Option(
            help="What to draw; scores use a diverging colour map that is white at 0.",
            rich_help_panel=PICTURE,
        ),
    ] = "weights"
    rows: Annotated[
        str | None,
        Option(
            metavar="A:B",
            help="Draw queries A to B - 1 only, or label A to label B, or one, A.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    cols: Annotated[
        str | None,
        Option(
            metavar="A:B",
            help="Draw keys A to B - 1 only, or label A to label B, or one, A.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    minus: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Draw the difference from these finished weights: red is less, blue is more.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    log: Annotated[
        bool, Option("--log", help="Logarithmic colour scale.", rich_help_panel=PICTURE)
    ] = False
    vmax: Annotated[
        str,
        Option(
            metavar="auto|X",
            help="Weight of the darkest blue; scores and differences are drawn from -X, red, to X, "
            "blue. auto: the largest, of weights less if only a few are large.",
            rich_help_panel=PICTURE,
        ),
    ] = "auto"
    annotate: Annotated[
        bool | None,
        Option(
            "--annotate/--no-annotate",
            help="Numbers in the cells. Default: in small matrices only.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    digits: Annotated[
        int,
        Option(
            metavar="N",
            min=0,
            max=17,
            help="Decimals of these numbers; significant digits with --log, and where nearly all "
            "would read 0.",
            rich_help_panel=PICTURE,
        ),
    ] = 2
    title: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help="Title of the picture; none where the text is empty.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    cmap: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="matplotlib colour map of a file. Default: Blues, and RdBu, from red to blue, for "
            "scores and differences.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    dpi: Annotated[
        int | None,
        Option(
            metavar="N",
            min=10,
            max=2400,
            help="Dots per inch. Default: 150.",
            rich_help_panel=PICTURE,
        ),
    ] = None

    size: Annotated[
        str | None,
        Option(
            metavar="W or WxH",
            help="Inches of a file's picture: its width, 3.3 for a column of text, or width and "
            "height, 13.3x7.5 for a slide. Default: by the number of cells.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    font_size: Annotated[
        float | None,
        Option(
            metavar="PT",
            min=1,
            max=100,
            help="Size of a file's labels in points; titles are larger. Default: 9.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    transparent: Annotated[
        bool,
        Option("--transparent", help="No background in a file.", rich_help_panel=PICTURE),
    ] = False
    math: Annotated[
        bool,
        Option(
            "--math",
            help="Formulas in a file's title and labels: $\\alpha_1$. Default: text as it is.",
            rich_help_panel=PICTURE,
        ),
    ] = False

    @property
    def dots(self) -> int:
        """Dots an inch."""
        return self.dpi or _DPI


def heatmap(
    drawing: PictureOptions,
    pick: PickOptions,
    average: AverageOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Draw the weights: darker blue is stronger attention.

    It takes the same problems as compute, or finished weights: one file of numbers, or what
    compute writes with --save or --format; with --what scores, finished scores.

    Example: attncli heatmap q.csv k.csv --out weights.png

    Example: attncli heatmap layer.npz --causal --head 0:4 --tokens tokens.txt
    """
    from attncli.loading import split_member
    from attncli.save.files import refuse_inputs, refuse_unwritable

    outputs = [drawing.out] if drawing.out else []
    subtracted = [split_member(drawing.minus)[0]] if drawing.minus else []
    refuse_average_of_one(pick, average)
    wish = _wish(drawing, average)
    if drawing.minus is not None:
        _refuse_beside_minus(drawing, average)
    target = None if drawing.out is None else figure_target("--out", drawing.out)
    if target is None:
        _refuse_for_files_alone(drawing)
    else:
        refuse_unwritable(outputs)
        refuse_unknown_map(drawing.cmap)
    with advice(quiet=run.quiet):
        more = [] if drawing.minus is None else [drawing.minus]
        asked = ask_or_read(options, pick, run, more=more, kind=drawing.what, saved=True)
        refuse_inputs(outputs, [*asked.inputs, *subtracted])
        picked = asked.picked if isinstance(asked, Asked) else pick.among(asked.counts, asked.axes)
        title = _title(drawing, picked, average) if wish.title is None else wish.title
        wish = replace(wish, picked=picked, title=title)
        picture = _picture(asked, wish, options, drawing, run)
    if target is None:
        _show(picture, drawing, run)
    else:
        from attncli.view.figure.drawing import Look

        look = Look(
            cmap=drawing.cmap,
            annotate=drawing.annotate,
            digits=drawing.digits,
            dpi=drawing.dots,
            size=wish.size,
            font_size=drawing.font_size or _FONT_SIZE,
            transparent=drawing.transparent,
            math=drawing.math,
        )
        notes = write_figure(picture, target, look, _options(options, drawing, pick, average))
        for words in notes:
            note(words, quiet=run.quiet)


def _refuse_for_files_alone(drawing: PictureOptions) -> None:
    for option in ("cmap", "dpi", "size", "font_size", "transparent", "math"):
        if getattr(drawing, option):
            name = option.replace("_", "-")
            raise UsageError(f"--{name} is only for files: give --out")


def _wish(drawing: PictureOptions, average: AverageOptions) -> Wish:
    """Return what the options ask of the picture, whatever is drawn."""
    from attncli.view.pictures.frame import Wish

    if drawing.title is not None and len(drawing.title) > _LONGEST_TITLE:
        raise UsageError(
            f"--title: expected at most {_LONGEST_TITLE:,} characters; found {len(drawing.title):,}"
        )
    return Wish(
        what=drawing.what,
        rows=drawing.rows,
        columns=drawing.cols,
        title=drawing.title,
        vmax=_vmax(drawing.vmax),
        log=drawing.log,
        average=average.average_heads,
        dpi=drawing.dots,
        size=_size(drawing.size),
    )


def _picture(
    asked: Asked | Finished,
    wish: Wish,
    options: ProblemOptions,
    drawing: PictureOptions,
    run: RunOptions,
) -> Picture:
    from attncli.view.pictures.maps import finished_picture, problem_picture

    if drawing.minus is not None:
        return _difference(asked, _subtrahend(asked, drawing.minus, options), wish, run)
    if isinstance(asked, Asked):
        from attncli.cli.terminal import progress_bar

        with progress_bar(quiet=run.quiet) as progress:
            return problem_picture(asked.problem, wish, threads=run.threads, progress=progress)
    return finished_picture(asked, wish)


def _refuse_beside_minus(drawing: PictureOptions, average: AverageOptions) -> None:
    if average.average_heads:
        raise UsageError(
            "--minus subtracts head by head: leave out --average-heads",
            hint="attncli check --average-heads --expect weights=FILE --diff PATH draws that",
        )
    if drawing.what != "weights":
        raise UsageError("--minus subtracts weights: leave out --what")
    if drawing.log:
        raise UsageError("--minus gives negative numbers, which have no logarithm: leave out --log")


def _subtrahend(asked: Asked | Finished, file: str, options: ProblemOptions) -> Finished:
    from attncli.gather import Finished, advise_on_dtype, gather

    second = gather([file], dtype=options.dtype, header=options.header, layer=options.layer)
    if not isinstance(second, Finished):
        raise UsageError(
            f"--minus: expected finished weights; {file} holds a problem",
            hint=f"attncli compute {file} --show weights --save weights.npy makes them",
        )
    advise_on_dtype(options.dtype, bfloat16=asked.bfloat16 or second.bfloat16)
    return second


def _difference(asked: Asked | Finished, second: Finished, wish: Wish, run: RunOptions) -> Picture:
    import numpy as np

    from attncli.api import solve
    from attncli.gather import Finished
    from attncli.view.pictures.differences import minus_picture

    if not isinstance(asked, Asked):
        second = second._replace(batched=asked.batched)
        return minus_picture(asked, second, wish)
    problem = asked.problem
    answer = solve(problem, ("weights", "scores"), threads=run.threads)
    first = Finished(
        np.asarray(answer.weights),
        "the weights computed here",
        hidden=np.isneginf(np.asarray(answer.scores)),
        query_labels=problem.query_labels,
        key_labels=problem.key_labels,
        batched=problem.layout.weight_axes == "b",
    )
    headless = "h" not in problem.layout.weight_axes and wish.picked.head is None
    second = second._replace(batched=headless)
    return minus_picture(first, second, wish, computed=True)


def _title(drawing: PictureOptions, picked: Picked, average: AverageOptions) -> str | None:
    """Return the title of one head, their mean, or a batch entry; a picture of all has its own."""
    words = places(picked.alone)
    if average.average_heads:
        words.append(picked.mean)
    if drawing.minus is not None:
        words.append(f"difference from {drawing.minus}")
    return f"Attention {drawing.what}: {', '.join(words)}" if words else None


def _size(text: str | None) -> tuple[float, float] | None:
    """Return the most inches across and up."""
    if text is None:
        return None
    parts = re.split("[x×X]", text)
    sides = [float(part) for part in parts if re.fullmatch(_INCHES, part.strip())]
    if not len(parts) == len(sides) <= 2 or not all(_LEAST <= side <= _MOST for side in sides):
        raise UsageError(
            f"--size: expected inches, W or WxH, each from {_LEAST:g} to {_MOST:g}, as in 3.3 or "
            f"13.3x7.5; found {quoted(text)}"
        )
    return sides[0], sides[1] if len(sides) > 1 else math.inf


def _vmax(text: str) -> float | Literal["auto"]:
    if text == "auto":
        return "auto"
    from attncli.loading.number import (
        DECIMAL_POINTS,
        NumberOverflowError,
        has_decimal_comma,
        parse_number,
    )

    try:
        number = parse_number(text)
    except NumberOverflowError as error:
        raise UsageError(f"--vmax: {error}") from None
    if number is not None:
        return number
    raise UsageError(
        f"--vmax: expected auto or a number; found {quoted(text)}",
        hint=DECIMAL_POINTS if has_decimal_comma(text) else None,
    )


def _options(
    options: ProblemOptions, drawing: PictureOptions, pick: PickOptions, average: AverageOptions
) -> dict[str, str]:
    """Return what was asked for, by the names of the options."""
    unasked = vars(PictureOptions())
    looks = {name: value for name, value in vars(drawing).items() if value != unasked[name]}
    looks.pop("out", None)
    return as_metadata(options, {**vars(pick), **looks}, average)


def _show(picture: Picture, drawing: PictureOptions, run: RunOptions) -> None:
    from attncli.view.blocks.drawing import draw_blocks

    print_text(
        draw_blocks(
            picture,
            width=width(),
            height=height(),
            color=color_depth(run.color),
            unicode=shows_unicode(),
            annotate=drawing.annotate,
            digits=drawing.digits,
            most=_MOST_MAPS if is_terminal() else None,
        )
    )
