"""What stands in the place of something else: heads, batch entries, rows, columns and tokens.

Each part of a file is compared with every part of the answer that it might be, and the nearest
one tells where it comes from. Inputs cannot be compared: each head is computed with those of every
other head and batch entry instead, and the file tells which it read.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.referee.fits.numbers import told
from attncli.referee.fits.pages import is_plain
from attncli.referee.fits.spans import LOST, SLACK, TYPICAL
from attncli.referee.fits.table import at_first
from attncli.referee.formats import Array, Ints
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import Change, Mistake
from attncli.referee.pipeline import (
    Outputs,
    Pipeline,
    Run,
    alibi,
    lengths_of,
    table,
    turned_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.parts import Case

__all__ = ["FITTINGS"]

# The batch entry and the head that each head of each batch entry reads or is, (B, H) each.
Places = tuple[Ints, Ints]
# Ways to move batch entries and heads, each an evaluation; heads of all batch entries.
_MOST_MOVES, _MOST_HEADS = 64, 128
# Rows and columns of an output, and numbers of each that are compared.
_MOST_ROWS, _MOST_COLUMNS, _MOST_NUMBERS = 4096, 1024, 64
# Products of all rows with all tokens of all heads and columns.
_MOST_PRODUCTS = 5e8


def _pairs(places: Places, own: Places) -> Iterator[tuple[str, str]]:
    """Yield what stands where something else should, and what."""
    (entry, head), (own_entry, own_head) = places, own
    if (entry == own_entry).all() and (head == head[0]).all():
        for h in np.flatnonzero(head[0] != own_head[0]):
            yield f"head {h}", f"head {head[0, h]}"
    elif (head == own_head).all() and (entry == entry[:, :1]).all():
        for b in np.flatnonzero(entry[:, 0] != own_entry[:, 0]):
            yield f"batch entry {b}", f"batch entry {entry[b, 0]}"
    else:
        for b, h in np.argwhere((entry != own_entry) | (head != own_head)):
            there = f"batch entry {entry[b, h]}"
            if own_head.any():
                there = f"head {head[b, h]} of {there}"
            yield f"head {h} of batch entry {b}", there


def _shows_heads(case: Case) -> str | None:
    """Return an output that shows each head; None where there is none, or only one head."""
    batch, heads, *_ = case.problem.shape
    names = ("weights", "context", "lse") if case.problem.output is None else ("weights", "lse")
    name = next((name for name in names if name in case.files), None)
    if name is None or batch * heads < 2 or not case.comparable:
        return None
    return name if case.canonical(name).shape == case.right[name].shape else None


# Inputs of another head or batch entry.


class _Source(NamedTuple):
    """Something that each head of each batch entry reads.

    Attributes
    ----------
    name : str
    shape : (int, int)
        Of how many batch entries and heads there is one.
    read : callable
        The pipeline in which each reads that of another.
    """

    name: str
    shape: tuple[int, int]
    read: Callable[[Pipeline, Places], Pipeline]

    def own(self, problem: Problem) -> Places:
        """Return what each head should read."""
        entries, heads = np.indices(problem.shape[:2])
        return entries % self.shape[0], heads // (problem.shape[1] // self.shape[1])


def _reading(*names: str) -> Callable[[Pipeline, Places], Pipeline]:
    return lambda pipe, places: pipe.but(places={**pipe.places, **dict.fromkeys(names, places)})


def _ruling(name: str, mask: Array) -> Callable[[Pipeline, Places], Pipeline]:
    return lambda pipe, places: pipe.with_rule(name, table(mask[places]))


def _bias_of(bias: Array) -> Callable[[Pipeline, Places], Pipeline]:
    return lambda pipe, places: pipe.with_term("bias", table(bias[places]))


def _slopes_of(pipe: Pipeline, places: Places) -> Pipeline:
    slopes = pipe.problem.alibi_slopes
    if slopes is None:
        return pipe
    return pipe.with_term("alibi", alibi(slopes[places[1][0]], pipe.offsets))


def _sinks_of(pipe: Pipeline, places: Places) -> Pipeline:
    return pipe if pipe.sinks is None else pipe.but(sinks=pipe.sinks[places[1][0]])


def _sources(pipe: Pipeline) -> Iterator[_Source]:
    """Yield everything of which there may be one a head, or one a batch entry."""
    problem, visible = pipe.problem, pipe.problem.visible
    keys = pipe.key.shape[:2]
    both = () if pipe.value is None else (("key", "value"), ("value",))
    for names in (*both[:1], ("key",), *both[1:]):
        yield _Source(" and ".join(f"{name}s" for name in names), keys, _reading(*names))
    yield _Source("queries", pipe.query.shape[:2], _reading("query"))
    if visible.mask is not None:
        yield _Source("mask", visible.mask.shape[:2], _ruling("mask", visible.mask))
    if visible.key_padding_mask is not None:
        mask = visible.key_padding_mask[:, None, None, :]
        yield _Source("padding", (len(mask), 1), _ruling("key_padding_mask", mask))
    if visible.kv_lengths is not None:
        lengths = np.array(lengths_of(problem))
        real = np.arange(pipe.shape[3]) < lengths[:, None, None, None]
        yield _Source("length", (len(lengths), 1), _ruling("kv_lengths", real))
    if problem.bias is not None:
        bias = widen(problem.bias, np.float64)
        yield _Source("bias", bias.shape[:2], _bias_of(bias))
    if problem.alibi_slopes is not None:
        yield _Source("slopes", (1, pipe.shape[1]), _slopes_of)
    if pipe.sinks is not None:
        yield _Source("sink", (1, pipe.shape[1]), _sinks_of)


def misplaced_inputs(case: Case) -> Mistake | None:
    """Return the mistake that heads read keys, values, masks or terms of others."""
    name = _shows_heads(case)
    if name is None:
        return None
    for source in _sources(case.pipe):
        if not 1 < math.prod(source.shape) <= _MOST_MOVES:
            continue
        found = _misplaced(case, name, source)
        if found is not None or case.question.work.over:
            return found
    return None


def _misplaced(case: Case, name: str, source: _Source) -> Mistake | None:
    places, left = _nearest_moves(case, name, source)
    heads, groups = case.pipe.shape[1], source.shape[1]
    sharing = heads // groups if groups > 1 else 1
    pairs = _pairs(places, source.own(case.problem))
    if sharing > 1:
        pairs = ((f"query {one}", f"key {other}") for one, other in pairs)
    words = told(pairs, f"reads the {source.name} of")
    if not words or not left <= case.pipe.file.resolution:
        return None
    end = f" (to query head h belongs key head h // {sharing})" if sharing > 1 else ""
    return Mistake(
        "inputs_misplaced",
        f"heads or batch entries read what belongs to others: {words}{end}",
        lambda pipe: source.read(pipe, places),
        stages.HEADS,
        f"let each head of each batch entry read its own {source.name}",
        "more than one batch entry or head",
        needs=frozenset({"batch", "heads"}),
    )


def _nearest_moves(case: Case, name: str, source: _Source) -> tuple[Places, float]:
    """Return what each head seems to read, and the largest error that is left."""
    file, own = case.canonical(name), source.own(case.problem)
    entry, head = own[0].copy(), own[1].copy()
    best = np.full(entry.shape, np.inf)
    for by, over in itertools.product(*map(range, source.shape)):
        if case.question.work.over:
            return own, math.inf
        tried = (own[0] + by) % source.shape[0], (own[1] + over) % source.shape[1]
        with np.errstate(invalid="ignore"):
            apart = np.abs(case.outputs(source.read(case.pipe, tried))[name] - file).max(
                axis=(2, 3)
            )
        nearer = apart < best
        best = np.where(nearer, apart, best)
        np.copyto(entry, tried[0], where=nearer)
        np.copyto(head, tried[1], where=nearer)
    return (entry, head), float(best.max())


# Heads, batch entries, rows and columns of an output.


def _nearest(found: Array, answers: Array, error: float) -> Ints | None:
    """Return which of the answers (m, ·) each of those that are found (n, ·) is.

    Its own where that comes near enough; None where none does.
    """
    step = max(1, found.shape[1] // _MOST_NUMBERS)
    some, others = found[:, ::step], answers[:, ::step]
    places = np.arange(len(some))
    with np.errstate(invalid="ignore"):
        for at in np.flatnonzero(~(np.abs(some - others).max(axis=1) <= error)):
            apart = np.abs(others - some[at]).max(axis=1)
            places[at] = int(np.argmin(np.where(np.isnan(apart), np.inf, apart)))
            if not apart[places[at]] <= error:
                return None
    return None if (places == np.arange(len(places))).all() else places


def _written(name: str, words: str, change: Change, noun: str, needs: str) -> Mistake:
    """Return the mistake that parts of the output stand in the places of others."""
    return Mistake(
        name,
        f"the numbers are right, but {words}",
        change,
        stages.HEADS if name == "outputs_misplaced" else stages.AXES,
        f"write each {noun} in its own place",
        f"more than one {noun}",
        needs=frozenset(needs.split()),
        writes=True,
    )


def misplaced_outputs(case: Case) -> Mistake | None:
    """Return the mistake that heads or batch entries of the output stand in others' places."""
    name = _shows_heads(case)
    batch, heads, *_ = case.problem.shape
    if name is None or batch * heads > _MOST_HEADS:
        return None
    file, right = (
        array.reshape(batch * heads, -1) for array in (case.canonical(name), case.right[name])
    )
    found = _nearest(file, right, case.pipe.file.resolution)
    if found is None:
        return None
    entry, head = np.divmod(found.reshape(batch, heads), heads)
    own_entry, own_head = np.indices((batch, heads))
    words = told(_pairs((entry, head), (own_entry, own_head)), "is")

    def finish(_: Run, outputs: Outputs) -> Outputs:
        return {name: array[entry, head] for name, array in outputs.items()}

    return _written(
        "outputs_misplaced",
        f"heads or batch entries stand in the places of others: in the file {words} of the answer",
        lambda pipe: pipe.then("finish", finish),
        "head of each batch entry",
        "batch heads",
    )


