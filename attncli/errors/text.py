"""Words of a user or a file, made safe to show in a message or a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Controls move the cursor or hide text, bidirectional overrides reorder it, and
# lone surrogates cannot be encoded at all, U+FFFE and U+FFFF not in XML. Joiners stay: emoji and
# scripts need them.
# Not compiled before it is needed: that takes a millisecond.
_UNSAFE = "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
# Characters of a word that a message shows.
_QUOTED = 40
# A whole number of at most 400 digits: float64 has up to 309, and Python reads at most 4,300.
_WHOLE = r"\s*([-+]?)0*([0-9]{1,400})\s*"


def encodable(text: str) -> str:
    """Return a text with lone surrogates escaped, which no text file can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def first_few(words: Sequence[str], most: int = 8) -> str:
    """Return the first of some words with commas, and an ellipsis for the others.

    >>> first_few(["q", "k", "v"], 2), first_few(["q", "k"], 2)
    ('q, k, …', 'q, k')
    """
    return ", ".join(words[:most]) + (", …" if len(words) > most else "")


def number_words(number: int) -> str:
    """Return the digits of a whole number, or words if it has too many for Python."""
    try:
        return str(number)
    except ValueError:
        return "a number of thousands of digits"


def number_hint(text: str) -> str | None:
    """Return the hint for a formula in the place of a number."""
    formula = any(sign in text for sign in ("/", "*", "^", "√", "sqrt"))
    return "formulas are not computed: write the number itself" if formula else None


def printable(text: str) -> str:
    r"""Escape what a terminal would obey or cannot show: controls and lone surrogates.

    A byte of a file name that is no UTF-8 comes back as that byte.

    >>> print(printable("a\x1b[31m.csv"))
    a\x1b[31m.csv
    """
    return text if text.isprintable() else re.sub(_UNSAFE, _escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8 (PEP 383)
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def label_text(label: str) -> str:
    """Return a label as it is shown: printable, with visible signs if it is blank or empty.

    >>> label_text("the cat"), label_text("  "), label_text("")
    ('the cat', '␣␣', '""')
    """
    return printable(label) if label.strip(" ") else "␣" * len(label) or '""'


def labelled(index: int, label: str | None) -> str:
    """Return an index, and its label if it has one.

    >>> labelled(1, "cat"), labelled(0, ""), labelled(0, None)
    ('1 (cat)', '0 ("")', '0')
    """
    return f"{index}" if label is None else f"{index} ({label_text(label)})"


def in_ascii(text: str, signs: Mapping[str, str]) -> str:
    r"""Return a text in ASCII: with ``signs`` replaced, and other characters escaped.

    >>> print(in_ascii("−∞ …", {"−": "-", "…": ".."}))
    -\u221e ..
    """
    if text.isascii():
        return text
    for sign, instead in signs.items():
        text = text.replace(sign, instead)
    return text.encode("ascii", "backslashreplace").decode("ascii")


def json_text(data: object) -> str:
    r"""Return data as JSON with all letters as they are, and terminal controls escaped.

    >>> print(json_text(["中文", "a\x9b2J"]))
    [
     "中文",
     "a\u009b2J"
    ]
    """
    import json  # noqa: PLC0415 - most runs have none

    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    # Line breaks are the layout's: json escapes those in words itself.
    return re.sub(_UNSAFE, lambda sign: "\n" if sign[0] == "\n" else f"\\u{ord(sign[0]):04x}", text)


def quoted(text: str) -> str:
    """Return the text escaped, in quotes, and cut to about 40 characters.

    >>> quoted("0,5 m")
    "'0,5 m'"
    """
    short = text if len(text) <= _QUOTED else text[: _QUOTED - 1] + "…"
    return f"'{printable(short)}'"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number with its noun in the right form.

    >>> counted(1, "cell"), counted(3, "cell"), counted(2, "entry", "entries")
    ('1 cell', '3 cells', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def places(where: Mapping[str, int | None]) -> list[str]:
    """Return the name and the index of each axis that has an index.

    >>> places({"batch": None, "head": 2})
    ['head 2']
    """
    return [f"{axis} {index}" for axis, index in where.items() if index is not None]


def did_you_mean(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return a hint with the known word nearest to a wrong one; None if no single word is nearest.

    ``likeness`` is the least similarity, from 0 to 1 (the same word).

    >>> did_you_mean("Wieghts", ["weights", "context"])
    'did you mean weights?'
    """
    # Only an error pays for the import.
    from difflib import SequenceMatcher, get_close_matches  # noqa: PLC0415

    # A single letter is as near to any name of two, and a long text takes long to compare.
    if not 1 < len(word) <= _QUOTED:
        return None
    spelt = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), spelt, n=2, cutoff=likeness)
    alike = [SequenceMatcher(None, name, word.lower()).ratio() for name in close]
    if not close or alike[1:] == alike[:1]:  # none, or two that are as near
        return None
    return f"did you mean {printable(spelt[close[0]])}?"


def whole_number(text: str) -> int | None:
    """Read a whole number in the digits 0 to 9; None for any other text.

    >>> whole_number("-012"), whole_number("1.0"), whole_number("1_000"), whole_number("१")
    (-12, None, None, None)
    """
    match = re.fullmatch(_WHOLE, text)
    return None if match is None else int(match[1] + match[2])
