"""Which version and options made a picture: written into the file, and read by `info`.

PNG has named text chunks. SVG and PDF know only a few names, so there the whole
mapping is one JSON object in the description.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypeAlias

from attncli.text import encodable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FigureFormat", "savefig_metadata"]

FigureFormat: TypeAlias = Literal["png", "svg", "pdf"]


def savefig_metadata(metadata: Mapping[str, str], file_format: FigureFormat) -> dict[str, object]:
    """Return the metadata as matplotlib's ``savefig`` wants it for a format.

    Dates and matplotlib's own version are left out: the same picture is the same bytes.
    """
    if file_format == "png":
        return {"Software": None} | {name: encodable(text) for name, text in metadata.items()}
    # Only ASCII needs no second encoding in a PDF string.
    text = json.dumps(dict(metadata))
    if file_format == "svg":
        return {"Date": None, "Creator": None, "Description": text}
    return {"CreationDate": None, "Creator": None, "Producer": None, "Subject": text}
