"""A list of words in a file, as tokenizers' tokens are saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors import InputError
from attncli.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.loading.source import Source

__all__ = ["listed_words"]

_YAML = (".yaml", ".yml")


def listed_words(source: Source, text: str) -> tuple[str, ...] | None:
    """Return the words of a list in JSON or YAML; None of any other text.

    Parameters
    ----------
    source : Source
        By whose suffix a text is JSON or YAML; any other may be a list of quoted words.
    text : str

    Raises
    ------
    InputError
        A file that is named as JSON or YAML holds something else than words and numbers.
    """
    if source.suffix not in (".json", *_YAML):
        words = _from_json(text, number=float) if text.lstrip().startswith("[") else None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return tuple(words)
        return None
    found = _from_yaml(text) if source.suffix in _YAML else _from_json(text, number=str)
    if isinstance(found, dict):
        lists = [str(name) for name, entry in found.items() if isinstance(entry, list)]
        raise InputError(
            f"{source.name}: expected a list of labels; found a mapping",
            hint=f"name one of its entries, as {source.name}#{printable(lists[0])}"
            if lists
            else None,
        )
    if not isinstance(found, list):
        return None
    strange = [repr(word) for word in found if not isinstance(word, str)]
    if strange:
        raise InputError(f"{source.name}: expected a list of words; found {strange[0]:.40} in it")
    return tuple(found)


def _from_json(text: str, *, number: Callable[[str], object]) -> object:
    """Return what JSON says, and what is made of its numbers; None where it is none."""
    import json  # noqa: PLC0415 - labels seldom are

    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError):
        return None


def _from_yaml(text: str) -> object:
    """Return what YAML says, every scalar as it is written; None where it is none."""
    import yaml  # noqa: PLC0415 - as above

    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes nothing but text
    except (yaml.YAMLError, RecursionError):
        return None
