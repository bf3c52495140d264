"""Which version and options a picture was made with: the texts in PNG, SVG and PDF files.

PNG has named text chunks. In SVG and PDF the whole mapping is one JSON object in the description,
as `attncli.view.figure.metadata` writes it.
"""

from __future__ import annotations

import json
import re
import zlib
from html import unescape
from itertools import islice
from typing import TYPE_CHECKING, Literal

from attncli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["picture_format", "read_texts"]

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# A compressed chunk may claim to unfold to anything; texts are short.
_MOST_TEXT = 1 << 20
_MOST_TEXTS = 1000
_SVG_START = re.compile(rb"\s*(<\?xml|<!--|<!DOCTYPE svg|<svg)", re.IGNORECASE)
_SVG_TEXT = re.compile(r"<dc:description>([^<]*)</dc:description>")
_PDF_START = b"/Subject ("
# Possessive: remembering each step for backtracking would take gigabytes.
_PDF_TEXT = re.compile(rb"((?:[^\\()]++|\\.)*+)\)", re.DOTALL)
_PDF_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def picture_format(data: bytes) -> Literal["png", "svg", "pdf"] | None:
    """Return PNG, SVG or PDF, recognised by the first bytes; None for anything else."""
    if data.startswith(_PNG_SIGNATURE):
        return "png"
    if data.startswith(b"%PDF-"):
        return "pdf"
    if _SVG_START.match(data.removeprefix(b"\xef\xbb\xbf")) and b"<svg" in data[:4096]:
        return "svg"
    return None


def read_texts(data: bytes) -> dict[str, str]:
    """Return the texts that a picture carries, by name; empty if it has none.

    Nothing is run, unfolded without bound, or looked up elsewhere. The first texts are returned:
    not more, nor longer together, than any picture needs.
    """
    kind = picture_format(data)
    if kind == "svg":
        found = _SVG_TEXT.search(data.decode("utf-8", "replace"))
        return _from_json(unescape(found[1][:_MOST_TEXT])) if found else {}
    if kind == "pdf":
        return _from_json(_pdf_text(data))
    if kind is None:
        raise InputError("the picture is not a PNG, SVG or PDF file")
    texts: dict[str, str] = {}
    room = 4 * _MOST_TEXT
    for name, text in islice(_png_texts(data), _MOST_TEXTS):
        room -= len(text)
        if room < 0:
            break
        texts[name] = text
    return texts


def _pdf_text(data: bytes) -> str:
    """Return the subject of a PDF file, without its escapes; empty if there is none."""
    start = data.find(_PDF_START)
    if start < 0:
        return ""
    start += len(_PDF_START)
    found = _PDF_TEXT.match(data, start, start + _MOST_TEXT)
    return _PDF_ESCAPE.sub(_pdf_character, found[1]).decode("latin-1") if found else ""


def _from_json(text: str) -> dict[str, str]:
    """Return the mapping that attncli has written; a text of others as it is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return {str(name): str(value) for name, value in found.items()}
    return {"Description": text} if text else {}


def _pdf_character(escape: re.Match[bytes]) -> bytes:
    return {b"n": b"\n", b"r": b"\r", b"t": b"\t"}.get(escape[1], escape[1])


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and body of each chunk (PNG specification, section 5.3)."""
    place = len(_PNG_SIGNATURE)
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        kind = data[place + 4 : place + 8]
        end = place + 8 + length
        if end + 4 > len(data):
            raise InputError("the PNG picture is cut short")
        yield kind, data[place + 8 : end]
        if kind == b"IEND":
            return
        place = end + 4


def _png_texts(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each textual chunk (PNG specification, section 11.3.3)."""
    for kind, body in _png_chunks(data):
        name, _, rest = body.partition(b"\0")
        key = name.decode("latin-1")
        if kind == b"tEXt":
            yield key, rest.decode("latin-1")
        elif kind == b"zTXt" and rest:
            yield key, _unfold(rest[1:]).decode("latin-1")
        elif kind == b"iTXt" and len(rest) >= 2:
            # Two flags, a language and a translated name stand before the text.
            text = rest[2:].split(b"\0", 2)[-1]
            yield key, (_unfold(text) if rest[0] else text).decode("utf-8", "replace")


def _unfold(data: bytes) -> bytes:
    """Decompress a text, but no more of it than a text may hold."""
    try:
        return zlib.decompressobj().decompress(data, _MOST_TEXT)
    except zlib.error:
        raise InputError("a compressed text in the PNG picture is damaged") from None
