"""``attncli heatmap``: the weights as a picture."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from typer import BadParameter

from attncli.cli.cluster import ClusterOptions, lazy_maps
from attncli.cli.declaring import (
    MOST_USED,
    PICTURE,
    Rule,
    between,
    count,
    number,
    option,
    switch,
)
from attncli.cli.drawing import figure_kind, refuse_unknown_map, write_figure, write_page
from attncli.cli.options import AverageOptions, MergeOptions
from attncli.cli.question import Asked, ask_or_join, maps_of
from attncli.cli.terminal import advice, is_terminal, limits, print_text, progress_bar
from attncli.errors import ShapeError, UsageError
from attncli.errors.text import label_text, places, quoted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attncli.gather import Finished
    from attncli.numerics.indices import Picked
    from attncli.summaries.maps import Maps
    from attncli.view.page import Patches
    from attncli.view.pictures.picture import Look, Picture

# Characters; Matplotlib takes seconds for a longer title, and no picture has room for it.
_LONGEST_TITLE = 2000
# The least and the most inches of a side, and how inches are written.
_LEAST, _MOST, _INCHES = 1.0, 100.0, r"\d+(?:\.\d*)?|\.\d+"
# Most maps in a terminal; more would scroll away.
_MOST_MAPS = 16
# The least --vmax: below it, numbers underflow with --log.
_LEAST_END = 1e-300


def _end(text: str) -> float | None:
    """Read the end of the colour scale; None for auto."""
    if text == "auto":
        return None
    with suppress(BadParameter):
        if _LEAST_END <= (found := number(text)) < inf:
            return found
    raise BadParameter(f"expected auto or a number above 0; found {text!r}")


class HeatmapOptions(AverageOptions, MergeOptions, ClusterOptions):
    """What is drawn, and where it goes."""

    COMBINATIONS: tuple[Rule, ...] = (
        Rule("cmap dpi size font_size transparent math image", "it is only for files", needs="out"),
        Rule("query image blocks", "it is for patches, as in 14x14", needs="grid"),
        Rule("blocks", "without an image, patches are blocks anyway", needs="image"),
        Rule("grid", "it draws the weights of one query", excludes="rows cols minus what"),
        Rule("merge rollout", "it draws weights alone", excludes="what minus"),
        Rule("what", "only weights are averaged or subtracted", excludes="average_heads minus"),
        Rule("minus", "heads are subtracted one by one", excludes="average_heads"),
        Rule("log", "negative numbers have no logarithm", excludes="what minus"),
        Rule("merge minus rollout", "all weights are needed at once", excludes="workers scheduler"),
    )

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
    log: bool = switch(PICTURE, "Logarithmic colour scale.")
    vmax: float | None = option(
        PICTURE,
        "auto|X",
        "Weight of the darkest blue; scores and differences are drawn from -X, red, to X, blue. "
        "Default: auto, the largest, of weights less if only a few are large.",
        parser=_end,
    )
    annotate: bool | None = option(
        PICTURE,
        None,
        "Numbers in the cells. Default: in small matrices only.",
        "--annotate/--no-annotate",
    )
    digits: int = count(
        PICTURE,
        "N",
        "Decimals of these numbers; significant digits with --log, and where nearly all would "
        "read 0.",
        least=0,
        most=17,
        default=2,
    )
    title: str | None = option(PICTURE, "TEXT", "Title; none where the text is empty.")
    cmap: str | None = option(
        PICTURE,
        "NAME",
        "matplotlib colour map of a file. Default: Blues, and RdBu, from red to blue, for scores "
        "and differences.",
    )
    dpi: int = count(PICTURE, "N", "Dots per inch of a file.", least=10, most=2400, default=150)
    size: str | None = option(
        PICTURE,
        "W or WxH",
        "Inches of a file's picture: its width, 3.3 for a column of text, or width and height, "
        "13.3x7.5 for a slide. Default: by the number of cells.",
    )
    font_size: float = option(
        PICTURE,
        "PT",
        "Size of a file's labels in points; titles are larger.",
        parser=between(1, 100),
        default=9,
    )
    transparent: bool = switch(PICTURE, "No background in a file.")
    math: bool = switch(
        PICTURE, "Read $...$ in a file's title and labels as formulas. Default: text as it is."
    )
    grid: str | None = option(
        PICTURE,
        "RxC",
        "Draw the weights of one query as a grid of patches, row by row: 14x14. A class token in "
        "front of them is left out.",
    )
    query: str | None = option(
        PICTURE, "I or LABEL", "The query of --grid. Default: 0, where models have a class token."
    )
    image: str | None = option(
        PICTURE, "FILE", "Lay the grid over the image that the patches were cut from."
    )
    blocks: bool = switch(PICTURE, "Over an image, fill each patch evenly. Default: smooth.")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if len(self.title or "") > _LONGEST_TITLE:
            raise UsageError(f"--title: expected at most {_LONGEST_TITLE:,} characters")
        if self.grid is not None and self.shape is None:
            raise UsageError(
                f"--grid: expected rows and columns, as in 14x14; found {quoted(self.grid)}"
            )

    @property
    def also_read(self) -> list[str]:
        """The file of --minus."""
        return [self.minus] if self.minus else []

    @property
    def look(self) -> Look:
        """The look that the options ask for; title, image and crop are added later."""
        from attncli.view.pictures.picture import Look

        taken = "what vmax log annotate digits cmap dpi font_size transparent math"
        return Look(size=self._inches(), **{name: vars(self)[name] for name in taken.split()})

    def _inches(self) -> tuple[float, float] | None:
        """Return width and height; the height is infinite if only the width is given."""
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
    def shape(self) -> tuple[int, int] | None:
        """Rows and columns; None without a grid."""
        found = re.fullmatch(r"([1-9]\d{0,3})[x×X]([1-9]\d{0,3})", self.grid or "")
        return (int(found[1]), int(found[2])) if found else None

    def query_of(self, maps: Maps) -> int:
        """Return the index of the query."""
        from attncli.problem.labels import named_index

        if self.query is None:
            return 0
        return named_index("--query", self.query, maps.shape[2], maps.labels[0], of="query")

    def pixels(self) -> npt.NDArray[np.uint8] | None:
        """Return the image (height, width, 3)."""
        from attncli.loading.pictures import read_image

        return None if self.image is None else read_image(self.image)

    def on_page(self, keys: int) -> Patches | None:
        """Return the patches of the keys, as a page takes them."""
        from attncli.summaries.maps import first_patch
        from attncli.view.page import Patches, image_address

        if self.shape is None:
            return None
        pixels = self.pixels()
        image = "" if pixels is None else image_address(pixels)
        return Patches(self.shape, first_patch(keys, self.shape), image, not self.blocks)


def heatmap(options: HeatmapOptions) -> None:
    """Draw the weights: darker blue is stronger attention.

    It takes the same problems as compute, or finished weights: one file of numbers, or what
    compute writes with --save or --format; with --what scores, finished scores.

    Example: attncli heatmap q.csv k.csv --out weights.png

    Example: attncli heatmap q.csv k.csv --out weights.html

    Example: attncli heatmap layer.npz --causal --head 0:4 --tokens tokens.txt
    """
    from attncli.loading import split_member
    from attncli.save.files import refuse_inputs, refuse_unwritable

    if (options.out or "").lower().endswith((".html", ".htm")):
        write_page(options)
        return
    outputs = [options.out] if options.out else []
    look = options.look
    if options.out is not None:
        figure_kind(options.out, "--out", ", or an .html page")
    refuse_unwritable(outputs)
    refuse_unknown_map(options.cmap)
    with advice(quiet=options.quiet), ExitStack() as opened:
        maps: Maps
        second, remark = None, ""
        if not (options.rollout or options.merge or options.minus) and options.takes():
            maps, picked, inputs = opened.enter_context(lazy_maps(options))
        else:
            asked = ask_or_join(options, saved=True)
            inputs, remark = asked.inputs, asked.remark
            maps, picked = maps_of(asked, options)
            if options.minus is not None:
                second = _subtrahend(asked, maps, options.minus, picked, options)
        others = [split_member(file)[0] for file in (options.minus, options.image) if file]
        refuse_inputs(outputs, [*inputs, *others])
        title = _title(options, maps, picked, remark) if options.title is None else options.title
        look = replace(
            look,
            title=title,
            image=options.pixels(),
            smooth=options.image is not None and not options.blocks,
            rows=_range("--rows", options.rows, maps, "query"),
            columns=_range("--cols", options.cols, maps, "key"),
        )
        picture = _picture(maps, second, look, picked, options)
    if options.out is None:
        _show(picture, options)
    else:
        write_figure(picture, options.out, options)


def _picture(
    maps: Maps, second: Maps | None, look: Look, picked: Picked, options: HeatmapOptions
) -> Picture:
    from attncli.engine.averaging import refuse_without_heads
    from attncli.errors import warn
    from attncli.problem.advice import fully_masked_advice
    from attncli.summaries.maps import SINK_NOTE, Computed, Difference, Mean, PatchMaps
    from attncli.view.pictures.making import difference_picture, picture_of

    if options.average_heads:
        refuse_without_heads(maps.axes)
    with progress_bar(quiet=options.quiet) as progress:
        drawn = Mean(maps) if options.average_heads else maps
        if options.shape is not None:
            drawn = PatchMaps(drawn, options.query_of(maps), options.shape)
        if second is None:
            picture = picture_of(drawn, look, picked, progress)
        else:
            than = str(options.minus).rpartition("/")[2]
            picture = difference_picture(Difference(maps, second), look, picked, than, progress)
    if isinstance(maps, Computed):
        if maps.fully_masked:
            warn(fully_masked_advice(maps.problem, maps.fully_masked))
        if maps.sinks_take and options.what == "weights" and second is None:
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
    asked: Asked | Finished, first: Maps, file: str, picked: Picked, options: HeatmapOptions
) -> Maps:
    # The file of --minus may hold only the picked batch entries and heads.
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
    batched = "h" not in first.axes and not isinstance(picked.head, int)
    second = second._replace(batched=batched if isinstance(asked, Asked) else asked.batched)
    own = Given(second.checked("weights", picked.within(second.counts)))
    if own.shape != first.shape:
        # Without axes of length 1.
        shapes = [
            shape_text((*(n for n in maps.shape[:2] if n > 1), *maps.shape[2:]))
            for maps in (first, own)
        ]
        raise ShapeError(
            f"{asked.name} and {second.name} have the shapes {' and '.join(shapes)}: "
            "expected weights of the same shape"
        )
    for labels, known in zip((second.query_labels, second.key_labels), first.labels, strict=True):
        advise_on_order(second.name, labels, asked.name, known)
    return own


def _title(options: HeatmapOptions, maps: Maps, picked: Picked, remark: str) -> str | None:
    """Return the title, or None where each map has its own."""
    words = places(picked.alone)
    if options.average_heads:
        words.append(picked.mean)
    if remark:
        words.append(remark)
    if options.grid is not None:
        query = options.query_of(maps)
        label = "" if maps.labels[0] is None else f" ({label_text(maps.labels[0][query])})"
        words.append(f"query {query}{label}")
    if options.minus is not None:
        words.append(f"difference from {options.minus}")
    return f"Attention {options.what}: {', '.join(words)}" if words else None


def _show(picture: Picture, options: HeatmapOptions) -> None:
    from attncli.view.blocks.drawing import draw_blocks
    from attncli.view.pictures.sizes import NoRoomError

    most = _MOST_MAPS if is_terminal() else None
    try:
        text = draw_blocks(picture, limits(options.color)._replace(heads=most))
    except NoRoomError as error:
        raise UsageError(
            f"--annotate: {error}",
            hint="choose a part with --rows and --cols, give fewer --digits, or give --out",
        ) from None
    print_text(text)
