"""Write results as a JSON or YAML mapping: exact numbers, one line for each row of a matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import OutputError
from attncli.errors.names import SCHEMA
from attncli.save.tables import number_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    import numpy.typing as npt

    from attncli.save.formats import Results

# A single digit before an exponent, as in 1e-05.
_WHOLE = re.compile(r"[ -]\d(?=e)")


class _Notation(NamedTuple):
    """How JSON or YAML writes numbers and escapes characters."""

    numbers: Callable[[str], str]
    escape: Callable[[str], str]


def write_json(stream: BinaryIO, results: Results) -> None:
    """Write everything as one JSON object, see `attncli.save.formats.write`."""
    entries = [*_entries(results)]
    if not all(_json_has(value) for _, value in entries):  # checked before anything is written
        raise OutputError(
            "JSON cannot write inf or nan, but the results hold one of them",
            hint="use .npy, .csv or .yaml, or keep the scores in range",
        )
    before = "{\n"
    for name, value in entries:
        stream.write(f'{before}  "{name}": '.encode())
        stream.writelines(part.encode() for part in _parts(value, _JSON))
        before = ",\n"
    stream.write(b"\n}\n")


def write_yaml(stream: BinaryIO, results: Results) -> None:
    """Write everything as one YAML mapping, see `attncli.save.formats.write`."""
    for name, value in _entries(results):
        stream.write(f"{name}: ".encode())
        stream.writelines(part.encode() for part in _parts(value, _YAML))
        stream.write(b"\n")


def _json_has(value: object) -> bool:
    """Return whether JSON can write all numbers of a value; −inf becomes null."""
    if isinstance(value, Mapping):
        return all(map(_json_has, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_json_has, value))
    if isinstance(value, np.ndarray | float | np.floating):
        return bool(np.max(value, initial=-np.inf) < np.inf)
    return True


def _entries(results: Results) -> Iterator[tuple[str, object]]:
    yield "schema", SCHEMA
    yield from results.arrays.items()
    for name in ("query_labels", "key_labels"):
        labels = getattr(results, name)
        if labels is not None:
            yield name, labels
    if results.layout is not None:
        yield "layout", results.layout
    yield from results.extra.items()


def _parts(value: object, notation: _Notation) -> Iterator[str]:
    """Yield the text of a value in parts; only matrices take several lines."""
    if isinstance(value, np.ndarray) and value.ndim:
        yield from _array_parts(value, notation, "  ")
    elif isinstance(value, Mapping):
        entries = ((_quoted(str(key), notation) + ": ", item) for key, item in value.items())
        yield from _enclosed("{", entries, "}", notation)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from _enclosed("[", (("", item) for item in value), "]", notation)
    else:
        yield _scalar(value, notation)


def _enclosed(
    opening: str, entries: Iterator[tuple[str, object]], closing: str, notation: _Notation
) -> Iterator[str]:
    yield opening
    before = ""
    for name, item in entries:
        yield before + name
        yield from _parts(item, notation)
        before = ", "
    yield closing


def _array_parts(array: npt.NDArray[Any], notation: _Notation, indent: str) -> Iterator[str]:
    if array.ndim == 1:
        yield f"[{_line(array, notation)}]"
        return
    before = "[\n"
    if array.ndim == 2:
        for line in number_lines(array, ", "):
            yield f"{before}{indent}  [{notation.numbers(line)}]"
            before = ",\n"
    else:
        for part in array:
            yield f"{before}{indent}  "
            yield from _array_parts(part, notation, f"{indent}  ")
            before = ",\n"
    # In YAML even the closing bracket must stand further right than the name.
    yield f"\n{indent}]"


def _line(row: npt.ArrayLike, notation: _Notation) -> str:
    (line,) = number_lines(np.atleast_2d(row), ", ")
    return notation.numbers(line)


def _scalar(value: object, notation: _Notation) -> str:
    if isinstance(value, np.ndarray | np.floating):
        return _line(value, notation)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return notation.numbers(repr(value))
    if isinstance(value, str):
        return _quoted(value, notation)
    return json.dumps(value)


def _quoted(text: str, notation: _Notation) -> str:
    """Quote a text, and escape characters that are not printable."""
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(c if c.isprintable() else notation.escape(c) for c in quoted)


def _yaml_numbers(line: str) -> str:
    if "e" in line:
        # YAML 1.1 reads 1e-05 as a word: its floats need a point.
        line = _WHOLE.sub(r"\g<0>.0", f" {line}")[1:]
    return line.replace("inf", ".inf").replace("nan", ".nan")


# JSON has no infinity: null stands for the score −inf of a hidden key.
_JSON = _Notation(
    lambda line: line.replace("-inf", "null"), lambda character: json.dumps(character)[1:-1]
)
# YAML would read JSON's surrogate pairs as two characters.
_YAML = _Notation(_yaml_numbers, lambda character: f"\\U{ord(character):08X}")