def misplaced_rows(case: Case) -> Mistake | None:
    """Return the mistake that rows of the output stand in the places of others."""
    found = _along(case, 2, ("weights", "context", "lse"), _MOST_ROWS)
    if found is None:
        return None
    _, places = found

    def finish(_: Run, outputs: Outputs) -> Outputs:
        return {name: array[:, :, places] for name, array in outputs.items()}

    return _written(
        "rows_misplaced",
        f"rows stand in the places of others: {_moved(places, 'row', 'query')}",
        lambda pipe: pipe.then("behind", finish),
        "query",
        "rows",
    )


def misplaced_columns(case: Case) -> Mistake | None:
    """Return the mistake that columns of the output stand in the places of others."""
    found = _along(case, 3, ("context", "weights"), _MOST_COLUMNS)
    if found is None:
        return None
    name, places = found

    def finish(_: Run, outputs: Outputs) -> Outputs:
        return {**outputs, name: outputs[name][..., places]}

    noun = "key" if name == "weights" else "column"
    return _written(
        "columns_misplaced",
        f"columns stand in the places of others: {_moved(places, 'column', noun)}",
        lambda pipe: pipe.then("finish" if pipe.output is None else "behind", finish),
        "column",
        "",
    )


def _along(case: Case, axis: int, names: tuple[str, ...], most: int) -> tuple[str, Ints] | None:
    """Return the first of some outputs, and which places of an axis it has instead of its own."""
    name = next((name for name in names if name in case.files), None)
    if name is None or not case.comparable or not 1 < case.right[name].shape[axis] <= most:
        return None
    file, right = case.canonical(name), case.right[name]
    if file.shape != right.shape:
        return None
    # Of all heads together: they must have moved alike.
    found, answers = (
        np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) for array in (file, right)
    )
    places = _nearest(found, answers, case.pipe.file.resolution)
    return None if places is None else (name, places)


