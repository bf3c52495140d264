"""Right numbers in another shape, and inputs that are read in another order of memory."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attncli.errors.text import counted
from attncli.referee.fits.numbers import distance_of
from attncli.referee.fits.table import at_first
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import Change, Mistake
from attncli.referee.tolerance import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline

__all__ = ["FITTINGS"]

_WORDS = {
    "b": ("batch entry", "batch entries"),
    "h": ("head", "heads"),
    "s": ("query", "queries"),
    "k": ("key", "keys"),
    "d": ("column", "columns"),
}
Order = Literal["C", "F"]
_ORDERS: tuple[tuple[Order, Order], ...] = (("F", "C"), ("C", "F"))
# What few numbers have in common says nothing of the rest. The bits that it takes to tell the ends
# of a few axes.
_LEAST, _CHOICE = 4, 4.0
# Axes whose lengths may differ at once; batch entries and heads that one may be.
_MOST_AXES, _MOST_PARTS = 2, 4096


class _Cut(NamedTuple):
    """Where a file and the answer have numbers in common.

    Attributes
    ----------
    letters : str
        The axes that differ: b, h, s for queries, k for keys, d for columns.
    answer, file : tuple
        Indices of what they have in common.
    """

    letters: str
    answer: tuple[slice | int, ...]
    file: tuple[slice | int, ...]


def other_shape(case: Case) -> Mistake | None:
    """Return the mistake that the file holds a part of the answer, or more than it."""
    if not case.whole:
        return None
    cuts: dict[str, _Cut] = {}
    words = []
    for name, file in case.files.items():
        right = case.shaped(case.pipe, case.right, name)
        letters = _letters(case, name)[-right.ndim :]
        cut = _nearest(letters, right, file)
        # What few or equal numbers have in common says nothing of the rest.
        if cut is None or np.unique(right[cut.answer]).size < _LEAST:
            return None
        cuts[name] = cut
        words.append(_told(cut, letters, file.shape))
    of_part = all(set(cut.letters) <= set("bh") and _picks(cut) for cut in cuts.values())
    return Mistake(
        "one_part" if of_part else "other_length",
        f"the numbers are right, but the file {' and '.join(dict.fromkeys(words))}",
        _cut_out(cuts, case.files),
        stages.AXES,
        "write the whole result, without padding; or give the inputs of this part",
        "any input",
        writes=True,
        choice=_CHOICE,
        variant_of=("sinks_as_first_column", "sinks_as_last_column"),
    )


def _letters(case: Case, name: str) -> str:
    layout = case.problem.layout
    if name == "context":
        return layout.axes
    return layout.weight_axes + ("s" if name == "lse" else "sk")


def _picks(cut: _Cut) -> bool:
    """Return whether an axis of the answer is missing."""
    return any(isinstance(own, int) for own in cut.answer)


def _nearest(letters: str, right: Array, file: Array) -> _Cut | None:
    """Return the stretch of the answer that the file comes nearest to."""
    least, best = math.inf, None
    for cut in _cuts(letters, right.shape, file.shape):
        found, made = finite_in_both(file[cut.file], right[cut.answer])
        far = root_mean_square(found - made) if found.size else math.inf
        if far < least:
            least, best = far, cut
    return best


def _cuts(letters: str, right: tuple[int, ...], file: tuple[int, ...]) -> Iterator[_Cut]:
    """Yield what they may have in common: ends of axes, or one index of axes that are missing."""
    axes = range(len(right))
    if len(file) == len(right):
        other = [at for at in axes if right[at] != file[at]]
        if 1 <= len(other) <= _MOST_AXES:
            yield from _ends(letters, right, file, other)
        return
    if len(file) > len(right):
        return
    for lost in itertools.combinations(axes, len(right) - len(file)):
        rest = tuple(right[at] for at in axes if at not in lost)
        few = math.prod(right[at] for at in lost) <= _MOST_PARTS
        if rest != file or not few or not {letters[at] for at in lost} <= set("bhs"):
            continue
        for places in itertools.product(*(_places(letters[at], right[at]) for at in lost)):
            own: list[slice | int] = [slice(None)] * len(right)
            for at, place in zip(lost, places, strict=True):
                own[at] = place
            said = "".join(letters[at] for at in lost)
            yield _Cut(said, tuple(own), (slice(None),) * len(file))


def _places(letter: str, count: int) -> Sequence[int]:
    """Return which one of an axis may be all there is: of queries, the first or the last."""
    return range(count) if letter != "s" else (0, count - 1)


def _ends(
    letters: str, right: tuple[int, ...], file: tuple[int, ...], other: Sequence[int]
) -> Iterator[_Cut]:
    """Yield the stretches at either end of axes whose lengths differ."""
    for ends in itertools.product((False, True), repeat=len(other)):
        answer: list[slice | int] = [slice(None)] * len(right)
        found: list[slice | int] = [slice(None)] * len(right)
        for at, last in zip(other, ends, strict=True):
            few, many = sorted((right[at], file[at]))
            start = many - few if last else 0
            longer = answer if right[at] == many else found
            longer[at] = slice(start, start + few)
        yield _Cut("".join(letters[at] for at in other), tuple(answer), tuple(found))


def _told(cut: _Cut, letters: str, shape: tuple[int, ...]) -> str:
    """Say what a file of a shape holds."""
    fewer, more = [], []
    for letter, own in zip(letters, cut.answer, strict=True):
        if own != slice(None):
            first, last = (own, own) if isinstance(own, int) else (own.start, own.stop - 1)
            one, several = _WORDS[letter]
            fewer.append(f"{one} {first}" if first == last else f"{several} {first} to {last}")
    for letter, size, own in zip(letters[-len(shape) :], shape, cut.file, strict=True):
        if isinstance(own, slice) and own.stop is not None:
            count = counted(size - own.stop + own.start, *_WORDS[letter])
            more.append(f"{count} more {'before' if own.start else 'behind'} them")
    holds = [f"holds only {', '.join(fewer)}"] if fewer else []
    return " and ".join(holds + ([f"has {' and '.join(more)}"] if more else []))


def _cut_out(cuts: Mapping[str, _Cut], files: Mapping[str, Array]) -> Change:
    """Return the change that writes the part of the answer that a file holds, and nothing else."""

    def change(pipe: Pipeline) -> Pipeline:
        before = pipe.axes

        def axes(problem: Problem, name: str, array: Array) -> Array:
            made = np.array(files[name], np.float64)
            made[cuts[name].file] = before(problem, name, array)[cuts[name].answer]
            return made

        return pipe.but(axes=axes)

    return change


# Memory.


def _read_otherwise(name: str, order: Order, other: Order) -> Change:
    """Return the change that reads an input in one order of memory that was written in another."""

    def change(pipe: Pipeline) -> Pipeline | None:
        array, layout = getattr(pipe, name), pipe.problem.layout
        if array is None or (array.shape[0] != pipe.shape[0] and "b" in layout.axes):
            return None
        joined = layout.join(array)
        poured = joined.ravel(order=order).reshape(joined.shape, order=other)
        return pipe.but(**{name: layout.split(poured, array.shape[1], name)})

    return change


def input_memory_order(case: Case) -> Mistake | None:
    """Return the mistake that an input is read in the other order of memory.

    R, MATLAB, Fortran and Julia write columns one after the other, C and NumPy rows.
    """
    if not (case.whole and case.comparable):
        return None
    least, best = distance_of(case, case.pipe) / 2, None
    for name, orders in itertools.product(("value", "key", "query"), _ORDERS):
        change = _read_otherwise(name, *orders)
        pipe = change(case.pipe)
        if pipe is None or case.question.work.over:
            continue
        far = distance_of(case, pipe)
        if far < least:
            least, best = far, (name, orders, change)
    if best is None:
        return None
    name, orders, change = best
    ways = ["column by column", "row by row"]
    wrote, read = ways if orders == ("F", "C") else ways[::-1]
    return Mistake(
        f"{name}_memory_order",
        f"the {name} is written {wrote} and read {read}",
        change,
        stages.COPIES,
        "state the order of memory where the array is written (order='F' of NumPy, "
        "fortran_order of NPY), or transpose it",
        "matrices of more than one row and column",
        needs=frozenset({"batch", "heads", "rows"}),
    )


FITTINGS = (at_first(other_shape), at_first(input_memory_order, "batch heads rows"))
