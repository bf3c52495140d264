"""``attncli heatmap``: the weights as a picture."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

from typer import BadParameter

from attncli.cli.cluster import ClusterOptions, lazy_maps
from attncli.cli.declaring import (
    MOST_USED,
    PICTURE,
    count,
    number,
    option,
    switch,
)  # fmt: skip
from attncli.cli.drawing import as_metadata, figure_kind, refuse_unknown_map, write_figure
from attncli.cli.options import (
    AverageOptions,
    MergeOptions,
    PickOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.patches import PatchOptions
from attncli.cli.question import Asked, Lazily, ask_or_read, maps_of, refuse_average_of_one
from attncli.cli.terminal import advice, is_terminal, limits, note, print_text, progress_bar
from attncli.errors import ShapeError, UsageError
from attncli.errors.text import label_text, places, quoted

if TYPE_CHECKING:
    from attncli.gather import Finished
    from attncli.numerics.indices import Picked
    from attncli.summaries.maps import Maps
    from attncli.view.pictures.picture import Look, Picture

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
    rollout: Literal["half", "raw"] | None = option(
        PICTURE,
        "[raw]",
        "Draw what reaches each token through all layers: attention rollout, the mean of the heads "
        "with half a residual, multiplied layer by layer; raw leaves out the residual. Takes a "
        "folder of recorded calls, weights (layers, B, H, L, S), or a file for each layer.",
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
    digits: int | None = count(
        PICTURE,
        "N",
        "Decimals of these numbers; significant digits with --log, and where nearly all would "
        "read 0. Default: 2.",
        least=0,
        most=17,
    )
    title: str | None = option(PICTURE, "TEXT", "Title; none where the text is empty.")
    cmap: str | None = option(
        PICTURE,
        "NAME",
        "matplotlib colour map of a file. Default: Blues, and RdBu, from red to blue, for scores "
        "and differences.",
    )
    dpi: int | None = count(
        PICTURE, "N", "Dots per inch of a file. Default: 150.", least=10, most=2400
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
    def look(self) -> Look:
        """The same as a picture takes it."""
        from attncli.view.pictures.picture import Look

        return Look(
            what=self.what,
            vmax=self._end(),
            log=self.log,
            annotate=self.annotate,
            digits=2 if self.digits is None else self.digits,
            cmap=self.cmap,
            dpi=self.dpi or _DPI,
            size=self._inches(),
            font_size=self.font_size or _FONT_SIZE,
            transparent=self.transparent,
            math=self.math,
        )

    def _inches(self) -> tuple[float, float] | None:
        """Return the figure across and up; infinite where any height will do."""
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

    def _end(self) -> float | None:
        """Return the end of the colour scale, or None for auto."""
        if self.vmax == "auto":
            return None
        try:
            found = number(self.vmax)
        except BadParameter as error:
            raise UsageError(f"--vmax: {error.message}, or auto") from None
        if not isfinite(found) or found < _LEAST_END:
            raise UsageError(f"--vmax: expected auto or a number above 0; found {found:g}")
        return found


def heatmap(
    drawing: PictureOptions,
    patches: PatchOptions,
    pick: PickOptions,
    average: AverageOptions,
    merge: MergeOptions,
    options: ProblemOptions,
    cluster: ClusterOptions,
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

    if drawing.out is not None and drawing.out.lower().endswith((".html", ".htm")):
        from attncli.cli.page import write_page

        cluster.refuse("an .html page")
        write_page(drawing, patches, pick, average, merge, options, run)
        return
    outputs = [drawing.out] if drawing.out else []
    more = [drawing.minus] if drawing.minus else []
    refuse_average_of_one(pick, average)
    _refuse_beside(drawing, average, merge)
    _refuse_beside_patches(drawing, patches)
    look = drawing.look
    kind = None if drawing.out is None else figure_kind("--out", drawing.out)
    refuse_unwritable(outputs)
    refuse_unknown_map(drawing.cmap)
    with advice(quiet=run.quiet), ExitStack() as opened:
        chosen = pick if merge.merge is None else PickOptions()
        asked: Asked | Finished | Lazily
        if drawing.rollout is not None:
            from attncli.cli.layers import rolled

            asked = rolled(options, run, residual=drawing.rollout == "half")
        elif _is_lazy(drawing, merge, options, cluster):
            lazy = lazy_maps(drawing.what, pick, options, cluster, run)
            asked = opened.enter_context(lazy)
        else:
            asked = ask_or_read(options, chosen, run, more=more, kind=drawing.what, saved=True)
        if merge.merge is not None and not isinstance(asked, Lazily):
            from attncli.cli.merging import merged

            asked = merged(asked, merge, run)
        others = [split_member(file)[0] for file in (*more, patches.image) if file]
        refuse_inputs(outputs, [*asked.inputs, *others])
        maps, picked = _maps_of(asked, pick, run, drawing)
        title = drawing.title
        if title is None:
            remark = "" if isinstance(asked, Asked) else asked.remark
            title = _title(drawing, patches, maps, picked, average, remark)
        look = replace(
            look,
            title=title,
            image=patches.pixels(),
            smooth=patches.image is not None and not patches.blocks,
            rows=_range("--rows", drawing.rows, maps, "query"),
            columns=_range("--cols", drawing.cols, maps, "key"),
        )
        second = None
        if drawing.minus is not None and not isinstance(asked, Lazily):
            second = _subtrahend(asked, maps, drawing.minus, picked, options)
        picture = _picture(maps, second, look, picked, drawing, patches, average, run)
    if drawing.out is None or kind is None:
        _show(picture, run)
        return
    metadata = _options(options, drawing, patches, pick, average, merge)
    for words in write_figure(picture, drawing.out, kind, metadata):
        note(words, quiet=run.quiet)


def _maps_of(
    asked: Asked | Finished | Lazily, pick: PickOptions, run: RunOptions, drawing: PictureOptions
) -> tuple[Maps, Picked]:
    if isinstance(asked, Lazily):
        return asked.maps, asked.picked
    return maps_of(asked, pick, run, drawing.what)


def _is_lazy(
    drawing: PictureOptions, merge: MergeOptions, options: ProblemOptions, cluster: ClusterOptions
) -> bool:
    """Return whether the weights are computed block by block; refuse what needs all of them."""
    if merge.merge is None and drawing.minus is None:
        return cluster.takes(options)
    cluster.refuse("--merge or --minus")
    return False


def _refuse_beside(drawing: PictureOptions, average: AverageOptions, merge: MergeOptions) -> None:
    """Refuse options that contradict each other."""
    made = "--merge" if merge.merge else "--rollout" if drawing.rollout else None
    if made and (drawing.what == "scores" or drawing.minus is not None):
        raise UsageError(f"{made} is made of weights: leave out --what scores and --minus")
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


def _refuse_beside_patches(drawing: PictureOptions, patches: PatchOptions) -> None:
    """Refuse what is not for the patches of one query."""
    names = ("rows", "cols", "minus")
    other = next((name for name in names if getattr(drawing, name)), None)
    if drawing.what == "scores":
        other = "what scores"
    if patches.grid and other:
        raise UsageError(f"--grid draws weights of one query as patches: leave out --{other}")
    if patches.image and drawing.out is None:
        raise UsageError("--image is only for files: give --out")


def _picture(
    maps: Maps,
    second: Maps | None,
    look: Look,
    picked: Picked,
    drawing: PictureOptions,
    patches: PatchOptions,
    average: AverageOptions,
    run: RunOptions,
) -> Picture:
    """Return the picture of some maps, or of what is left of them, computed some rows at a time."""
    from attncli.engine.averaging import refuse_without_heads
    from attncli.errors import warn
    from attncli.problem.advice import fully_masked_advice
    from attncli.summaries.maps import SINK_NOTE, Computed, Difference, Mean
    from attncli.summaries.patches import PatchMaps
    from attncli.view.pictures.making import difference_picture, picture_of

    if average.average_heads:
        refuse_without_heads(maps.axes)
    with progress_bar(quiet=run.quiet) as progress:
        if second is not None:
            than = str(drawing.minus).rpartition("/")[2]
            picture = difference_picture(Difference(maps, second), look, picked, than, progress)
        else:
            drawn = Mean(maps) if average.average_heads else maps
            if patches.shape is None:
                picture = picture_of(drawn, look, picked, progress=progress)
            else:
                laid = PatchMaps(drawn, patches.query_of(maps), patches.shape)
                picture = picture_of(
                    laid, look, picked, across="Columns", down="Rows", remarks=laid.remarks
                )
    if isinstance(maps, Computed):
        if maps.fully_masked:
            warn(fully_masked_advice(maps.problem, maps.fully_masked))
        if maps.sinks_take and drawing.what == "weights" and second is None:
            picture = replace(picture, remarks=(*picture.remarks, SINK_NOTE))
    return picture


def _range(
    name: str, words: str | None, maps: Maps, of: Literal["query", "key"]
) -> tuple[int, int] | None:
    from attncli.problem.labels import named_range

    if words is None:
        return None
    axis = of == "key"
    return named_range(name, words, maps.shape[2 + axis], maps.labels[axis], of=of)


def _subtrahend(
    asked: Asked | Finished, first: Maps, file: str, picked: Picked, options: ProblemOptions
) -> Maps:
    """Return the finished weights that are subtracted; they may hold only what is picked."""
    from attncli.gather import Finished, advise_on_dtype, gather
    from attncli.problem.arguments import shape_text
    from attncli.problem.labels import advise_on_order
    from attncli.summaries.maps import Given

    second = gather([file], dtype=options.dtype, header=options.header, layer=options.layer)
    if not isinstance(second, Finished):
        raise UsageError(
            f"--minus: expected finished weights; {file} holds a problem",
            hint=f"attncli compute {file} --show weights --save weights.npy makes them",
        )
    advise_on_dtype(options.dtype, bfloat16=asked.bfloat16 or second.bfloat16)
    name = "the weights computed here" if isinstance(asked, Asked) else asked.name
    batched = "h" not in first.axes and not isinstance(picked.head, int)
    second = second._replace(batched=batched if isinstance(asked, Asked) else asked.batched)
    own = Given(second.checked("weights", picked.within(second.counts)))
    if own.shape != first.shape:
        # Without batch or head where there is one of them.
        shapes = [
            shape_text((*(n for n in maps.shape[:2] if n > 1), *maps.shape[2:]))
            for maps in (first, own)
        ]
        raise ShapeError(
            f"{name} and {second.name} have the shapes {' and '.join(shapes)}: "
            "expected weights of the same shape"
        )
    for labels, known in zip((second.query_labels, second.key_labels), first.labels, strict=True):
        advise_on_order(second.name, labels, name, known)
    return own


def _title(
    drawing: PictureOptions,
    patches: PatchOptions,
    maps: Maps,
    picked: Picked,
    average: AverageOptions,
    remark: str,
) -> str | None:
    """Return the title of one head, their mean, or a batch entry; a picture of all has its own."""
    words = places(picked.alone)
    if average.average_heads:
        words.append(picked.mean)
    if remark:
        words.append(remark)
    if patches.grid is not None:
        query = patches.query_of(maps)
        label = "" if maps.labels[0] is None else f" ({label_text(maps.labels[0][query])})"
        words.append(f"query {query}{label}")
    if drawing.minus is not None:
        words.append(f"difference from {drawing.minus}")
    return f"Attention {drawing.what}: {', '.join(words)}" if words else None


def _options(
    options: ProblemOptions,
    drawing: PictureOptions,
    patches: PatchOptions,
    pick: PickOptions,
    average: AverageOptions,
    merge: MergeOptions,
) -> dict[str, str]:
    """Return what was asked for, by the names of the options."""
    unasked = {**vars(PictureOptions()), **vars(PatchOptions())}
    looks = {**vars(drawing), **vars(patches)}
    looks = {n: value for n, value in looks.items() if value != unasked[n] and n != "out"}
    return as_metadata(options, {**vars(pick), **vars(merge), **looks}, average)


def _show(picture: Picture, run: RunOptions) -> None:
    from attncli.view.blocks.drawing import draw_blocks
    from attncli.view.pictures.sizes import NoRoomError

    most = _MOST_MAPS if is_terminal() else None
    try:
        text = draw_blocks(picture, limits(run.color)._replace(heads=most))
    except NoRoomError as error:
        raise UsageError(
            f"--annotate: {error}",
            hint="choose a part with --rows and --cols, give fewer --digits, or give --out",
        ) from None
    print_text(text)
