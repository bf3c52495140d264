"""Which keys are cut off where no rule cuts them, read off a few rows of a context.

Where a row sees keys a to b, running sums over its keys give the context of any such span,

    c_ab = Σ_{a ≤ j < b} exp(s_j) v_j / Σ_{a ≤ j < b} exp(s_j)

also behind an output projection. Each length of a batch entry, or each place of its queries, gives
one span in each row; the numbers of the file tell which it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors.text import counted
from attncli.referee.fits.numbers import told
from attncli.referee.fits.table import Fitting
from attncli.referee.formats import Array, Ints
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.masks import placed
from attncli.referee.mistakes.table import Change, Mistake, Stage
from attncli.referee.options import also_causal, placed_at, stands_in_corner, with_lengths
from attncli.referee.pipeline import (
    Pipeline,
    causal,
    evaluate,
    keys_of,
    lengths_of,
    projected_context,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.parts import Case

__all__ = [
    "FITTINGS",
    "LOST",
    "SLACK",
    "TYPICAL",
    "Family",
    "Look",
    "RunningSums",
    "as_good",
    "found_numbers",
]

# The spans of one row: where they begin, and the key behind their end, (n,) each.
Spans = tuple[Ints, Ints]
_NEEDS = frozenset({"batch", "heads"})
# Most errors are this small a share of what is tolerated; those of a row of few keys may be so
# large.
TYPICAL, SLACK = 1 / 8, 8.0
# What differences of running sums lose.
LOST = 1e-10
# Rows of a batch entry that are looked at, and columns of a projected context.
_ROWS, _COLUMNS = 8, 64
# Numbers that come so much nearer differ only by keys with next to no weight.
_AS_GOOD = 1.05
# More places of a diagonal would take seconds.
_MOST_STEPS = 2**19


class Family(NamedTuple):
    """What may have been another number than the right one.

    Attributes
    ----------
    numbers : ndarray of int (n,)
    instead_of : set of str
        The rules in the place of which the spans stand.
    spans : callable
        A batch entry and a query in, the span of each number out.
    right : sequence of int, of length B
        The right number of each batch entry.
    """

    numbers: Ints
    instead_of: set[str]
    spans: Callable[[int, int], Spans]
    right: Sequence[int]


class RunningSums:
    """Running sums over the keys of one row: of exp(score), and of exp(score) · value."""

    def __init__(self, scores: Array, value: Array, sink: float) -> None:
        top = max(float(scores.max()), sink)
        shares = np.exp(scores - top) if top > -math.inf else np.zeros(len(scores))
        products = np.cumsum(shares[:, None] * value, axis=0)
        self.shares = np.concatenate([[0.0], np.cumsum(shares)])
        self.values = np.concatenate([np.zeros((1, value.shape[1])), products])
        self.sink = math.exp(sink - top) if sink > -math.inf else 0.0

    def contexts(self, first: Ints, end: Ints) -> Array:
        """Return the contexts of spans, (n, E); 0 where no key is left."""
        shares = self.shares[end] - self.shares[first] + self.sink
        sums = self.values[end] - self.values[first]
        return np.asarray(sums / np.where(shares > 0, shares, 1)[:, None])


class Look:
    """A case, and how far rows of its file are from the context of spans of keys.

    Parameters
    ----------
    case : Case
    instead_of : set of str
        The rules in the place of which the spans stand.
    """

    def __init__(self, case: Case, instead_of: set[str]) -> None:
        self._case, pipe = case, case.pipe
        self.file, self.right = case.canonical("context"), case.right["context"]
        lost = LOST * float(np.abs(self.right).max(initial=0.0))
        self.error = max(pipe.file.resolution + lost, float(np.finfo(np.float64).tiny))
        rules = {name: rule for name, rule in pipe.rules.items() if name not in instead_of}
        self.scores = evaluate(pipe.but(rules=rules), case.part, memory=case.memory)["scores"]
        value = case.run.operand("value")
        value = np.repeat(value, self.scores.shape[1] // value.shape[1], axis=1)
        self._value = np.broadcast_to(value, (len(self.scores), *value.shape[1:]))
        none = np.full(self.scores.shape[1], -np.inf)
        self.sinks = none if pipe.sinks is None else case.run.by_head(pipe.sinks).ravel()
        count = self.file.shape[-1]
        columns = np.unique(np.linspace(0, count - 1, min(count, _COLUMNS)).astype(int))
        self._columns = slice(None) if pipe.output is None else columns

    @property
    def first_query(self) -> int:
        """The query of the first row."""
        return 0 if self._case.part.rows is None else self._case.part.rows[0]

    def wrong_rows(self, b: int) -> list[int]:
        """Return some of the rows of a batch entry that are wrong."""
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(self.file[b] - self.right[b]) <= TYPICAL * self.error)
        rows = np.flatnonzero(wrong.any(axis=(0, 2)))
        some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(int))
        return [int(row) for row in rows[some]]

    def sums(self, b: int, h: int, i: int) -> RunningSums:
        """Return the running sums of a row of a head."""
        return RunningSums(self.scores[b, h, i], self._value[b, h], float(self.sinks[h]))

    def errors_of(self, b: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the mean squared error of spans (n,) of keys in a row of a batch entry, (n,).

        In units of what is tolerated; infinite where some error is far larger.
        """
        heads = range(self.scores.shape[1])
        if self._case.pipe.output is not None:
            contexts = np.stack([self.sums(b, h, i).contexts(first, end) for h in heads])
            made = projected_context(self._case.run, contexts[None])[0]
            error = np.abs(made - self.file[b, :, i, None])[..., self._columns]
            within, squares = self._squares(error)
            return np.where(within, squares, np.inf)
        errors, left = np.zeros(first.size), np.arange(first.size)
        for h in heads:
            made = self.sums(b, h, i).contexts(first[left], end[left])
            within, squares = self._squares(np.abs(made - self.file[b, h, i])[None])
            errors[left[~within]] = np.inf
            errors[left] += squares / len(heads)
            left = left[within]
            if not left.size:  # other heads make none of these good
                break
        return errors

    def _squares(self, error: Array) -> tuple[Array, Array]:
        """Return which spans are near everywhere, and their mean squares; error (..., n, E)."""
        within = np.asarray((error <= SLACK * self.error).all(axis=(0, 2)))
        shares = np.minimum(error, SLACK * self.error) / self.error
        return within, np.square(shares).mean(axis=(0, 2))