def _moved(places: Ints, one: str, of: str) -> str:
    """Say where rows or columns are: all so many places farther, turned round, or one by one."""
    count, own = len(places), np.arange(len(places))
    if count > 2 and (places == own[::-1]).all():
        return f"the first {one} is the last, and so on to the last, which is the first"
    shifts = np.unique((places - own) % count)
    if len(shifts) == 1:
        by = int(shifts[0]) - (count if 2 * shifts[0] > count else 0)
        side = "after" if by > 0 else "before"
        return f"each is that of the {of} {abs(by)} {side} it, the ends joined"
    pairs = ((f"{one} {i}", f"{one} {places[i]}") for i in np.flatnonzero(places != own))
    return f"in the file {told(pairs, 'is')} of the answer"


# Keys and values of other tokens, under a causal rule. Row i sees one place more than the row
# before it. Once it is known which tokens stand at the places before, each token that may stand at
# place i gives one context, and the file tells which it is.


def misplaced_tokens(case: Case) -> Mistake | None:
    """Return the mistake that keys and values of other tokens stand at some places."""
    _, _, queries, keys = case.problem.shape
    if not (
        is_plain(case)
        and set(case.pipe.rules) == {"causal"}
        and not any(case.pipe.offsets)
        and 2 < queries <= keys
        and math.prod(case.problem.shape) * case.right["context"].shape[3] <= _MOST_PRODUCTS
        and np.isfinite(case.canonical("context")).all()
    ):
        return None
    for sides in (("key", "value"), ("key",), ("value",)):
        tokens = _tokens(case, sides)
        if tokens is not None:
            return _of_tokens(tokens, sides)
    return None


