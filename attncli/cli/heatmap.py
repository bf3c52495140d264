"""``attncli heatmap``: the weights as a picture."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

from attncli.cli.declaring import MOST_USED, PICTURE, number, option, switch, whole
from attncli.cli.drawing import as_metadata, figure_target, refuse_unknown_map, write_figure
from attncli.cli.options import (
    AverageOptions,
    MergeOptions,
    PickOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.question import Asked, ask_or_read, refuse_average_of_one
from attncli.cli.terminal import (
    advice,
    color_depth,
    height,
    is_terminal,
    note,
    print_text,
    progress_bar,
    shows_unicode,
    width,
)
from attncli.errors import ShapeError, UsageError
from attncli.errors.text import places, quoted

if TYPE_CHECKING:
    from attncli.gather import Finished
    from attncli.numerics.indices import Picked
    from attncli.summaries.maps import Maps
    from attncli.view.pictures.making import Wish
    from attncli.view.pictures.picture import Picture

__all__ = ["PictureOptions", "heatmap"]

# Longer titles take matplotlib seconds, and no picture has the room.
_LONGEST_TITLE = 2000
# Dots per inch, and points of a label.
_DPI, _FONT_SIZE = 150, 9.0
# Inches of a side, and how they are written.
_LEAST, _MOST, _INCHES = 1.0, 100.0, r"\d+(?:\.\d*)?|\.\d+"
# In a terminal, more would scroll away.
_MOST_MAPS = 16
# Shares of a smaller end have no logarithm, or none of their own.
_LEAST_END = 1e-300


@dataclass(eq=False, repr=False)
class PictureOptions:
    """What is drawn, and where it goes."""

    out: str | None = option(
        MOST_USED,
        "PATH",
        "Draw into a .png, .svg or .pdf file, or make an .html page to explore. Default: draw in "
        "the terminal.",
        "--out",
        "-o",
    )
    what: Literal["weights", "scores"] = option(
        PICTURE,
        None,
        "What to draw; scores use a diverging colour map that is white at 0.",
        default="weights",
    )
    rows: str | None = option(
        PICTURE, "A:B", "Draw queries A to B - 1 only, or label A to label B, or one, A."
    )
    cols: str | None = option(
        PICTURE, "A:B", "Draw keys A to B - 1 only, or label A to label B, or one, A."
    )
    minus: str | None = option(
        PICTURE,
        "FILE",
        "Draw the difference from these finished weights: red is less, blue is more.",
    )
    log: bool = switch(PICTURE, "Logarithmic colour scale.", "--log")
    vmax: str = option(
        PICTURE,
        "auto|X",
        "Weight of the darkest blue; scores and differences are drawn from -X, red, to X, blue. "
        "auto: the largest, of weights less if only a few are large.",
        default="auto",
    )
    annotate: bool | None = option(
        PICTURE,
        None,
        "Numbers in the cells. Default: in small matrices only.",
        "--annotate/--no-annotate",
    )
    digits: int | None = option(
        PICTURE,
        "N",
        "Decimals of these numbers; significant digits with --log, and where nearly all would "
        "read 0. Default: 2.",
        parser=whole(0, 17),
    )
    title: str | None = option(PICTURE, "TEXT", "Title; none where the text is empty.")
    cmap: str | None = option(
        PICTURE,
        "NAME",
        "matplotlib colour map of a file. Default: Blues, and RdBu, from red to blue, for scores "
        "and differences.",
    )
    dpi: int | None = option(
        PICTURE, "N", "Dots per inch of a file. Default: 150.", parser=whole(10, 2400)
    )
    size: str | None = option(
        PICTURE,
        "W or WxH",
        "Inches of a file's picture: its width, 3.3 for a column of text, or width and height, "
        "13.3x7.5 for a slide. Default: by the number of cells.",
    )
    font_size: float | None = option(
        PICTURE,
        "PT",
        "Size of a file's labels in points; titles are larger. Default: 9.",
        parser=number,
    )
    transparent: bool = switch(PICTURE, "No background in a file.")
    math: bool = switch(
        PICTURE, "Read $...$ in a file's title and labels as formulas. Default: text as it is."
    )

    def __post_init__(self) -> None:
        if self.title is not None and len(self.title) > _LONGEST_TITLE:
            raise UsageError(
                f"--title: expected at most {_LONGEST_TITLE:,} characters; "
                f"found {len(self.title):,}"
            )
        if self.font_size is not None and not 1 <= self.font_size <= 100:
            raise UsageError(
                f"--font-size: expected points, from 1 to 100; found {self.font_size:g}"
            )
        for_files = ("cmap", "dpi", "size", "font_size", "transparent", "math")
        alone = next((name for name in for_files if getattr(self, name)), None)
        if alone and self.out is None:
            raise UsageError(f"--{alone.replace('_', '-')} is only for files: give --out")
        if self.log and self.what == "scores":
            raise UsageError(
                "--log: scores may be negative, which have no logarithm",
                hint="leave out --log, or draw the weights",
            )

    @property
    def decimals(self) -> int:
        """Digits of the numbers in cells."""
        return 2 if self.digits is None else self.digits

    @property
    def inches(self) -> tuple[float, float] | None:
        """The figure across and up; infinite where any height will do."""
        if self.size is None:
            return None
        parts = re.split("[x×X]", self.size)
        sides = [float(part) for part in parts if re.fullmatch(_INCHES, part.strip())]
        if not len(parts) == len(sides) <= 2 or not all(_LEAST <= side <= _MOST for side in sides):
            raise UsageError(
                f"--size: expected inches, W or WxH, each from {_LEAST:g} to {_MOST:g}, as in 3.3 "
                f"or 13.3x7.5; found {quoted(self.size)}"
            )
        return sides[0], sides[1] if len(sides) > 1 else inf

    @property
    def end(self) -> float | None:
        """The end of the colour scale, or None for auto."""
        if self.vmax == "auto":
            return None
        from attncli.loading.number import (
            DECIMAL_POINTS,
            NumberOverflowError,
            has_decimal_comma,
            parse_number,
        )

        try:
            found = parse_number(self.vmax)
        except NumberOverflowError as error:
            raise UsageError(f"--vmax: {error}") from None
        if found is None:
            raise UsageError(
                f"--vmax: expected auto or a number; found {quoted(self.vmax)}",
                hint=DECIMAL_POINTS if has_decimal_comma(self.vmax) else None,
            )
        if not isfinite(found) or found < _LEAST_END:
            raise UsageError(f"--vmax: expected auto or a number above 0; found {found:g}")
        return found


def heatmap(
    drawing: PictureOptions,
    pick: PickOptions,
    average: AverageOptions,
    merge: MergeOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Draw the weights: darker blue is stronger attention.

    It takes the same problems as compute, or finished weights: one file of numbers, or what
    compute writes with --save or --format; with --what scores, finished scores.

    Example: attncli heatmap q.csv k.csv --out weights.png

    Example: attncli heatmap q.csv k.csv --out weights.html

    Example: attncli heatmap layer.npz --causal --head 0:4 --tokens tokens.txt
    """
    from attncli.loading import split_member
    from attncli.save.files import refuse_inputs, refuse_unwritable
    from attncli.view.pictures.making import Wish

    if drawing.out is not None and drawing.out.lower().endswith((".html", ".htm")):
        from attncli.cli.page import write_page

        write_page(drawing, pick, average, merge, options, run)
        return
    outputs = [drawing.out] if drawing.out else []
    subtracted = [split_member(drawing.minus)[0]] if drawing.minus else []
    refuse_average_of_one(pick, average)
    _refuse_beside(drawing, average, merge)
    wish = Wish(
        drawing.what,
        vmax=drawing.end,
        log=drawing.log,
        dpi=drawing.dpi or _DPI,
        size=drawing.inches,
    )
    target = None if drawing.out is None else figure_target("--out", drawing.out)
    refuse_unwritable(outputs)
    refuse_unknown_map(drawing.cmap)
    with advice(quiet=run.quiet):
        more = [] if drawing.minus is None else [drawing.minus]
        chosen = pick if merge.merge is None else PickOptions()
        asked = ask_or_read(options, chosen, run, more=more, kind=drawing.what, saved=True)
        if merge.merge is not None:
            from attncli.cli.merging import merged

            asked = merged(asked, merge, run)
        refuse_inputs(outputs, [*asked.inputs, *subtracted])
        picked = asked.picked if isinstance(asked, Asked) else pick.among(asked.counts, asked.axes)
        title = _title(drawing, picked, average, merge) if drawing.title is None else drawing.title
        wish = replace(wish, picked=picked, title=title)
        picture = _picture(asked, wish, drawing, average, options, run)
    if target is None:
        _show(picture, drawing, run)
        return
    from attncli.view.figure.drawing import Look

    look = Look(
        cmap=drawing.cmap,
        annotate=drawing.annotate,
        digits=drawing.decimals,
        dpi=wish.dpi,
        size=wish.size,
        font_size=drawing.font_size or _FONT_SIZE,
        transparent=drawing.transparent,
        math=drawing.math,
    )
    for words in write_figure(
        picture, target, look, _options(options, drawing, pick, average, merge)
    ):
        note(words, quiet=run.quiet)


