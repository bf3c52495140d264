"""Read YAML as the plain notation for lists and mappings that it is in these files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attncli.loading.pack import contents
from attncli.loading.tree import MAX_EVENTS, Document, Event, at_most, build, no_collection
from attncli.text import printable, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

    from attncli.loading.contents import Contents
    from attncli.loading.source import Source

__all__ = ["read_yaml"]

# Bytes: far more than the numbers take that YAML may hold.
_LONGEST = 64 * 2**20
_TAG_LINE = re.compile(r"^%TAG\b", re.MULTILINE)


def read_yaml(source: Source) -> Contents:
    """Read a YAML document: nested lists are arrays, a mapping is a problem.

    Numbers are those of the other text formats, so that ``1e-3`` is a number,
    ``010`` is ten and ``1:30`` is a word; ``.inf`` and ``.nan`` are numbers too.
    Aliases, anchors, tags, keys that stand twice, several documents and absurd
    depth are refused as soon as they are met.

    Parameters
    ----------
    source : Source

    Returns
    -------
    LoadedArray or LoadedMapping

    Raises
    ------
    InputError
        With the line and column of what cannot be read.
    """
    document = Document(source, source.text(_LONGEST))
    _refuse_tag_lines(document)
    what = (
        f"expected at most {MAX_EVENTS:,} in YAML, each number counted once and each list twice; "
        "found more"
    )
    hint = "save large arrays as NPY or NPZ, which a problem in YAML may name"
    events = at_most(document, _events(document), what, hint=hint)
    with no_collection():
        root = build(document, events)
        for _ in events:  # what follows may be wrong as well
            pass
        return contents(document, root)


def _events(document: Document) -> Iterator[Event]:
    import yaml  # noqa: PLC0415

    brackets = {
        yaml.SequenceStartEvent: "[",
        yaml.SequenceEndEvent: "]",
        yaml.MappingStartEvent: "{",
        yaml.MappingEndEvent: "}",
    }
    started = False
    for event in _parsed(document):
        offset = 0 if event.start_mark is None else event.start_mark.index
        if isinstance(event, yaml.NodeEvent):
            _refuse_indirection(document, event, offset)
        if isinstance(event, yaml.ScalarEvent):
            yield "value", event.value, event.implicit[0], offset
        elif type(event) in brackets:
            yield brackets[type(event)], "", False, offset
        elif isinstance(event, yaml.DocumentStartEvent):
            if started:
                raise document.refusal("expected one document; found a second", offset)
            started = True
    if not started:
        raise document.refusal("expected a list or a mapping; found only comments", 0)


def _parsed(document: Document) -> Iterator[yaml.Event]:
    import yaml  # noqa: PLC0415

    # Events, never nodes: composing them recurses, and crashes the process in C.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(document.text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        offset = 0 if mark is None else mark.index
        problem = printable(error.problem or error.context or "")
        # libyaml reads ahead; from PyYAML 6.0.4 it may refuse 1,000 levels before any is yielded.
        if "nesting depth" in problem:
            raise document.too_deep(offset) from error
        hint = (
            "indent with spaces, not with tabs"
            if document.text[offset : offset + 1] == "\t"
            else None
        )
        raise document.refusal(f"this is not YAML: {problem}", offset, hint=hint) from error
    except yaml.reader.ReaderError as error:
        raise document.refusal(
            f"this is not YAML: {error.reason}", max(error.position, 0)
        ) from error


def _refuse_tag_lines(document: Document) -> None:
    # libyaml compares each of them with all before it, and no tag is read anyway.
    found = _TAG_LINE.search(document.text)
    if found is not None:
        raise document.refusal("tags such as '%TAG' declares are not read", found.start())


def _refuse_indirection(document: Document, event: yaml.NodeEvent, offset: int) -> None:
    import yaml  # noqa: PLC0415

    if isinstance(event, yaml.AliasEvent):
        raise document.refusal(f"aliases such as {quoted(f'*{event.anchor}')} are not read", offset)
    if event.anchor is not None:
        raise document.refusal(f"anchors such as {quoted(f'&{event.anchor}')} are not read", offset)
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise document.refusal(f"tags such as {quoted(tag)} are not read", offset)
