"""Where packed sequences begin, and which blocks of a causal mask are wrong, read off rows.

The last query of a row sees the keys of the last sequence, from its first one on; the query before
that key sees those of the sequence before; and so on, back to the first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors.text import counted, first_few
from attncli.referee.fits.numbers import told
from attncli.referee.fits.spans import SLACK, Family, Look, as_good, found_numbers
from attncli.referee.fits.table import Fitting, at_first
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.masks import FROM_LENGTHS
from attncli.referee.mistakes.table import Mistake
from attncli.referee.pipeline import WHOLE, Part, Pipeline, Run, evaluate, measured, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from attncli.referee.formats import Array, Bools, Ints
    from attncli.referee.parts import Case

__all__ = ["FITTINGS", "as_segments"]

# Tokens up to which their sequences are listed as an option; rows of a sequence that are looked at.
_LISTED, _ROWS = 64, 8


# Rows in which one query stands several times, so that several rules or positions are tried at
# once.


def copies(case: Case, row: int, count: int) -> tuple[Pipeline, Array]:
    """Return a pipeline of a query's row of the first batch entry, so many times, and its file.

    Parameters
    ----------
    case : Case
    row : int
        Of the case.
    count : int
    """
    start = 0 if case.part.rows is None else case.part.rows[0]
    part = Part(case.part.batch or 0, case.part.head, (start + row, start + row + 1))
    pipe = case.pipe
    run = Run(pipe, part, case.run.precision, None)
    rules = {name: table(run.rule(name)) for name in pipe.rules}
    terms = {name: table(run.term(name)) for name in pipe.terms}
    sinks = None if pipe.sinks is None else run.by_head(pipe.sinks).ravel()
    made = pipe.but(
        query=np.repeat(run.input("query"), count, axis=2),
        key=run.input("key"),
        value=None if pipe.value is None else run.input("value"),
        query_positions=np.repeat(run.positions("query")[:, 0], count, axis=1),
        key_positions=run.positions("key")[:, 0],
        rules=rules,
        terms=terms,
        sinks=sinks,
    )
    name = _output(case)
    return made, case.canonical(name)[0, :, row, None] if name else np.zeros(0)


def _output(case: Case) -> str | None:
    """Return an output whose rows show what their queries see; None where there is none."""
    if case.whole and not case.comparable:
        return None
    names = ("weights", "context", "lse")
    return next(
        (
            name
            for name in names
            if name in case.files and case.canonical(name).shape == case.right[name].shape
        ),
        None,
    )


def errors_of(case: Case, pipe: Pipeline, file: Array) -> Array:
    """Return how far a row of a file is from each of those that copies make, (n,)."""
    made = evaluate(pipe, WHOLE)[_output(case) or "context"][0]
    case.question.work.spend(float(np.prod(pipe.shape)))
    with np.errstate(invalid="ignore"):
        apart = np.where(made == file, 0, np.abs(made - file)).max(axis=(0, 2))
    return np.where(np.isnan(apart), np.inf, apart)


def wrong_rows(case: Case) -> Bools:
    """Return in which rows (L,) of an output any number is off, and all of the first are finite."""
    name = _output(case) or "context"
    file, right = case.canonical(name), case.right[name]
    with np.errstate(invalid="ignore"):
        near = (file == right) | (np.abs(file - right) <= case.pipe.file.resolution)
    return np.asarray(~near.all(axis=(0, 1, 3)))


def some_of(case: Case, most: int) -> list[int]:
    """Return a few of the rows that are wrong and finite, the one in the middle first."""
    name = _output(case)
    if name is None:
        return []
    finite = np.isfinite(case.canonical(name)[0]).all(axis=(0, 2))
    found = np.flatnonzero(wrong_rows(case) & finite)
    places = np.unique(np.linspace(0, len(found) - 1, min(len(found), most)).astype(int))
    return sorted(found[places].tolist(), key=lambda row: abs(row - found[len(found) // 2]))


# Packed sequences.


def _found_ids(case: Case) -> Ints | None:
    """Return the numbers (B, L) of the sequences that the files of a case show.

    None where a row is of no sequence, or rules end rows where a sequence might.
    """
    problem, visible = case.problem, case.problem.visible
    batches, _, queries, keys = problem.shape
    if visible.window is not None or queries != keys or any(map(visible.offset, range(batches))):
        return None
    entries = range(batches) if case.part.batch is None else [0]
    first_key: Callable[[int, int], int | None]
    if case.whole and not case.comparable:
        return None
    if "weights" in case.files and case.canonical("weights").ndim == 4:
        first_key = partial(_first_of_weights, case.canonical("weights"))
    elif "context" in case.files and problem.value is not None:
        first_key = partial(_first_of_context, case)
    else:
        return None
    found = []
    for b in entries:
        begins, end = np.zeros(queries, np.int64), queries
        while end:
            first = first_key(b, end)
            if first is None or case.question.work.over:
                return None
            begins[first], end = 1, first
        found.append(np.cumsum(begins) - 1)
    return np.array(found)


def _first_of_weights(weights: Array, b: int, end: int) -> int | None:
    """Return the first key of the sequence that ends before one, if there is any."""
    seen = np.flatnonzero(weights[b, :, end - 1, :end].any(axis=0))
    if not seen.size:
        return None
    # What one query gives too little to be written, others do not.
    others = weights[b][:, _some_rows(int(seen[0]), end), :end]
    return int(np.flatnonzero(others.any(axis=(0, 1)))[0])


def _first_of_context(case: Case, b: int, end: int) -> int | None:
    """Return the first key of the sequence that ends before one, if it is seen in some rows."""

    def errors(i: int, first: Ints) -> Array:
        # A row at a time, as all rows of a large problem are too many.
        look = Look(case.row(b, i), {"segment_ids"})
        case.question.work.spend(first.size)
        return look.errors_of(0, 0, first, np.full(first.size, end))

    good = as_good(errors(end - 1, np.arange(end)))
    if not good.size:
        return None
    # Keys to which one query gives next to no weight have more of another.
    rows = _some_rows(int(good[-1]), end).tolist()
    best = good[as_good(np.mean([errors(i, good) for i in rows], axis=0))]
    # What hidden keys leave open is as it is stated.
    segments = case.problem.visible.segment_ids
    ids: Array = (
        np.zeros(0) if segments is None else np.asarray(segments.queries[b % len(segments.queries)])
    )
    stated = [0, *_begins(ids)] if len(ids) else []
    return next(map(int, (*best[np.isin(best, stated)], *best)), None)


def _some_rows(first: int, end: int) -> Ints:
    return np.unique(np.linspace(first, end - 1, _ROWS).astype(int))


def _begins(ids: Array) -> list[int]:
    """Return the tokens at which a sequence begins, after the first one."""
    return [int(token) for token in np.flatnonzero(np.diff(ids)) + 1]


def _listed(ids: Ints, option: str = "--segment-ids") -> str:
    """Return the option that states the sequences, if they fit there."""
    if (ids != ids[0]).any() or ids.shape[1] > _LISTED:
        return ""
    return f"{option} {','.join(map(str, ids[0].tolist()))}"


def segments_unasked(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that queries see only keys of their own packed sequence."""
    if cases[0].problem.visible.segment_ids is not None:
        return None
    ids = _found_ids(cases[0])
    # Tokens that each see only themselves are no sequences.
    several = ids is not None and ids.any() and (ids != np.arange(ids.shape[1])).any()
    return _unasked(ids) if ids is not None and several else None


