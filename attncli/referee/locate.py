"""Where the error begins, in sentences: what all wrong elements have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors.text import first_few, labelled, places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.parts import Question

__all__ = ["locate"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Of queries of one kind at least this share is wrong, if the kind is told; a file of fewer numbers
# than the second is whole by chance, and a wrong row has up to so many right numbers by chance.
_LEAST_SHARE, _SEVERAL, _BY_CHANCE = 0.01, 4, 2
# Keys and queries of a block, as kernels have them.
_BLOCKS = (128, 64, 32, 16)
_ROWS_AT_A_TIME = 256
# To look at more pairs of query and key takes seconds.
_MOST_PAIRS = 2**28


class _Sight(NamedTuple):
    """How many keys each query sees, and the last of them, −1 for none; (B, H or 1, L)."""

    counts: Array
    last: Array


def locate(question: Question) -> tuple[str, ...]:
    """Return what the wrong elements have in common, output by output.

    Parameters
    ----------
    question : Question
    """
    several = len(question.files) > 1
    seen = _sight(question.problem)
    sentences: list[str] = []
    for name, found in question.shaped.items():
        wrong = question.outputs[name].wrong
        if wrong is not None and wrong.any():
            prefix = f"{name}: " if several else ""
            lines = _sentences(question.problem, name, wrong, found, seen)
            sentences += [prefix + line for line in lines]
    return tuple(sentences)


def _sight(problem: Problem) -> _Sight | None:
    batch, heads, queries, keys = problem.shape
    mask = problem.visible.mask
    heads = heads if mask is not None and mask.shape[1] > 1 else 1
    if batch * heads * queries * keys > _MOST_PAIRS:
        return None
    sight = _Sight(*(np.empty((batch, heads, queries), np.int64) for _ in range(2)))
    for b, h in np.ndindex(batch, heads):
        for start in range(0, queries, _ROWS_AT_A_TIME):
            rows = start, min(start + _ROWS_AT_A_TIME, queries)
            tile = problem.visible.tile(b, h, rows, (0, keys))
            full = np.ones((1, keys), np.bool_) if tile is None else tile
            sight.counts[b, h, slice(*rows)] = full.sum(axis=1)
            last = keys - 1 - np.argmax(full[:, ::-1], axis=1)
            sight.last[b, h, slice(*rows)] = np.where(full.any(axis=1), last, -1)
    return sight


def _sentences(
    problem: Problem, name: str, wrong: Bools, found: Array, seen: _Sight | None
) -> Iterator[str]:
    rows: Bools = np.any(wrong, axis=-1)
    yield f"the first wrong row is {_row_name(problem, rows)}"
    yield from _one_value(found[wrong])
    with np.errstate(invalid="ignore"):
        whole = found.size >= _SEVERAL and found.any() and not (found % 1).any()
    if whole:
        yield "every number of the file is whole, as if it had been cast to integers"
    yield from _entries(rows)
    # After an output projection no row belongs to one head, so no mask applies to it.
    if seen is not None and seen.counts.shape[1] in (1, rows.shape[1]):
        nan = np.isnan(found).any(axis=-1)
        if nan.any() and not (nan & (seen.counts > 0)).any():
            yield "the NaN rows are queries that see no key"
        # Of a single number, the kind of its row says nothing.
        if not rows.all() and np.count_nonzero(wrong) > 1:
            yield from _kind_of_rows(problem, rows, seen)
    yield from _range_of("queries", np.any(rows, axis=(0, 1)))
    columns = np.any(wrong, axis=(0, 1, 2))
    if name != "lse" and np.count_nonzero(rows) * np.count_nonzero(~columns) > _BY_CHANCE:
        yield from _range_of("components" if name == "context" else "keys", columns)


def _one_value(found: Array) -> Iterator[str]:
    """Say that all wrong elements are the same."""
    if not np.isfinite(found).any():
        yield "every wrong element is NaN or infinite"
    elif found.size > 1 and not found.any():
        yield "every wrong element is 0, as if nothing had been written"
    elif found.size > 1 and (found == found[0]).all():
        yield f"every wrong element is {found[0]:g}"


def _row_name(problem: Problem, rows: Bools) -> str:
    batch, head, query = (int(i) for i in np.argwhere(rows)[0])
    mixed = rows.shape[1] < problem.shape[1]
    own = problem.layout.place(batch, None if mixed else head)
    label = problem.query_labels[query] if problem.query_labels else None
    where = places(dict(zip(("batch", "head"), own, strict=True)))
    return ", ".join([*where, f"query {labelled(query, label)}"])


def _entries(rows: Bools) -> Iterator[str]:
    """Say which batch entries and heads are wrong, if others are right."""
    for axis, one, several in ((0, "batch entry", "batch entries"), (1, "head", "heads")):
        bad = np.flatnonzero(rows.any(axis=tuple({0, 1, 2} - {axis})))
        if 0 < bad.size < rows.shape[axis]:
            names = first_few([str(index) for index in bad])
            yield f"only {f'{one} {names} is' if bad.size == 1 else f'{several} {names} are'} wrong"


def _kind_of_rows(problem: Problem, rows: Bools, seen: _Sight) -> Iterator[str]:
    """Say which kind of row is wrong, if only one kind is."""
    keys = problem.shape[3]
    count, last = (np.broadcast_to(each, rows.shape) for each in seen)
    kinds: list[tuple[str, Bools]] = [
        ("queries that see no key", count == 0),
        ("queries that see one key", count == 1),
        ("queries from which some key is hidden", count < keys),
        ("queries that see every key", count == keys),
    ]
    for start, block in _last_blocks(keys):
        if start > 0:
            text = f"queries that see a key of the last block of {block} (from key {start} on)"
            kinds.append((text, last >= start))
    for text, kind in kinds:
        if kind.any() and not kind.all() and not (rows & ~kind).any():
            mean = rows[kind].mean()
            # Of a single row among many, its kind says nothing.
            alone = np.count_nonzero(rows) == 1 and np.count_nonzero(kind) > _SEVERAL
            if mean >= _LEAST_SHARE and not alone:
                share = "all" if mean == 1 else f"{100 * mean:.0f} %"
                yield f"only {text} are wrong, {share} of them"
            return


def _last_blocks(length: int) -> list[tuple[int, int]]:
    """Return where the last block of each size begins, and the size; the shortest block first."""
    return sorted((((length - 1) // block * block, block) for block in _BLOCKS), reverse=True)


def _range_of(what: str, wrong: Bools) -> Iterator[str]:
    """Say which range of an axis is wrong, or that only one index is."""
    bad = np.flatnonzero(wrong)
    first, last, length = int(bad[0]), int(bad[-1]), wrong.size
    if bad.size == length:
        return
    if first == last:
        yield f"only one of the {what} is wrong: {first}"
    elif bad.size == last - first + 1:
        blocks = [block for start, block in _last_blocks(length) if start == first]
        if blocks and last == length - 1:
            yield f"only {what} of the last block of {blocks[0]} are wrong, from {first} on"
        else:
            yield f"only {what} {first} to {last} of {length} are wrong"
    elif 2 * first >= length:
        yield f"only {what} from {first} on are wrong, {bad.size} of {length - first}"
