"""Markdown read by another reader: headings, paragraphs and tables as they are shown."""

from __future__ import annotations

from typing import Any

import pytest


def blocks(document: str) -> list[tuple[str, Any]]:
    """Return ("h2", text), ("p", text) and ("table", rows of cells) in their order."""
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    found: list[tuple[str, Any]] = []
    kind, inside = "", False
    for token in parser.parse(document):
        if token.type in ("table_open", "table_close"):
            inside = token.type == "table_open"
            found += [("table", [])] * inside
        elif token.type == "tr_open":
            found[-1][1].append([])
        elif token.type == "inline":
            text = "".join(child.content for child in token.children)
            if inside:
                found[-1][1][-1].append(text)
            else:
                found.append((kind, text))
        elif token.type.endswith("_open"):
            kind = token.tag
    return found