def as_segments(case: Case, mask: Bools, right: Bools) -> Mistake | None:
    """Return the same, of the mask that the files show and of what the rules let see.

    None where the problem states sequences, the masks are others, or not all queries were looked
    at.
    """
    problem = case.problem
    stated = problem.visible.segment_ids is not None
    if stated or case.part != WHOLE or problem.shape[2] != problem.shape[3]:
        return None
    own, given = mask[:, :1], right[:, :1]
    if not ((mask == own).all() and (right == given).all()):
        return None
    before, after = (np.diagonal(given & ~own, step, axis1=2, axis2=3)[:, 0] for step in (-1, 1))
    begins = np.pad(before | after, ((0, 0), (1, 0)))
    ids = np.cumsum(begins, axis=1, dtype=np.int64)
    together = given[:, 0] & (ids[:, :, None] == ids[:, None])
    return _unasked(ids) if begins.any() and np.array_equal(own[:, 0], together) else None


def _unasked(ids: Ints) -> Mistake:
    begins = [_begins(each) for each in ids]
    pairs = [
        (f"batch entry {b}", _tokens(each) if each else "none") for b, each in enumerate(begins)
    ]
    alike = all(each == begins[0] for each in begins)
    where = f"begin at {_tokens(begins[0])}" if alike else f"begin at: {told(pairs, 'at')}"
    return Mistake(
        "segments_unasked",
        "queries see only keys of their own part of the row, as of packed sequences, which the "
        "problem "
        f"does not state: new ones {where}",
        lambda pipe: pipe.with_rule("segment_ids", measured(ids, ids)),
        stages.SEGMENTS,
        "let each query see the keys of the whole row, or state the sequences: segment_ids "
        "(--segment-ids)",
        "as long a row",
        lambda _: _listed(ids),
        needs=frozenset({"batch"}),
        variant_of=("chunks_unasked",),
    )


