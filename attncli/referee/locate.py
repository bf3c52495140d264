"""Say in sentences where the errors are: what all wrong elements have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import first_few, labelled, places
from attncli.referee.run import by_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools
    from attncli.referee.parts import Question
    from attncli.referee.pipeline import Pipeline

# A kind of queries is reported if at least this share of it is wrong. A single wrong row is not
# reported if its kind has more rows than this. Wrong rows have this many right numbers by chance.
_LEAST_SHARE, _SEVERAL, _BY_CHANCE = 0.01, 4, 2
# The most pairs of query and key whose visibility is computed: more would take seconds.
_MOST_PAIRS = 2**28


def locate(question: Question) -> tuple[str, ...]:
    """Return what the wrong elements have in common, output by output."""
    several = len(question.files) > 1
    counts = _seen_keys(question.problem, question.pipe)
    sentences: list[str] = []
    for name, found in question.shaped.items():
        wrong = question.outputs[name].wrong
        if wrong is not None and wrong.any():
            prefix = f"{name}: " if several else ""
            lines = _sentences(question.problem, name, wrong, found, counts)
            sentences += [prefix + line for line in lines]
    return tuple(sentences)


def _seen_keys(problem: Problem, pipe: Pipeline) -> Array | None:
    """Return the number of keys that each query sees, (B, H or 1, L); None if it takes too long."""
    batch, heads, queries, keys = problem.shape
    mask = problem.visible.mask
    heads = heads if mask is not None and mask.shape[1] > 1 else 1
    if batch * heads * queries * keys > _MOST_PAIRS:
        return None
    return by_query(pipe, heads, lambda run: np.broadcast_to(run.seen, run.shape).sum(axis=-1))


def _sentences(
    problem: Problem, name: str, wrong: Bools, found: Array, counts: Array | None
) -> Iterator[str]:
    rows: Bools = np.any(wrong, axis=-1)
    yield f"the first wrong row is {_row_name(problem, rows)}"
    yield from _one_value(found[wrong])
    yield from _entries(rows)
    # Behind an output projection no row belongs to one head, so no mask applies to it.
    if counts is not None and counts.shape[1] in (1, rows.shape[1]):
        nan = np.isnan(found).any(axis=-1)
        if nan.any() and not (nan & (counts > 0)).any():
            yield "the NaN rows are queries that see no key"
        # If only one number is wrong, the kind of its row says nothing.
        if not rows.all() and np.count_nonzero(wrong) > 1:
            yield from _kind_of_rows(rows, np.broadcast_to(counts, rows.shape), problem.shape[3])
    yield from _range_of("queries", np.any(rows, axis=(0, 1)))
    columns = np.any(wrong, axis=(0, 1, 2))
    if name != "lse" and np.count_nonzero(rows) * np.count_nonzero(~columns) > _BY_CHANCE:
        yield from _range_of("components" if name == "context" else "keys", columns)


def _one_value(found: Array) -> Iterator[str]:
    if not np.isfinite(found).any():
        yield "every wrong element is NaN or infinite"
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
    for axis, one, several in ((0, "batch entry", "batch entries"), (1, "head", "heads")):
        bad = np.flatnonzero(rows.any(axis=tuple({0, 1, 2} - {axis})))
        if 0 < bad.size < rows.shape[axis]:
            names = first_few([str(index) for index in bad])
            yield f"only {f'{one} {names} is' if bad.size == 1 else f'{several} {names} are'} wrong"


def _kind_of_rows(rows: Bools, counts: Array, keys: int) -> Iterator[str]:
    kinds = {
        "queries that see no key": counts == 0,
        "queries that see one key": counts == 1,
        "queries that do not see every key": counts < keys,
        "queries that see every key": counts == keys,
    }
    for text, kind in kinds.items():
        if kind.any() and not kind.all() and not (rows & ~kind).any():
            mean = rows[kind].mean()
            # One wrong row among many of its kind says nothing.
            alone = np.count_nonzero(rows) == 1 and np.count_nonzero(kind) > _SEVERAL
            if mean >= _LEAST_SHARE and not alone:
                share = "all" if mean == 1 else f"{100 * mean:.0f} %"
                yield f"only {text} are wrong: {share} of them"
            return


def _range_of(what: str, wrong: Bools) -> Iterator[str]:
    bad = np.flatnonzero(wrong)
    first, last, length = int(bad[0]), int(bad[-1]), wrong.size
    if bad.size == length:
        return
    if first == last:
        yield f"only one of the {what} is wrong: {first}"
    elif bad.size == last - first + 1:
        yield f"only {what} {first} to {last} of {length} are wrong"
    elif 2 * first >= length:
        yield f"only {what} from {first} on are wrong: {bad.size} of {length - first}"