def _refuse_beside(drawing: PictureOptions, average: AverageOptions, merge: MergeOptions) -> None:
    """Refuse options that contradict each other."""
    if merge.merge is not None and (drawing.what == "scores" or drawing.minus is not None):
        raise UsageError("--merge joins weights: leave out --what scores and --minus")
    if average.average_heads and drawing.what == "scores":
        raise UsageError("--average-heads averages weights, not scores: leave one of the two out")
    if drawing.minus is None:
        return
    if average.average_heads:
        raise UsageError(
            "--minus subtracts head by head: leave out --average-heads",
            hint="attncli check --average-heads --expect weights=FILE --diff PATH draws that",
        )
    if drawing.what != "weights":
        raise UsageError("--minus subtracts weights: leave out --what")
    if drawing.log:
        raise UsageError("--minus gives negative numbers, which have no logarithm: leave out --log")


def _picture(
    asked: Asked | Finished,
    wish: Wish,
    drawing: PictureOptions,
    average: AverageOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> Picture:
    """Return the picture of what is asked for, computed some rows at a time."""
    from attncli.engine.averaging import refuse_without_heads
    from attncli.errors import warn
    from attncli.problem.advice import fully_masked_advice
    from attncli.summaries.maps import ComputedMaps, Difference, Mean
    from attncli.view.pictures.making import difference_picture, picture_of
    from attncli.view.sinks import SINK_NOTE

    with progress_bar(quiet=run.quiet) as progress:
        maps: Maps
        if isinstance(asked, Asked):
            maps = ComputedMaps(asked.problem, wish.what == "scores", run.threads, progress)
        else:
            maps = _finished_maps(asked, wish)
        if average.average_heads:
            refuse_without_heads(maps.axes)
        labels = maps.labels
        wish = replace(
            wish,
            rows=_range("--rows", drawing.rows, maps, labels[0], "query"),
            columns=_range("--cols", drawing.cols, maps, labels[1], "key"),
        )
        if drawing.minus is not None:
            second = _subtrahend(asked, maps, drawing.minus, wish.picked, options)
            picture = difference_picture(Difference(maps, second), wish, _name_of(drawing.minus))
        else:
            picture = picture_of(Mean(maps) if average.average_heads else maps, wish)
    if isinstance(maps, ComputedMaps):
        if maps.fully_masked:
            warn(fully_masked_advice(maps.problem, maps.fully_masked))
        if maps.sinks_take and drawing.what == "weights" and drawing.minus is None:
            picture = replace(picture, remarks=(*picture.remarks, SINK_NOTE))
    return picture


def _finished_maps(finished: Finished, wish: Wish) -> Maps:
    from attncli.summaries.maps import FinishedMaps

    taken = finished.weights if wish.what == "weights" else finished.scores
    labels = finished.query_labels, finished.key_labels
    hidden = finished.hidden_cells(wish.picked)
    return FinishedMaps(taken(wish.picked), finished.axes, labels, hidden)


def _range(
    name: str,
    words: str | None,
    maps: Maps,
    labels: tuple[str, ...] | None,
    of: Literal["query", "key"],
) -> tuple[int, int] | None:
    from attncli.problem.labels import named_range

    if words is None:
        return None
    return named_range(name, words, maps.shape[of == "key"], labels, of=of)


def _name_of(file: str) -> str:
    return file.rpartition("/")[2]


def _subtrahend(
    asked: Asked | Finished, first: Maps, file: str, picked: Picked, options: ProblemOptions
) -> Maps:
    """Return the finished weights that are subtracted; they may hold only what is picked."""
    from attncli.gather import Finished, advise_on_dtype, gather
    from attncli.problem.labels import advise_on_order
    from attncli.summaries.maps import FinishedMaps

    second = gather([file], dtype=options.dtype, header=options.header, layer=options.layer)
    if not isinstance(second, Finished):
        raise UsageError(
            f"--minus: expected finished weights; {file} holds a problem",
            hint=f"attncli compute {file} --show weights --save weights.npy makes them",
        )
    advise_on_dtype(options.dtype, bfloat16=asked.bfloat16 or second.bfloat16)
    if isinstance(asked, Asked):
        name = "the weights computed here"
        batched = "h" not in first.axes and picked.head is None
    else:
        name, batched = asked.name, asked.batched
    second = second._replace(batched=batched)
    own = FinishedMaps(second.weights(picked.within(second.counts)))
    if (own.counts, own.shape) != (first.counts, first.shape):
        raise ShapeError(
            f"{name} and {second.name} have the shapes {_shape(first)} and {_shape(own)}: "
            "expected weights of the same shape"
        )
    for labels, known in zip((second.query_labels, second.key_labels), first.labels, strict=True):
        advise_on_order(second.name, labels, name, known)
    return own


def _shape(maps: Maps) -> str:
    """Return the shape (B, H, L, S) without batch or head where there is one of them."""
    from attncli.problem.arguments import shape_text

    return shape_text((*(count for count in maps.counts if count > 1), *maps.shape))


def _title(
    drawing: PictureOptions, picked: Picked, average: AverageOptions, merge: MergeOptions
) -> str | None:
    """Return the title of one head, their mean, or a batch entry; a picture of all has its own."""
    words = places(picked.alone)
    if average.average_heads:
        words.append(picked.mean)
    if merge.merge is not None:
        words.append("subwords joined (summed over keys, averaged over queries)")
    if drawing.minus is not None:
        words.append(f"difference from {drawing.minus}")
    return f"Attention {drawing.what}: {', '.join(words)}" if words else None


def _options(
    options: ProblemOptions,
    drawing: PictureOptions,
    pick: PickOptions,
    average: AverageOptions,
    merge: MergeOptions,
) -> dict[str, str]:
    """Return what was asked for, by the names of the options."""
    unasked = vars(PictureOptions())
    looks = {name: value for name, value in vars(drawing).items() if value != unasked[name]}
    looks.pop("out", None)
    return as_metadata(options, {**vars(pick), **vars(merge), **looks}, average)


def _show(picture: Picture, drawing: PictureOptions, run: RunOptions) -> None:
    from attncli.view.blocks.drawing import draw_blocks
    from attncli.view.pictures.sizes import NoRoomError

    try:
        text = draw_blocks(
            picture,
            width=width(),
            height=height(),
            color=color_depth(run.color),
            unicode=shows_unicode(),
            annotate=drawing.annotate,
            digits=drawing.decimals,
            most=_MOST_MAPS if is_terminal() else None,
        )
    except NoRoomError as error:
        raise UsageError(
            f"--annotate: {error}",
            hint="choose a part with --rows and --cols, give fewer --digits, or give --out",
        ) from None
    print_text(text)