def _tokens(begins: Sequence[int]) -> str:
    return f"{'token' if len(begins) == 1 else 'tokens'} {first_few([str(n) for n in begins])}"


def segments_elsewhere(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that packed sequences begin elsewhere than the problem states."""
    stated = cases[0].problem.visible.segment_ids
    if stated is None or not np.array_equal(stated.queries, stated.keys):
        return None
    ids = _found_ids(cases[0])
    if ids is None:
        return None
    right = np.broadcast_to(stated.queries, ids.shape)
    words = [
        list(_moves(_begins(one), _begins(other))) for one, other in zip(ids, right, strict=True)
    ]
    alike = all(each == words[0] for each in words)
    said = (
        words[0]
        if alike
        else [f"in batch entry {b}, {w}" for b, own in enumerate(words) for w in own]
    )
    if not said:
        return None
    apart = stated.queries is not stated.keys
    return Mistake(
        "segments_elsewhere",
        f"the packed sequences are not those of segment_ids: {'; '.join(said[:4])}"
        + (f"; and {len(said) - 4} more" if len(said) > 4 else ""),
        lambda pipe: pipe.with_rule("segment_ids", measured(ids, ids)),
        stages.SEGMENTS,
        FROM_LENGTHS,
        "packed sequences of other lengths",
        # What is stated of the keys would be as it was.
        lambda _: _listed(ids) + (" (without --kv-segment-ids)" if apart and _listed(ids) else ""),
        needs=frozenset({"batch"}),
        variant_of=("chunks_unasked",),
    )


def _moves(found: Sequence[int], right: Sequence[int]) -> Iterator[str]:
    """Say what begins elsewhere: a missing beginning and an odd one side by side are one."""
    odd, missing = {*found} - {*right}, {*right} - {*found}
    tokens = sorted({*found, *right}, reverse=True)
    while tokens:
        token = tokens.pop()
        after = tokens[-1] if tokens else None
        if token in odd and after in missing:
            yield f"a sequence begins at token {token} where {tokens.pop()} is right"
        elif token in missing and after in odd:
            yield f"a sequence begins at token {tokens.pop()} where {token} is right"
        elif token in odd:
            yield f"a sequence begins at token {token} where none should"
        elif token in missing:
            yield f"no sequence begins at token {token}"


def segments_cut_short(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that no more keys of a sequence count than a kernel expects."""
    problem = cases[0].problem
    stated = problem.visible.segment_ids
    if stated is None:
        return None
    places = np.stack([_places(ids) for ids in stated.keys])
    longest = tuple(int(places[b % len(places)].max()) + 1 for b in range(problem.shape[0]))
    numbers = np.arange(1, max(longest) + 1)

    def spans(b: int, i: int) -> tuple[Ints, Ints]:
        number = stated.queries[b % len(stated.queries), i]
        own = np.flatnonzero(stated.keys[b % len(stated.keys)] == number)
        if not own.size:
            return np.zeros_like(numbers), np.zeros_like(numbers)
        return np.full_like(numbers, own[0]), own[np.minimum(numbers, own.size) - 1] + 1

    found = found_numbers(cases, Family(numbers, set(), spans, longest))
    if found is None:
        return None
    count = min(n for n, most in zip(found, longest, strict=True) if n != most)
    # Entries without a longer sequence are as they should be.
    if found != tuple(min(count, most) for most in longest):
        return None
    nowhere = max(stated.queries.max(), stated.keys.max()) + 1  # of no query
    keys = np.where(places < count, stated.keys, nowhere)
    words = "the first key counts" if count == 1 else f"the first {count} keys count"
    return Mistake(
        "segments_cut_short",
        f"of each packed sequence, only {words}",
        lambda pipe: pipe.with_rule("segment_ids", measured(stated.queries, keys)),
        stages.SEGMENTS,
        "give the kernel the length of the longest sequence: max_seqlen_k",
        f"packed sequences of more than {counted(count, 'token')}",
        lambda _: _listed(keys, "--kv-segment-ids"),
        needs=frozenset({"batch", "heads"}),
    )


def _places(ids: Ints) -> Ints:
    """Return where each token stands in its sequence, (L,)."""
    order = np.argsort(ids, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(ids)) - np.searchsorted(ids[order], ids[order])
    return places


# Blocks on the diagonal that a causal mask gets wrong beside others that are right. A block of
# queries that is wrong is wrong in all of its rows, but for the last one where it sees the block
# of keys on the diagonal to its end. So the rows of a file tell the size of the blocks.

_SIZES = (*range(2, 16), *range(16, 1025, 8))
# Of the rows that should be wrong, that many are where a block is; rows against expectation, as a
# share of those that are wrong; ways that come nearest, and rows in which they are tried.
_MOST, _STRAY, _TRIED, _TRIED_ROWS = 0.5, 0.25, 16, 4


class _Way(NamedTuple):
    """Which blocks of so many queries are wrong, and whether they see all keys on the diagonal."""

    size: int
    blocks: Array
    queries: int
    to_the_end: bool

    def seen(self, i: Array, j: Array) -> Bools:
        """Return which keys some queries see."""
        block = i // self.size
        end = (block + self.to_the_end) * self.size
        return np.asarray(j < np.where(np.isin(block, self.blocks), end, i + 1))

    @property
    def where(self) -> str:
        """Which blocks are wrong; of one alone its queries, as it may be cut off at the end."""
        wrong, every = self.blocks.tolist(), list(range(-(-self.queries // self.size)))
        if len(wrong) == 1:
            start = wrong[0] * self.size
            return f"the block of queries {start} to {min(start + self.size, self.queries) - 1}"
        named = {
            "every odd block": every[1::2],
            "every even block": every[::2],
            "every block but the first": every[1:],
            "every block but the last": every[:-1],
        }
        others = f"blocks {first_few([str(block) for block in wrong])}"
        which = next((words for words, blocks in named.items() if blocks == wrong), others)
        return f"{which} of {self.size} queries"


def diagonal_blocks(case: Case) -> Mistake | None:
    """Return the mistake that a causal mask is wrong in some blocks on the diagonal."""
    visible = case.problem.visible
    if not visible.causal or any(visible.offsets) or _output(case) is None:
        return None
    ways, rows = _ways(wrong_rows(case)), some_of(case, _TRIED_ROWS)
    if not ways or not rows:
        return None
    errors = np.zeros(len(ways))
    keys = np.arange(case.problem.shape[3])
    for row in rows:
        pipe, file = copies(case, row, len(ways))
        seen = np.stack([way.seen(np.array(row), keys) for way in ways])[None, None]
        errors += errors_of(case, pipe.with_rule("causal", table(seen)), file)
    way = ways[int(np.argmin(errors))]
    how, name, fix = (
        (
            "is seen to its end",
            "some_diagonal_blocks_unmasked",
            "mask every block of keys that ends behind the first query of the block",
        )
        if way.to_the_end
        else (
            "is not seen at all",
            "some_diagonal_blocks_lost",
            "let the loop over the blocks of keys end behind the diagonal, for every block of them",
        )
    )
    return Mistake(
        name,
        f"in {way.where} the block of keys on the diagonal {how}; in the others the causal mask is "
        "right",
        lambda pipe: pipe.with_rule("causal", lambda run: way.seen(run.i, run.j)),
        stages.CAUSAL_BLOCKS,
        fix,
        f"more keys than {way.size}",
        variant_of=("prefix_unasked",),
    )


def _ways(wrong: Bools) -> list[_Way]:
    """Return the ways in which blocks may be wrong where just these rows (L,) are, likely first."""
    found = [
        (stray, way)
        for size in _SIZES
        if size < len(wrong)
        for to_the_end in (True, False)
        for stray, way in _way(wrong, size, to_the_end=to_the_end)
    ]
    return [way for _, way in sorted(found, key=lambda item: item[0])[:_TRIED]]


def _way(wrong: Bools, size: int, *, to_the_end: bool) -> Iterator[tuple[int, _Way]]:
    """Yield how many rows are wrong or right against expectation, and the way, if there is one."""
    rows = np.arange(len(wrong))
    starts = rows[::size]
    expected = (rows % size != size - 1) if to_the_end else np.ones(len(rows), np.bool_)
    shares = np.add.reduceat(wrong & expected, starts) / np.add.reduceat(expected, starts)
    in_block = np.repeat(shares > _MOST, size)[: len(rows)]
    stray = int(np.count_nonzero(wrong != (in_block & expected)))
    blocks = np.flatnonzero(shares > _MOST)
    if 0 < len(blocks) < len(starts) and stray <= _STRAY * np.count_nonzero(wrong):
        yield stray, _Way(size, blocks, len(rows), to_the_end)


# Wrong positions of rotated queries and keys: a few off, or from 0 again.

_MOST_SCORES, _MOST_CHUNKS = 2**22, 64


def _number(
    case: Case, numbers: Ints, queries: Callable[[Ints, Ints], Ints], *, keys: bool = False
) -> int | None:
    """Return the number with which positions come nearest to all rows tried; None if none is near.

    ``queries`` makes positions of those of a query and the numbers; with ``keys``, those of the
    keys are made so, too.
    """
    rows = some_of(case, _ROWS) if case.pipe.rope is not None else []
    total = np.zeros(len(numbers))
    for row in rows:
        if not numbers.size or case.question.work.over:
            return None
        pipe, file = copies(case, row, 1 if keys else len(numbers))
        at, places = pipe.query_positions, pipe.key_positions
        if keys:
            made = [
                pipe.but(query_positions=queries(at, n), key_positions=queries(places, n))
                for n in numbers
            ]
            errors = np.concatenate([errors_of(case, one, file) for one in made])
        else:
            errors = errors_of(case, pipe.but(query_positions=queries(at, numbers)), file)
        near = errors <= SLACK * case.pipe.file.resolution
        total, numbers = (total + errors)[near], numbers[near]
    return int(numbers[int(np.argmin(total))]) if numbers.size and rows else None


def _sizes(case: Case) -> Ints:
    """Return how many tokens a chunk may have: powers of two, and even parts of the sequence.

    The largest stands first: where a slice shows only the first rows that are wrong, the others
    that divide it make the same.
    """
    keys = case.problem.shape[3]
    parts = {keys // n for n in range(2, min(_MOST_CHUNKS, keys // 2) + 1) if keys % n == 0}
    powers = {2**n for n in range(1, keys.bit_length()) if 2**n < keys}
    return np.array(sorted(parts | powers, reverse=True), np.int64)


def rope_queries_moved(case: Case) -> Mistake | None:
    """Return the mistake that queries are rotated as if they stood some positions further."""
    _, heads, queries, keys = case.problem.shape
    most = min(max(queries, keys), _MOST_SCORES // (2 * heads * keys))
    steps = np.arange(-most, most + 1)
    step = _number(case, steps[steps != 0], np.add)
    if step is None:
        return None
    return Mistake(
        "rope_queries_moved",
        f"the rotary embedding takes the queries {counted(abs(step), 'position')} too "
        f"{'late' if step > 0 else 'early'}",
        lambda pipe: pipe.but(query_positions=pipe.query_positions + step),
        stages.ROPE_PLACE,
        "rotate query i by the angle of position i + offset, and count padding and a cache for "
        "queries as for keys",
        "any query",
        choice=float(np.log2(2 * most)),
    )


def _restarting(case: Case, *, keys: bool) -> Mistake | None:
    """Return the mistake that positions begin anew after some, of queries, or of keys, too."""
    sizes = _sizes(case)
    size = _number(case, sizes, np.remainder, keys=keys) if sizes.size else None
    if size is None:
        return None

    def change(pipe: Pipeline) -> Pipeline | None:
        made = pipe.but(query_positions=pipe.query_positions % size)
        return made.but(key_positions=pipe.key_positions % size) if keys else made

    what = "queries and keys" if keys else "the queries"
    rest = "" if keys else ", and the keys through to the last"
    return Mistake(
        "rope_positions_restart" if keys else "rope_query_positions_restart",
        f"the rotary embedding counts {what} from 0 again after every {size:,} tokens{rest}",
        change,
        stages.ROPE_PLACE,
        "add to the position of a token where its chunk, or the part that its rank holds, begins "
        "in the sequence",
        "more than one chunk",
        choice=float(np.log2(len(sizes))),
        # Of queries of one chunk it is the same.
        variant_of=() if keys else ("rope_queries_moved",),
    )


FITTINGS = (
    at_first(diagonal_blocks, "rows"),
    at_first(rope_queries_moved),
    at_first(partial(_restarting, keys=False)),
    at_first(partial(_restarting, keys=True)),
    Fitting(segments_unasked, frozenset({"batch", "rows"})),
    Fitting(segments_cut_short, frozenset({"batch", "heads"})),
    Fitting(segments_elsewhere, frozenset({"batch", "rows"})),
)