def _tokens(case: Case, sides: tuple[str, ...]) -> tuple[Ints, ...] | None:
    """Return which token stands at each place, (S,) for each batch entry; None where none fit."""
    batch, heads, _, keys = case.problem.shape
    query, key, value = (case.run.operand(name) for name in ("query", "key", "value"))
    key, value = (
        np.repeat(np.broadcast_to(rows, (batch, *rows.shape[1:])), heads // rows.shape[1], axis=1)
        for rows in (key, value)
    )
    file, found = case.canonical("context"), []
    error = case.pipe.file.resolution + LOST * float(np.abs(file).max())
    for b in range(batch):
        scores = query[b] @ key[b].swapaxes(-1, -2) * case.pipe.scale
        with np.errstate(under="ignore"):
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        case.question.work.spend(shares.size * value.shape[3])
        tokens = (
            None if case.question.work.over else _decoded(shares, value[b], file[b], error, sides)
        )
        if tokens is None:
            return None
        found.append(tokens)
    return None if all((tokens == np.arange(keys)).all() for tokens in found) else tuple(found)


def _decoded(
    shares: Array, value: Array, file: Array, error: float, sides: tuple[str, ...]
) -> Ints | None:
    """Return the token at each place, of one batch entry; what no query sees has its own.

    Parameters
    ----------
    shares : ndarray (H, L, S)
        exp(score) of each query and token, up to a factor for each query.
    value, file : ndarray (H, S, E), (H, L, E)
    error : float
        How far a row may lie from what it is.
    sides : tuple of str
        What stands elsewhere: keys, values or both.
    """
    own = np.arange(value.shape[1])
    tokens = own.copy()
    keys, values = (tokens if side in sides else own for side in ("key", "value"))
    for i in range(file.shape[1]):
        before = shares[:, i, keys[:i]]
        sums, total = np.matmul(before[:, None], value[:, values[:i]]), before.sum(axis=1)
        new = shares[:, i] if "key" in sides else shares[:, i, [i]]
        what = value if "value" in sides else value[:, [i]]
        with np.errstate(invalid="ignore", divide="ignore"):
            made = (sums + new[..., None] * what) / (total[:, None] + new)[..., None]
        apart = np.abs(made - file[:, i, None]).max(axis=(0, 2))
        best = int(np.nanargmin(apart)) if np.isfinite(apart).any() else i
        # A token with next to no weight is as good as any other: it is taken for its own.
        tokens[i] = i if apart[i] <= max(2 * apart[best], TYPICAL * error) else best
        if not apart[tokens[i]] <= SLACK * error:
            return None
    return tokens


def _of_tokens(found: tuple[Ints, ...], sides: tuple[str, ...]) -> Mistake:
    alike = all((tokens == found[0]).all() for tokens in found)
    pairs = [
        (
            _range("token", token, token + stop - start),
            _range("place", start, stop) + ("" if alike else f" of batch entry {b}"),
        )
        for b, tokens in enumerate(found[:1] if alike else found)
        for start, stop, token in _runs(tokens)
    ]

    def change(pipe: Pipeline) -> Pipeline:
        pipe = turned_inputs(pipe)
        read = {}
        for side in sides:
            rows = getattr(pipe, side)
            read[side] = np.stack([rows[b % len(rows)][:, t] for b, t in enumerate(found)])
        return pipe.but(**read)

    return Mistake(
        "tokens_misplaced",
        f"{' and '.join(f'{side}s' for side in sides)} of other tokens stand at some places: "
        f"{told(pairs, 'at')}",
        change,
        stages.SLOTS,
        "read the keys and values of each place from where those of its token were written",
        "more than one key",
        needs=frozenset({"batch", "heads", "rows"}),
    )


def _runs(tokens: Ints) -> list[tuple[int, int, int]]:
    """Return where others than the own tokens stand in a row: first place, end, first token."""
    moved = tokens - np.arange(len(tokens))
    ends = [0, *(np.flatnonzero(np.diff(moved)) + 1).tolist(), len(tokens)]
    return [(a, b, int(tokens[a])) for a, b in itertools.pairwise(ends) if moved[a] != 0]


def _range(noun: str, start: int, stop: int) -> str:
    return f"{noun} {start}" if stop - start == 1 else f"{noun}s {start} to {stop - 1}"


FITTINGS = (
    at_first(misplaced_outputs, "batch heads"),
    at_first(misplaced_inputs, "batch heads"),
    at_first(misplaced_rows, "rows"),
    at_first(misplaced_columns),
    at_first(misplaced_tokens, "batch heads rows"),
)
