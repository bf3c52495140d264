"""Read images for heatmaps, and the texts in PNG, SVG and PDF pictures.

In SVG and PDF the description holds all texts as one JSON object, which
`attncli.view.figure.metadata` writes.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from html import unescape
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from attncli.errors import InputError
from attncli.loading.source import open_source

if TYPE_CHECKING:
    import numpy.typing as npt

# Pixels: the longer side of a larger image is scaled down to this. A figure of 8 inches has 1200.
_LONGEST = 1600
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# The most characters of a text, and the most texts of a picture.
_MOST_TEXT, _MOST_TEXTS = 1 << 20, 1000
_SVG_START = re.compile(rb"\s*(<\?xml|<!--|<!DOCTYPE svg|<svg)", re.IGNORECASE)
_SVG_TEXT = re.compile(r"<dc:description>([^<]*)</dc:description>")
_PDF_START = b"/Subject ("
# Possessive quantifiers (++): the steps of backtracking would take gigabytes.
_PDF_TEXT = re.compile(rb"((?:[^\\()]++|\\.)*+)\)", re.DOTALL)
_PDF_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def read_image(name: str) -> npt.NDArray[np.uint8]:
    """Return the image of a file as (height, width, 3), upright; a large one is made smaller."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - few commands need it

    source = open_source(name)
    try:
        with warnings.catch_warnings(), source.open() as stream, Image.open(stream) as image:
            # Pillow warns above 90 million pixels and refuses above 180 million.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise InputError(f"{source.name}: the image has too many pixels") from None
    except (OSError, ValueError, SyntaxError):
        raise InputError(f"{source.name}: expected an image, such as PNG or JPEG") from None
    upright.thumbnail((_LONGEST, _LONGEST))
    return np.asarray(upright)


def picture_format(data: bytes) -> Literal["png", "svg", "pdf"] | None:
    """Return the format of a picture by its first bytes; None for anything else."""
    if data.startswith(_PNG_SIGNATURE):
        return "png"
    if data.startswith(b"%PDF-"):
        return "pdf"
    if _SVG_START.match(data.removeprefix(b"\xef\xbb\xbf")) and b"<svg" in data[:4096]:
        return "svg"
    return None


def read_texts(data: bytes) -> dict[str, str]:
    """Return the texts in a picture by their names; empty if there are none."""
    kind = picture_format(data)
    if kind == "svg":
        found = _SVG_TEXT.search(data.decode("utf-8", "replace"))
        return _from_json(unescape(found[1][:_MOST_TEXT])) if found else {}
    if kind == "pdf":
        return _from_json(_pdf_text(data))
    if kind == "png":
        return _png_texts(data)
    raise InputError("the picture is not a PNG, SVG or PDF file")


def _png_texts(data: bytes) -> dict[str, str]:
    """Return the texts before the pixels of a PNG picture."""
    from PIL import Image  # noqa: PLC0415

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            texts = [(name, text) for name, text in image.info.items() if isinstance(text, str)]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise InputError("the PNG picture is damaged, or holds too much") from None
    return {str(name): text[:_MOST_TEXT] for name, text in islice(texts, _MOST_TEXTS)}


def _pdf_text(data: bytes) -> str:
    """Return the subject of a PDF file, without its escapes; empty if there is none."""
    start = data.find(_PDF_START)
    if start < 0:
        return ""
    start += len(_PDF_START)
    found = _PDF_TEXT.match(data, start, start + _MOST_TEXT)
    if found is None:
        return ""
    letters = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
    text = _PDF_ESCAPE.sub(lambda escape: letters.get(escape[1], escape[1]), found[1])
    return text.decode("latin-1")


def _from_json(text: str) -> dict[str, str]:
    """Return the mapping that attncli wrote; a text by another program gets one name."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return {str(name): str(value) for name, value in found.items()}
    return {"Description": text} if text else {}
