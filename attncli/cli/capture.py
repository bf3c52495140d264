"""``attncli capture``: run a local Transformers model, and record its attention."""

from __future__ import annotations

from typing import Literal

from typer import BadParameter

from attncli.cli.declaring import MOST_USED, RUN, argument, count, option
from attncli.cli.options import ScreenOptions
from attncli.cli.terminal import advice, note, print_text
from attncli.errors import UsageError


def layer_list(text: str) -> frozenset[int]:
    """Read layers: a list (0,3) or a range (0:4, without 4)."""
    try:
        start, colon, stop = text.partition(":")
        numbers = range(int(start or 0), int(stop)) if colon else map(int, text.split(","))
        found = frozenset(numbers)
    except ValueError:
        found = frozenset()
    if not found or min(found) < 0:
        raise BadParameter(f"expected layers such as 3, 0,3 or 0:4; found {text}")
    return found


class CaptureOptions(ScreenOptions):
    """The model, its text, and the folder of the dumps."""

    model: str | None = argument(
        "A folder with a model of Transformers: config.json, weights, tokenizer. Nothing is "
        "downloaded.",
        "MODEL",
    )
    text: str | None = option(MOST_USED, "TEXT", "What the model reads.")
    prompt_file: str | None = option(MOST_USED, "FILE", "A file with what the model reads.")
    out: str = option(MOST_USED, "FOLDER", "The folder of the dumps.", default="dumps")
    layers: frozenset[int] | None = option(
        MOST_USED, "LIST", "Record these layers only: 3, 0,3 or 0:4.", parser=layer_list
    )
    generate: int = count(
        MOST_USED, "N", "Decode N tokens greedily afterwards.", least=0, default=0
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        RUN, None, "The dtype of the weights. Default: as they are stored."
    )
    device: str = option(RUN, "NAME", "Where the model runs: cpu, cuda, mps.", default="cpu")


def capture(options: CaptureOptions) -> None:
    """Run a local Transformers model, and record its attention.

    Each attention call becomes one file with query, key, value, mask, options and the model's own
    output. Every other command reads the folder: heatmap dumps/ --layer 3.

    Example: attncli capture bert --text "The cat sat on the mat."

    Example: attncli capture llama --prompt-file prompt.txt --generate 5
    """
    from attncli.capture.models import run_model

    if options.model is None:
        raise UsageError(
            "capture needs a folder with a model", hint="attncli capture MODEL --text TEXT"
        )
    text = _text(options)
    with advice(quiet=options.quiet):
        captured = run_model(
            options.model,
            text,
            options.out,
            layers=options.layers,
            dtype=options.dtype,
            device=options.device,
            generate=options.generate,
        )
    if not captured.files:
        raise UsageError(
            "no attention call was recorded",
            hint="leave out --layers, or look at the warnings above",
        )
    print_text(f"{len(captured.files)} calls in {captured.folder}")
    words = f"the dumps hold your text; look at them with attncli info {captured.folder}"
    note(words, quiet=options.quiet)


def _text(options: CaptureOptions) -> str:
    if (options.text is None) == (options.prompt_file is None):
        raise UsageError("capture needs either --text or --prompt-file")
    if options.text is not None:
        return options.text
    from attncli.loading.source import open_source

    return open_source(str(options.prompt_file)).text()