def as_good(errors: Array) -> Ints:
    """Return the places of the least error and of those about as small; of none if all is off."""
    least = float(errors.min(initial=np.inf))
    good = errors <= _AS_GOOD * least if np.isfinite(least) else np.zeros(0, np.bool_)
    return np.flatnonzero(good)


def found_numbers(cases: Sequence[Case], family: Family) -> tuple[int, ...] | None:
    """Return the number of each batch entry that its rows show.

    None where the files hold no context, or what no number makes, or what the right ones make.
    """
    if cases[0].pipe.value is None or any("context" not in case.files for case in cases):
        return None
    if not all(case.comparable for case in cases):
        return None
    looks = [Look(case, family.instead_of) for case in cases]
    numbers = []
    for b, right in enumerate(family.right):
        errors = [
            look.errors_of(b, i, *family.spans(b, look.first_query + i))
            for look in looks
            for i in look.wrong_rows(b)
        ]
        cases[0].question.work.spend(sum(error.size for error in errors))
        if cases[0].question.work.over:
            return None
        if not errors:
            numbers.append(right)
            continue
        good = family.numbers[as_good(np.mean(errors, axis=0))]
        if not good.size:
            return None
        # Of those about as good the nearest to the right one.
        numbers.append(int(good[np.argmin(np.abs(good - right))]))
    return None if tuple(numbers) == tuple(family.right) else tuple(numbers)


def _mistake(
    name: str,
    meaning: str,
    change: Change,
    stage: Stage,
    fix: str,
    shows: str = "more than one key",
    option: Callable[[Problem], str] = lambda _: "",
    variant_of: tuple[str, ...] = (),
) -> Mistake:
    return Mistake(
        name, meaning, change, stage, fix, shows, option, needs=_NEEDS, variant_of=variant_of
    )


def _positions(problem: Problem, b: int, i: int) -> int:
    return i + problem.visible.offset(b)


def _ends(problem: Problem, positions: Ints) -> Spans:
    """Return the keys that a query sees at each position; causal where no rule is stated."""
    visible, keys = problem.visible, problem.shape[3]
    left, right = visible.window or (None, None)
    if visible.causal or visible.window is None:
        right = 0
    first = np.zeros_like(positions) if left is None else positions - left
    end = np.full_like(positions, keys) if right is None else positions + right + 1
    return np.clip(first, 0, keys), np.clip(end, 0, keys)


