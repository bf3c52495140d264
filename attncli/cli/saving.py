"""Which outputs go into which file, and how they get there."""

from __future__ import annotations

import math
import re
import shlex
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import UsageError
from attncli.errors.names import SHOWABLE, SQUARE, SUMMARIES
from attncli.errors.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from attncli.problem.problem import Problem
    from attncli.save.formats import Results

__all__ = ["Save", "held", "refuse_unheld", "saves_of", "streamed", "write_saves"]

# An NPY file of more cells is filled tile by tile and never held in memory.
_HELD_CELLS = 16_000_000


class Save(NamedTuple):
    """One file: the outputs it holds and its format."""

    names: tuple[str, ...]
    path: str
    format: str


def saves_of(
    texts: Sequence[str], names: tuple[str, ...], inputs: Iterable[str], *, chosen: bool
) -> tuple[Save, ...]:
    """Return what each ``--save [NAME=]PATH`` asks for, where ``names`` are shown.

    Parameters
    ----------
    texts : sequence of str
    names : tuple of str
    inputs : iterable of str
        The files that are read.
    chosen : bool
        The names were given, by ``--show``.

    Raises
    ------
    UsageError
        One is malformed.
    OutputError
        A file is among the inputs, is named twice or cannot be written.
    """
    from attncli.save.files import refuse_inputs, refuse_unwritable

    saves = tuple(_save_of(text, names, chosen=chosen) for text in texts)
    paths = [save.path for save in saves]
    refuse_inputs(paths, inputs)
    refuse_unwritable(paths)
    return saves


def _save_of(text: str, names: tuple[str, ...], *, chosen: bool) -> Save:
    from attncli.save.formats import format_of

    name, separator, path = text.partition("=")
    if not path and (separator or not text):
        raise UsageError(f"--save {text}".rstrip() + ": expected [NAME=]PATH; found no path")
    if separator and not name:
        raise UsageError(
            f"--save {text}: expected NAME=PATH; found no name",
            hint=f"for a file of that name write ./{text}",
        )
    if others := re.findall(rf",(?:{'|'.join(SHOWABLE)})=", path):
        files = re.split(rf",(?={others[0][1:]})", text, maxsplit=1)
        raise UsageError(
            f"--save {text}: expected one file; found several",
            hint=f"repeat the option: {' '.join(f'--save {shlex.quote(file)}' for file in files)}",
        )
    several = tuple(dict.fromkeys(name.split(",")))
    if separator and set(several) <= set(SHOWABLE):
        kind = format_of(path, _unnamed(path, "csv" if len(several) == 1 else "json"))
        return Save(held(several, kind, chosen=True), path, kind)
    if separator and name.replace(",", "").isidentifier():
        raise UsageError(
            f"--save {text}: expected NAME=PATH with a name of {', '.join(SHOWABLE)}; "
            f"found {name!r}",
            hint=did_you_mean(name, SHOWABLE) or f"for a file of that name write ./{text}",
        )
    kind = format_of(text, _unnamed(text, "csv" if len(names) == 1 else "json"))
    return Save(held(names, kind, chosen=chosen), text, kind)


def _unnamed(path: str, kind: str) -> str | None:
    """Return the text format of what can have no suffix: ``/dev/stdout``, a pipe ``/dev/fd/63``."""
    from attncli.save.files import is_direct

    return kind if path and not Path(path).suffix and is_direct(path) else None


def held(names: tuple[str, ...], kind: str, *, chosen: bool) -> tuple[str, ...]:
    """Return which outputs a format takes.

    Where they were not chosen by name, one array is the context.
    """
    from attncli.save.formats import FORMATS

    if not FORMATS[kind].single or len(names) == 1:
        return names
    if not chosen:
        return ("context",)
    several = "json or yaml" if set(SUMMARIES).intersection(names) else "json, yaml or npz"
    raise UsageError(
        f"{kind} holds one array; found {', '.join(names[:-1])} and {names[-1]}",
        hint=f"name one (--show {names[0]}, --save {names[0]}=FILE), or use {several}",
    )


def refuse_unheld(
    names: Sequence[str], kind: str, empty: Callable[[str], npt.NDArray[Any]]
) -> None:
    """Refuse a format that cannot hold outputs of their shapes, before they are computed.

    Parameters
    ----------
    names : sequence of str
    kind : str
    empty : callable
        Returns an array of the shape of an output, whose numbers count for nothing.

    Raises
    ------
    OutputError
    """
    from attncli.save.formats import FORMATS, Results

    arrays = {name: empty(name) for name in names if name not in SUMMARIES}
    FORMATS[kind].hold(Results(arrays, extra={name: [] for name in names if name in SUMMARIES}))


def write_saves(outputs: Iterable[tuple[Save, Results]]) -> None:
    """Write all files, or none if one of them cannot be written."""
    from attncli.save.formats import save as save_files

    save_files((save.path, results, save.format) for save, results in outputs)


@contextmanager
def streamed(
    problem: Problem, saves: Sequence[Save], needed: Sequence[str], *, averaged: bool
) -> Iterator[dict[Save, npt.NDArray[Any]]]:
    """Open the NPY files that are too large to be held; they appear when the block ends well.

    Parameters
    ----------
    problem : Problem
    saves : sequence of Save
    needed : sequence of str
        Outputs that are held anyway, because something else asks for them.
    averaged : bool
        The weights are the mean of the heads.

    Yields
    ------
    dict of Save to ndarray (B, H, L, S)
        Memory-mapped, to be computed into; the mean of the weights in its own shape.
    """
    shapes = problem.output_shapes
    with ExitStack() as files:
        opened: dict[Save, npt.NDArray[Any]] = {}
        for save in saves:
            name = save.names[0]
            square = name in SQUARE and name not in needed
            taken = [other.names[0] for other in opened]
            mean = averaged and name == "weights"
            shown = shapes["mean weights" if mean else "weights"]
            if (
                save.format == "npy"
                and square
                and math.prod(shown) > _HELD_CELLS
                and name not in taken
            ):
                from attncli.engine import result_shapes
                from attncli.save.streaming import open_npy

                shape = shown if mean else result_shapes(problem, (name,))[name]
                array = files.enter_context(open_npy(save.path, shown, problem.dtype))
                opened[save] = array.reshape(shape)
        yield opened
