"""Read YAML: lists, mappings and scalars, without tags."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attncli.errors.names import LABELS
from attncli.errors.text import printable, quoted, whole_number
from attncli.loading.documents import MAX_DEPTH, Document, Path, contents
from attncli.loading.number import NumberOverflowError, is_numeric, parse_number
from attncli.loading.source import no_collection

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

    from attncli.errors import InputError
    from attncli.loading.contents import Contents
    from attncli.loading.source import Source

# Numbers, words and lists, with aliases expanded; the parser takes two microseconds for each.
_MOST = 300_000
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_WORDS |= {"True": True, "False": False, "TRUE": True, "FALSE": False, "Null": None, "NULL": None}
_DOTTED = re.compile(r"[-+]?\.(?:inf|nan)", re.IGNORECASE)
_TAG_LINE = re.compile(r"^%TAG\b", re.MULTILINE)


def read(source: Source) -> Contents:
    """Read a YAML document: nested lists are arrays, a mapping is a problem.

    Numbers are written as in the other text formats: ``1e-3`` is a number, ``010`` is ten, and
    ``1:30`` is a word.
    """
    document = Document(source, source.text(), _find)
    with no_collection():
        return contents(document, _Tree(document).read())


def yaml_words(source: Source, text: str) -> Any:
    """Parse YAML, with all scalars as text."""
    return _Tree(Document(source, text, _find), words=True).read()


class _Tree:
    """Builds a tree from the parser's events; an alias shares the value of its anchor."""

    def __init__(self, document: Document, *, words: bool = False) -> None:
        self._document, self._words = document, words
        self._events = _events(document)
        # The value of each anchor, and the number of items in it.
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = 0

    def read(self) -> Any:
        """Return the tree of lists, mappings and scalars."""
        root = self._node(next(self._events), 0, words=self._words)
        for event in self._events:
            raise self._refusal("expected one document; found a second", event)
        return root

    def _refusal(self, what: str, event: Any) -> InputError:
        return self._document.refusal(what, _offset(event))

    def _node(self, event: Any, depth: int, *, words: bool) -> Any:
        kind, before = type(event).__name__, self._count
        if kind == "AliasEvent":
            return self._alias(event)
        self._add(1, event)
        if event.tag is not None:
            raise self._refusal(f"tags such as {quoted(event.tag)} are not read", event)
        if event.anchor in self._anchors:
            raise self._refusal(f"the anchor {quoted(event.anchor)} is defined again", event)
        value: Any
        if kind == "ScalarEvent":
            plain = event.implicit[0] and not words
            value = self._scalar(event.value, event) if plain else event.value
        elif depth >= MAX_DEPTH:
            raise self._document.too_deep(_offset(event))
        elif kind == "SequenceStartEvent":
            value = [self._item(item, depth, words=words) for item in self._until("SequenceEnd")]
        else:
            value = self._mapping(depth, words=words)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._count - before
        return value

    def _until(self, end: str) -> Iterator[Any]:
        """Yield the events of the items of a list or a mapping."""
        for event in self._events:
            if type(event).__name__ == f"{end}Event":
                return
            yield event

    def _item(self, event: Any, depth: int, *, words: bool) -> Any:
        if type(event).__name__ == "ScalarEvent" and event.implicit[0] and not event.value:
            # An empty item is null in YAML, and null is −inf.
            raise self._refusal("expected a number or a word; found nothing", event)
        return self._node(event, depth + 1, words=words)

    def _mapping(self, depth: int, *, words: bool) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for event in self._until("MappingEnd"):
            if type(event).__name__ != "ScalarEvent":
                what = "expected a word as the key; found a list or a mapping"
                raise self._refusal(what, event)
            name = str(self._node(event, depth + 1, words=True))
            if name in entries:
                what = f"the key {quoted(name)} appears here a second time"
                raise self._refusal(what, event)
            labels = words or (not depth and name in LABELS)
            entries[name] = self._node(next(self._events), depth + 1, words=labels)
        return entries

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            what = f"the alias {quoted(f'*{event.anchor}')} has no anchor above it"
            raise self._refusal(what, event)
        value, count = self._anchors[event.anchor]
        self._add(count, event)
        return value

    def _add(self, count: int, event: Any) -> None:
        self._count += count
        if self._count > _MOST:
            raise self._document.refusal(
                f"expected at most {_MOST:,} numbers, words and lists in YAML, with aliases "
                "expanded; found more",
                _offset(event),
                hint="save large arrays as NPY or NPZ, which a problem in YAML may name",
            )

    def _scalar(self, text: str, event: Any) -> object:
        """Return a number, true, false, None or a word for a plain scalar."""
        if text in _WORDS:
            return _WORDS[text]
        try:
            number = parse_number(text)
        except NumberOverflowError as error:
            raise self._refusal(str(error), event) from None
        if number is not None:
            whole = whole_number(text) if number.is_integer() else None
            return number if whole is None else whole
        if _DOTTED.fullmatch(text):
            return float(text.replace(".", "", 1))
        if is_numeric(text):
            what = f"expected a number in digits 0 to 9, without underscores; found {quoted(text)}"
            hint = "if it is a word, put it in quotes"
            raise self._document.refusal(what, _offset(event), hint=hint)
        return text


def _offset(event: Any) -> int:
    return 0 if event.start_mark is None else int(event.start_mark.index)


def _loader() -> Any:
    import yaml  # noqa: PLC0415 - most runs read none

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _events(document: Document) -> Iterator[Any]:
    """Yield the events of nodes, and the starts of further documents."""
    import yaml  # noqa: PLC0415

    # libyaml compares each %TAG with all before it, and tags are refused anyway.
    found = _TAG_LINE.search(document.text)
    if found is not None:
        raise document.refusal("tags such as '%TAG' declares are not read", found.start())
    first = True
    try:
        # Events, not nodes: libyaml composes nodes recursively, and deep ones crash the process.
        for event in yaml.parse(document.text, Loader=_loader()):
            if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                yield event
            elif isinstance(event, yaml.DocumentStartEvent):
                if not first:
                    yield event
                first = False
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(document, error) from error
    except yaml.reader.ReaderError as error:
        what = f"this is not YAML: {error.reason}"
        raise document.refusal(what, max(error.position, 0)) from error
    if first:
        raise document.refusal("expected a list or a mapping; found only comments", 0)


def _not_yaml(document: Document, error: yaml.MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    offset = 0 if mark is None else mark.index
    problem = printable(error.problem or error.context or "")
    # From PyYAML 6.0.4 on, libyaml may refuse 1,000 levels before it yields the first.
    if "nesting depth" in problem:
        return document.too_deep(offset)
    tab = document.text[offset : offset + 1] == "\t"
    hint = "indent with spaces, not with tabs" if tab else None
    return document.refusal(f"this is not YAML: {problem}", offset, hint=hint)


def _find(document: Document, path: Path) -> int:
    """Return the offset of an item."""
    import yaml  # noqa: PLC0415

    node: Any = yaml.compose(document.text, Loader=_loader())
    for step in path:
        if isinstance(node, yaml.MappingNode):
            node = next(value for key, value in node.value if key.value == step)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
    return _offset(node)