def _first(count: int) -> str:
    """Return the words for the first so many keys, without their noun."""
    return "the first" if count == 1 else f"the first {count}"


# Lengths and padding.


def other_lengths(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that batch entries have other lengths than the problem states."""
    problem = cases[0].problem
    right, numbers = lengths_of(problem), np.arange(problem.shape[3] + 1)
    lengths = found_numbers(
        cases,
        Family(numbers, {"kv_lengths"}, lambda *_: (np.zeros_like(numbers), numbers), right),
    )
    moved = lengths is None
    if lengths is None:
        lengths = _lengths_in_corner(cases, numbers, right)
    # Rows of zeros have more likely not been written.
    if lengths is None or any(new == 0 < old for new, old in zip(lengths, right, strict=True)):
        return None
    steps = np.array(lengths) - np.array(right)

    def change(pipe: Pipeline) -> Pipeline | None:
        cut = pipe.with_rule("kv_lengths", keys_of(lengths))
        return placed(cut, tuple(pipe.offsets + steps)) if moved else cut

    name, meaning, fix = _lengths_in_words(problem, lengths)
    return _mistake(
        name,
        meaning,
        change,
        stages.PADDING,
        fix,
        "more keys than these lengths",
        lambda p: with_lengths(lengths, p, moved=moved),
        ("other_padding",),
    )


def _lengths_in_corner(
    cases: Sequence[Case], numbers: Ints, right: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the lengths that files show if the last query stands at the last key of each."""
    problem = cases[0].problem
    ruled = problem.visible.causal or problem.visible.window is not None
    moves_more = problem.alibi_slopes is not None or problem.rope is not None
    if not (ruled and stands_in_corner(problem)) or moves_more:
        return None

    def spans(b: int, i: int) -> Spans:
        first, end = _ends(problem, _positions(problem, b, i) + numbers - right[b])
        return np.minimum(first, numbers), np.minimum(end, numbers)

    return found_numbers(cases, Family(numbers, {"kv_lengths", "causal", "window"}, spans, right))


def _lengths_in_words(problem: Problem, lengths: tuple[int, ...]) -> tuple[str, str, str]:
    """Return name, meaning and fix of the mistake that batch entries have these lengths."""
    right = lengths_of(problem)
    if problem.visible.kv_lengths is not None:
        pairs = [
            (f"batch entry {b}", f"{counted(new, 'key')} where {old} are right")
            for b, (new, old) in enumerate(zip(lengths, right, strict=True))
            if new != old
        ]
        return (
            "other_lengths",
            f"batch entries take other lengths: {told(pairs, 'takes')}",
            "give each batch entry the length that the problem states",
        )
    return (
        "padding_unasked",
        (
            f"the last keys do not count, like padding, {_beyond(problem)}: "
            f"{_counting(problem.shape[3], lengths)}"
        ),
        "let every key count, or state the padding: kv_lengths (--kv-lengths)",
    )


def _counting(keys: int, lengths: tuple[int, ...]) -> str:
    """Say how many of the keys of each batch entry count."""
    if len(set(lengths)) > 1:
        pairs = [(f"batch entry {b}", f"{n} of {keys} keys") for b, n in enumerate(lengths)]
        return told(pairs, "has")
    return f"only {_first(lengths[0])} of {keys} {'counts' if lengths[0] == 1 else 'count'}"


def _beyond(problem: Problem) -> str:
    if problem.visible.key_padding_mask is None:
        return "which the problem does not state"
    return "beside that which the problem states"


def causal_and_padding_unasked(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake of a causal mask beside padding, where the problem states neither."""
    problem = cases[0].problem
    visible, (_, _, queries, keys) = problem.visible, problem.shape
    padded = visible.kv_lengths is not None or visible.key_padding_mask is not None
    # Of one query, a causal mask is only another length.
    if padded or visible.causal or visible.window is not None or queries == 1:
        return None
    numbers = np.arange(1, keys + 1)
    lengths = found_numbers(
        cases,
        Family(
            numbers,
            set(),
            lambda b, i: (
                np.zeros_like(numbers),
                np.minimum(numbers, max(_positions(problem, b, i) + 1, 0)),
            ),
            lengths_of(problem),
        ),
    )
    if lengths is None:
        return None

    def option(problem: Problem) -> str:
        options = also_causal("top-left")(problem), with_lengths(lengths, problem, moved=False)
        return " ".join(options) if all(options) else ""

    return _mistake(
        "causal_and_padding_unasked",
        "a causal mask is applied, and the last keys do not count, like padding; the problem "
        "states "
        f"neither: {_counting(keys, lengths)}",
        lambda pipe: pipe.with_rule("kv_lengths", keys_of(lengths)).with_rule(
            "causal", causal(pipe.offsets)
        ),
        stages.PADDING,
        "leave causal mask and padding out, or state both: causal (--causal) and kv_lengths "
        "(--kv-lengths)",
        "more than one key, and more than these lengths",
        option,
    )


def padding_on_the_left_unasked(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that the first keys are padding, which the problem does not state."""
    problem = cases[0].problem
    keys = problem.shape[3]
    numbers = np.arange(keys)
    counts = found_numbers(
        cases,
        Family(
            numbers,
            set(),
            lambda *_: (numbers, np.full_like(numbers, keys)),
            (0,) * problem.shape[0],
        ),
    )
    if counts is None or (np.array(counts) >= lengths_of(problem)).any():
        return None
    pairs = [(f"batch entry {b}", f"its first {n}") for b, n in enumerate(counts) if n]
    one = "key 0" if counts[0] == 1 else f"keys 0 to {counts[0] - 1}"
    words = told(pairs, "loses") if len(set(counts)) > 1 else one
    return _mistake(
        "padding_on_the_left_unasked",
        f"the first keys do not count, like padding, {_beyond(problem)}: {words}",
        lambda pipe: pipe.with_rule("left", lambda run: run.j >= run.by_entry(counts)),
        stages.PADDING,
        "let every key count, or state the padding: key_padding_mask (--key-padding-mask)",
        "as many keys",
        # The second and the third are of a single query.
        variant_of=("other_padding", "window_unasked", "another_window"),
    )


def other_padding(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that the padding at one end of the keys is longer or shorter."""
    problem = cases[0].problem
    mask, keys = problem.visible.key_padding_mask, problem.shape[3]
    if mask is None:
        return None
    mask = np.broadcast_to(mask, (problem.shape[0], keys))
    right = tuple(map(int, np.count_nonzero(mask, axis=1)))
    sides = (side for side in ("first", "last") if (_real(side, right, keys) == mask).all())
    if (side := next(sides, None)) is None:
        return None
    numbers = np.arange(keys + 1)
    every = np.full_like(numbers, keys)
    spans = (np.zeros_like(numbers), numbers) if side == "first" else (keys - numbers, every)
    counts = found_numbers(cases, Family(numbers, {"key_padding_mask"}, lambda *_: spans, right))
    if counts is None or not all(counts):
        return None
    pairs = [
        (f"batch entry {b}", f"its {side} {counted(new, 'key')} where {old} are right")
        for b, (new, old) in enumerate(zip(counts, right, strict=True))
        if new != old
    ]
    real = _real(side, counts, keys)[:, None, None]
    return _mistake(
        "other_padding",
        f"another key_padding_mask: {told(pairs, 'sees')}",
        lambda pipe: pipe.with_rule("key_padding_mask", table(real)),
        stages.PADDING,
        "hide the keys that the problem hides, no more and no fewer",
        "more keys than these",
    )


def _real(side: str, counts: Sequence[int], keys: int) -> Array:
    """Return which keys are real (B, S), if so many at one end of them are."""
    places = np.arange(keys) if side == "first" else np.arange(keys)[::-1]
    return np.asarray(places < np.array(counts)[:, None])


# Diagonals.


def another_offset(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that causal rule and window lie at another diagonal."""
    problem = cases[0].problem
    visible, (batch, _, queries, keys) = problem.visible, problem.shape
    unasked = not visible.causal and visible.window is None
    most = max(queries, keys)
    if (unasked and queries == 1) or most > _MOST_STEPS:  # only a length
        return None
    numbers = np.arange(-most, most + 1)
    steps = found_numbers(
        cases,
        Family(
            numbers,
            {"causal", "window"},
            lambda b, i: _ends(problem, _positions(problem, b, i) + numbers),
            (most if unasked else 0,) * batch,
        ),
    )
    # No rule at all, or one that leaves nothing, is something else.
    end = keys - 1 if visible.window is None else most
    if steps is None or any(
        step and not -queries < visible.offset(b) + step < end for b, step in enumerate(steps)
    ):
        return None
    offsets = tuple(visible.offset(b) + step for b, step in enumerate(steps))
    moved = [b for b, step in enumerate(steps) if step or unasked]
    if unasked:
        name = "causal_unasked_at_another_offset"
        meaning = "a causal mask is applied, but the problem is not causal: "
        fix = (
            "leave the causal mask out, or state that the problem is causal, and where its queries "
        )
        fix += "stand"
    else:
        name, meaning = "another_offset", "queries stand at other keys than the problem states: "
        fix = "add the offset that the problem states to the index of a query: the number of keys "
        fix += "that come before query 0"
    return _mistake(
        name,
        meaning + _stands(offsets, moved),
        lambda pipe: placed(pipe, offsets, unasked=unasked),
        stages.CAUSAL,
        fix,
        option=lambda problem: placed_at(offsets, problem, causal=unasked),
    )


def _stands(offsets: tuple[int, ...], entries: Sequence[int]) -> str:
    """Say where the queries of some batch entries stand."""
    there = [f"i + {o}" if o > 0 else f"i − {-o}" if o else "i" for o in offsets]
    if len(set(offsets)) == 1:
        return f"query i at key {there[0]}"
    return told(((f"query i of batch entry {b}", f"key {there[b]}") for b in entries), "at")


def prefix_unasked(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that every query sees the first keys, beside those before it (T5)."""
    problem = cases[0].problem
    visible, keys = problem.visible, problem.shape[3]
    # Of one query, a prefix is only another length.
    if not visible.causal or visible.window is not None or problem.shape[2] == 1:
        return None
    numbers = np.arange(keys)
    found = found_numbers(
        cases,
        Family(
            numbers,
            {"causal"},
            lambda b, i: (
                np.zeros_like(numbers),
                np.maximum(numbers, min(max(_positions(problem, b, i) + 1, 0), keys)),
            ),
            (0,) * problem.shape[0],
        ),
    )
    if found is None:
        return None
    prefixes = found
    pairs = [(f"batch entry {b}", counted(n, "key")) for b, n in enumerate(prefixes)]
    words = f"{_first(prefixes[0])} {'key' if prefixes[0] == 1 else 'keys'}"
    if len(set(prefixes)) > 1:
        words = f"the first keys ({told(pairs, 'has')})"

    def change(pipe: Pipeline) -> Pipeline | None:
        own = pipe.rules.get("causal")
        if own is None:
            return None
        return pipe.with_rule(
            "causal", lambda run: run.called(own) | (run.j < run.by_entry(prefixes))
        )

    return _mistake(
        "prefix_unasked",
        f"every query sees {words}, also those that stand before their end: a prefix, which the "
        "problem does not state",
        change,
        stages.CAUSAL,
        "hide later keys from the queries of the prefix, too; or state a mask in the place of the "
        "causal rule",
    )


def chunks_unasked(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that a query sees only keys of its chunk, up to its own (Llama 4)."""
    problem = cases[0].problem
    batch, _, queries, keys = problem.shape
    # Of one query, a chunk is only a window.
    if not problem.visible.causal or queries == 1:
        return None
    sizes = np.arange(1, keys + 1)

    def spans(b: int, i: int) -> Spans:
        position = _positions(problem, b, i)
        first = np.clip(position // sizes * sizes, 0, keys)
        return first, np.full_like(sizes, min(max(position + 1, 0), keys))

    # A chunk of all keys is none; beside a window, none is right.
    windowless = problem.visible.window is None
    found = found_numbers(
        cases, Family(sizes, {"window"}, spans, (keys if windowless else 0,) * batch)
    )
    # A boundary that no other follows as far behind it is that of two parts of any length.
    if found is None or len(set(found)) > 1 or not 1 < found[0] <= keys // 2:
        return None
    size = found[0]
    return _mistake(
        "chunks_unasked",
        f"a query sees only keys of its own chunk of {size} tokens"
        f"{'' if windowless else ', not in the window'}, as in the local layers of Llama 4",
        lambda pipe: pipe.with_rule(
            "window", lambda run: run.j // size == (run.i + run.by_entry(pipe.offsets)) // size
        ),
        stages.WINDOW,
        "let a query see the keys that its window leaves, or without a window all before it",
        "more keys than a chunk has",
    )


FITTINGS = tuple(
    Fitting(look, _NEEDS)
    for look in (
        other_lengths,
        causal_and_padding_unasked,
        other_padding,
        padding_on_the_left_unasked,
        another_offset,
        prefix_unasked,
        chunks_unasked,
    )
)
