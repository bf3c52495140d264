"""Find heads, batch entries, rows and columns that stand in the places of others.

Each part of a file is compared with all parts of the answer, and the nearest one tells where it
comes from. A file does not show the inputs, so each head is computed with the inputs of every other
head and batch entry, and the nearest result tells which ones it read.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.referee.fits.table import at_first, found, told
from attncli.referee.formats import Array, Ints
from attncli.referee.pipeline import Pipeline, alibi, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.run import Outputs, Run

# The batch entry and the head that stand in the place of each head, (B, H) each.
Places = tuple[Ints, Ints]
# The most evaluations for one input; the most heads, counted over all batch entries.
_MOST_MOVES, _MOST_HEADS = 64, 128
# The most rows or columns of an output; how many numbers of each one are compared.
_MOST_LINES, _MOST_NUMBERS = 4096, 64


def _pairs(places: Sequence[Ints], own: Sequence[Ints]) -> Iterator[tuple[str, str]]:
    (entry, head), (own_entry, own_head) = places, own
    if (entry == own_entry).all() and (head == head[0]).all():
        for h in np.flatnonzero(head[0] != own_head[0]):
            yield f"head {h}", f"head {head[0, h]}"
        return
    for b, h in np.argwhere((entry != own_entry) | (head != own_head)):
        yield f"head {h} of batch entry {b}", f"head {head[b, h]} of batch entry {entry[b, h]}"


def _shows_heads(case: Case) -> str | None:
    """Return the output that shows each head; None if none does, or if there is only one head."""
    batch, heads, *_ = case.problem.shape
    if batch * heads < 2 or not case.comparable:
        return None
    name = next((name for name in ("weights", "context", "lse") if name in case.files), None)
    return name if name and case.canonical(name).shape[1] == heads else None


# Inputs that a head reads from another head or batch entry.


class _Source(NamedTuple):
    """An input of shape (B, H, …) that heads read."""

    name: str
    shape: tuple[int, int]
    read: Callable[[Pipeline, Places], Pipeline]


def _reading(*names: str) -> Callable[[Pipeline, Places], Pipeline]:
    return lambda pipe, places: pipe.but(places={**pipe.places, **dict.fromkeys(names, places)})


def _sources(pipe: Pipeline) -> Iterator[_Source]:
    """Yield each input that may differ between heads or batch entries."""
    problem, mask, heads = pipe.problem, pipe.problem.visible.mask, pipe.shape[1]
    value = () if pipe.value is None else (("key", "value"), ("value",))
    for names in (*value[:1], ("key",), *value[1:], ("query",)):
        shape = getattr(pipe, names[0]).shape[:2]
        yield _Source(" and ".join(names), shape, _reading(*names))
    if mask is not None:
        yield _Source("mask", mask.shape[:2], lambda p, at: p.with_rule("mask", table(mask[at])))
    if problem.bias is not None:
        bias = widen(problem.bias, np.float64)
        yield _Source("bias", bias.shape[:2], lambda p, at: p.with_term("bias", table(bias[at])))
    if problem.alibi_slopes is not None:
        slopes = problem.alibi_slopes
        yield _Source(
            "ALiBi slope",
            (1, heads),
            lambda p, at: p.with_term("alibi", alibi(slopes[at[1][0]], p.offsets)),
        )
    sinks = pipe.sinks
    if sinks is not None:
        yield _Source("sink", (1, heads), lambda p, at: p.but(sinks=sinks[at[1][0]]))


def misplaced_inputs(case: Case) -> Mistake | None:
    """Find heads that read the keys, values, masks or terms of other heads."""
    name = _shows_heads(case)
    for source in _sources(case.pipe) if name else ():
        if not 1 < math.prod(source.shape) <= _MOST_MOVES:
            continue
        mistake = _misplaced(case, name or "", source)
        if mistake is not None or case.question.work.over:
            return mistake
    return None


def _misplaced(case: Case, name: str, source: _Source) -> Mistake | None:
    (batch, heads), (entries, groups) = case.problem.shape[:2], source.shape
    entry, head = np.indices((batch, heads))
    own = entry % entries, head // (heads // groups)
    file, places, best = case.canonical(name), np.array(own), np.full((batch, heads), np.inf)
    for by, over in product(range(entries), range(groups)):
        if case.question.work.over:
            return None
        tried = (own[0] + by) % entries, (own[1] + over) % groups
        with np.errstate(invalid="ignore"):
            made = case.outputs(source.read(case.pipe, tried))[name]
            apart = np.abs(made - file).max(axis=(2, 3))
        places = np.where(apart < best, tried, places)
        best = np.fmin(best, apart)
    entry, head = places
    words = told(_pairs((entry, head), own), f"reads the {source.name} of")
    if not words or not best.max() <= case.pipe.file.resolution:
        return None
    return found("inputs_misplaced", lambda pipe: source.read(pipe, (entry, head)), words)


# Heads, batch entries, rows and columns that are exchanged in an output.


def _nearest(file: Array, answers: Array, error: float) -> Ints | None:
    """Return, for each row of a file, the equal row of the answers; None if one has no equal."""
    step = max(1, file.shape[1] // _MOST_NUMBERS)
    some, others = file[:, ::step], answers[:, ::step]
    places = np.arange(len(some))
    with np.errstate(invalid="ignore"):
        for at in np.flatnonzero(~(np.abs(some - others).max(axis=1) <= error)):
            apart = np.abs(others - some[at]).max(axis=1)
            places[at] = int(np.argmin(np.where(np.isnan(apart), np.inf, apart)))
            if not apart[places[at]] <= error:
                return None
    return None if (places == np.arange(len(places))).all() else places


def misplaced_outputs(case: Case, noun: str) -> Mistake | None:
    """Find heads, rows or columns of an output that stand in the places of others."""
    axes, of_heads = _AXES[noun], noun == "output"
    shown = ("weights", "context", "lse") if of_heads else ("context", "weights", "lse")
    name = next((name for name in shown if name in case.files), None)
    if name is None or not case.comparable or (of_heads and _shows_heads(case) is None):
        return None
    counts = tuple(case.right[name].shape[axis] for axis in axes)
    if not 1 < math.prod(counts) <= (_MOST_HEADS if of_heads else _MOST_LINES):
        return None
    # Rows and columns must have moved alike in all heads, so they are compared together.
    file, right = (
        np.moveaxis(array, axes, range(len(axes))).reshape(math.prod(counts), -1)
        for array in (case.canonical(name), case.right[name])
    )
    places = _nearest(file, right, case.pipe.file.resolution)
    if places is None:
        return None
    at: tuple[Any, ...] = np.unravel_index(places.reshape(counts), counts)
    index = (*[slice(None)] * axes[0], *at)

    def finish(_: Run, outputs: Outputs) -> Outputs:
        concerned = (name,) if noun == "column" else outputs
        return outputs | {name: outputs[name][index] for name in concerned}

    wrong = np.flatnonzero(places != np.arange(len(places)))
    lines = ((f"{noun} {i}", f"{noun} {places[i]}") for i in wrong)
    pairs = _pairs(at, [*np.indices(counts)]) if of_heads else lines
    stage = "finish" if of_heads or case.pipe.output is None else "behind"
    return found(
        f"{noun}s_misplaced",
        lambda pipe: pipe.then(stage, finish),
        told(pairs, "holds the answer's"),
    )


_AXES = {"output": (0, 1), "row": (2,), "column": (3,)}
FITTINGS = (
    at_first(partial(misplaced_outputs, noun="output"), "outputs_misplaced"),
    at_first(misplaced_inputs, "inputs_misplaced"),
    at_first(partial(misplaced_outputs, noun="row"), "rows_misplaced"),
    at_first(partial(misplaced_outputs, noun="column"), "columns_misplaced"),
)
