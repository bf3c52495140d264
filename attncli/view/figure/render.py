"""A figure as the bytes of a file, with its metadata, which `info` reads.

PNG has named text chunks. SVG and PDF know only a few names, so there all metadata is one JSON
object in the description.
"""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import TYPE_CHECKING, Literal, TypeAlias

from attncli.errors.text import encodable
from attncli.view.figure.style import drawing_style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

FigureFormat: TypeAlias = Literal["png", "svg", "pdf"]

# The fonts of a text in an SVG. A reader who has none of them gets Verdana, which is as wide.
_FONTS = re.compile(rb'(<text[^>]* style="[^"]*font-family: [^;"]*)')


def render(
    figure: Figure,
    file_format: FigureFormat,
    *,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a figure as the bytes of a file; the same figure is the same bytes."""
    buffer = BytesIO()
    with drawing_style():
        figure.savefig(
            buffer,
            format=file_format,
            dpi=figure.dpi,
            metadata=_metadata(metadata or {}, file_format),
        )
    drawn = buffer.getvalue()
    return drawn if file_format != "svg" else _FONTS.sub(rb"\1, Verdana, sans-serif", drawn)


def _metadata(metadata: Mapping[str, str], file_format: FigureFormat) -> dict[str, object]:
    """Return what ``savefig`` takes, without dates and Matplotlib's version."""
    if file_format == "png":
        return {"Software": None} | {name: encodable(text) for name, text in metadata.items()}
    # Only ASCII needs no second encoding in a PDF string.
    text = json.dumps(dict(metadata))
    if file_format == "svg":
        return {"Date": None, "Creator": None, "Description": text}
    return {"CreationDate": None, "Creator": None, "Producer": None, "Subject": text}
