"""How often each key counts in a row, read off weights or a context.

Where key j counts c_j times, every number of the context is Σ_j c_j e_ij v_je / Σ_j c_j e_ij with
e = exp(scores), so that

    Σ_j c_j e_ij (v_je − c_ie) = 0

for each query i and column e: equations that are linear in the counts, far more of them than there
are keys. Weights are the context of values 1 and 0, a column for each key. Where the file shows
the weights themselves, or values that tell them, each row has counts of its own: a mask, the
strongest keys, dropout.
"""

from __future__ import annotations

import math
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors.text import counted, labelled, places
from attncli.referee.fits.numbers import distance_of, fewest_digits
from attncli.referee.fits.segments import as_segments
from attncli.referee.fits.spans import SLACK, TYPICAL, Look, RunningSums
from attncli.referee.fits.table import Fitting, at_first
from attncli.referee.formats import Array, Bools, short_of
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.heads import of_context
from attncli.referee.mistakes.table import Change, Mistake
from attncli.referee.pipeline import Part, Pipeline, Run, Stage, evaluate
from attncli.referee.tolerance import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.parts import Case

__all__ = ["FITTINGS", "SHOWN"]

_MOST_KEYS, _MOST_COUNTS = 1024, 64
# So many equations for each key, at least.
_EQUATIONS = 2
# A key whose part in all equations together is less than so many errors tells nothing of its count.
_TELLING, _NEAR, _LOSS = 30.0, 0.1, 1e-6
# Batch entries of which keys are listed, and ranges of keys in each.
_ENTRIES, _RANGES, _NAMED = 4, 6, 3


# The same counts in all rows of a batch entry.


def counted_keys(case: Case) -> Mistake | None:
    """Return the mistake that some keys, or the sink, count more than once or not at all."""
    counts = _counts(case)
    if counts is None or (counts == 1).all():
        return None
    alike = (counts == counts[0]).all()
    words = [
        f"{'' if alike else f'in batch entry {b}, '}{said}"
        for b, own in enumerate(counts[:1] if alike else counts)
        if (said := " and ".join(_words(own)))
    ]
    more = len(words) - _ENTRIES
    words = words if more <= 0 else [*words[:_ENTRIES], f"and so on in {more} more"]
    lost = counts.max() == 1 and (counts[:, -1] == 1).all()
    with np.errstate(divide="ignore"):
        times = np.log(counts)

    def again(run: Run, scores: Array) -> Array:
        more: Array = run.part.of(times[:, None, None, :-1]).astype(scores.dtype)
        return scores + more

    def change(pipe: Pipeline) -> Pipeline:
        made = pipe.with_step("again", again, before="hide" if "hide" in pipe.order else None)
        return made if pipe.sinks is None else made.but(sinks=pipe.sinks + times[0, -1])

    return Mistake(
        "counted_keys",
        f"the numbers are right if {'; '.join(words)}",
        change,
        stages.BLOCKS,
        "count every key; where these are padding, state it: key_padding_mask (--key-padding-mask)"
        if lost
        else "count every key and the sink once: parts of the keys must not overlap, and an index "
        "beyond the last key must not be read as the last one",
        needs=frozenset({"batch"}),
        variant_of=(
            *("padding_unasked", "other_lengths", "padding_on_the_left_unasked"),
            *("sinks_counted", "window_ignored"),
        ),
    )


def _counts(case: Case) -> Array | None:
    """Return how often each key counts, and last the sink, (B, S + 1); None if that is hidden."""
    name = next((name for name in ("weights", "context") if name in case.files), None)
    keys = case.problem.shape[3]
    if name is None or keys > _MOST_KEYS or not case.comparable:
        return None
    file = case.canonical(name)
    if not np.isfinite(file).all() or file.shape != case.right[name].shape:
        return None
    if name == "context" and case.pipe.output is not None:
        return None
    weights, sinks = case.right["weights"], case.pipe.sinks
    rest = np.zeros((*weights.shape[:3], 1))
    if sinks is not None:
        rest = np.exp(case.run.by_head(sinks) - case.right["lse"])
    shares = np.concatenate([weights, rest], axis=-1)
    # The value of the sink is 0.
    value = np.eye(keys)[None, None] if name == "weights" else case.run.operand("value")
    value = np.repeat(value, max(1, shares.shape[1] // value.shape[1]), axis=1)
    value = np.pad(value, ((0, 0), (0, 0), (0, 1), (0, 0)))
    value = np.broadcast_to(value, (*shares.shape[:2], *value.shape[2:]))
    case.question.work.spend(keys * keys * shares.shape[0] * shares.shape[1])
    products = np.stack(
        [sum(map(_products, shares[b], value[b], file[b])) for b in range(len(file))]
    )
    error, equations = TYPICAL * case.pipe.file.resolution, file.size / shares.shape[-1]
    if equations >= _EQUATIONS and (common := _whole(products.sum(axis=0), error)) is not None:
        return np.broadcast_to(common, (len(file), len(common)))
    if equations < _EQUATIONS * len(file):
        return None
    each = [own for one in products if (own := _whole(one, error)) is not None]
    return np.stack(each) if len(each) == len(file) else None


def _products(shares: Array, value: Array, file: Array) -> Array:
    """Return the sums over all equations of the products of what two counts are multiplied with."""
    lengths = np.square(file).sum(axis=-1, keepdims=True)
    mixed = shares.T @ (shares * (file @ value.T))
    return np.asarray(
        (shares.T @ shares) * (value @ value.T) - mixed - mixed.T + shares.T @ (lengths * shares)
    )


def _whole(products: Array, error: float) -> Array | None:
    """Return the whole numbers that solve the equations; 1 where they say nothing."""
    lengths = np.sqrt(np.maximum(np.diagonal(products), 0))
    telling = lengths > max(_TELLING * error, _LOSS * float(lengths.max()))
    if not telling.any():
        return None
    solution = np.abs(np.linalg.eigh(products[np.ix_(telling, telling)])[1][:, 0])
    usual = float(np.median(solution))
    units = usual, float(solution.min(initial=usual, where=solution > usual / _MOST_COUNTS))
    for unit in units:
        counts = np.ones(len(products))
        counts[telling] = solution / unit if unit else np.inf
        if counts.max() <= _MOST_COUNTS and (np.abs(counts - counts.round()) <= _NEAR).all():
            return counts.round().astype(np.int64)
    return None


def _words(counts: Array) -> list[str]:
    """Say which keys, and whether the sink, do not count once."""
    keys, sink = counts[:-1], int(counts[-1])
    words = []
    for count in dict.fromkeys(keys[keys != 1].tolist()):
        which = np.flatnonzero(keys == count)
        several = len(which) > 1
        words.append(f"key{'s' * several} {_ranges(which)} {_times(count, several=several)}")
    return [*words, *([f"the sink {_times(sink)}"] if sink != 1 else [])]


def _ranges(numbers: Array) -> str:
    """List numbers, those in a row as one range; the first of many."""
    runs = groupby(enumerate(numbers.tolist()), key=lambda pair: pair[1] - pair[0])
    rows = [list(map(itemgetter(1), run)) for _, run in runs]
    named = [f"{row[0]} to {row[-1]}" if len(row) > 1 else str(row[0]) for row in rows]
    if len(named) > _RANGES + 1:
        named = [*named[:_RANGES], f"{sum(map(len, rows[_RANGES:]))} more"]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _times(count: int, *, several: bool = False) -> str:
    if count == 0:
        return "do not count" if several else "does not count"
    return f"count{'' if several else 's'} {'twice' if count == 2 else f'{count} times'}"


# Weights that a file shows: its own, or the only ones that give its context.

# Where values are nearly linearly dependent, the context no longer determines the weights; a weight
# that is less is as good as 0, as a share of what is tolerated.
_DEPENDENT, _NOTHING = 1e-3, 1 / 32


class _Found(NamedTuple):
    """Weights of a file (B, H, L, S); expected ones that are smaller than ``least`` say nothing."""

    weights: Array
    least: float

    def zero(self, expected: Array) -> Bools:
        """Return which weights are 0 up to rounding error, where that can be decided."""
        return np.asarray((expected > self.least) & (np.abs(self.weights) <= expected / 2))


def _shown(case: Case) -> _Found | None:
    """Return the weights that the files of a case show.

    None where they hold none of each head, and the context has fewer columns than there are keys,
    or was projected, or is the sum of linearly dependent values.
    """
    resolution = case.pipe.file.resolution
    if not case.comparable:
        return None
    if "weights" in case.files:
        weights = case.canonical("weights")
        each = weights.shape == case.right["weights"].shape and not case.pipe.file.averaged
        return _Found(weights, _NOTHING * resolution) if each else None
    value = None if case.pipe.value is None else case.run.operand("value")
    if "context" not in case.files or case.pipe.output is not None or value is None:
        return None
    context = case.canonical("context")
    if value.shape[-2] > value.shape[-1] or not np.isfinite(context).all():
        return None
    value = np.repeat(value, context.shape[1] // value.shape[1], axis=1)
    lengths = np.linalg.svd(value, compute_uv=False)
    if lengths.min() <= _DEPENDENT * lengths.max():
        return None
    return _Found(context @ np.linalg.pinv(value), float(TYPICAL * resolution / lengths.min()))


def _all_shown(cases: Sequence[Case]) -> list[_Found] | None:
    found = [shown for case in cases if (shown := _shown(case)) is not None]
    return found if len(found) == len(cases) else None


def _with_mask(masks: dict[Part, Bools]) -> Change:
    """Return the change to masks that were found in parts; elsewhere nothing is known."""

    def change(pipe: Pipeline) -> Pipeline:
        # An output projection knows padded queries by their rule.
        kept = {name: rule for name, rule in pipe.rules.items() if name == "query_lengths"}
        right = pipe.rules

        def rule(run: Run) -> Bools:
            if run.part in masks:
                return masks[run.part]
            plain = Run(pipe, run.part, run.precision, run.memory)
            return np.asarray(plain.seen_by(*right))

        return pipe.but(rules={**kept, "mask": rule})

    return change


def _unhidden(case: Case) -> Array:
    """Return the scores of a case if nothing were hidden."""
    return evaluate(case.pipe.but(rules={}), case.part, memory=case.memory)["scores"]


def _seen(case: Case) -> Bools:
    return np.broadcast_to(case.run.seen, case.right["weights"].shape)


def _mask_of(case: Case, found: _Found) -> Bools:
    """Return which keys count in the weights of a file.

    A weight is exp(score − lse), so the largest of a row yields the lse, and with it the weights of
    the other keys if they are seen. Where those underflow, take the problem's mask.
    """
    scores = _unhidden(case)
    largest = found.weights.argmax(-1)[..., None]
    with np.errstate(all="ignore"):
        lse = np.take_along_axis(scores - np.log(found.weights), largest, -1)
        expected = np.exp(scores - lse)
    blind: Bools = found.weights.max(-1, keepdims=True) <= found.least
    return ~blind & np.where(expected > found.least, ~found.zero(expected), _seen(case))


def another_mask(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake of the mask that the files show."""
    if not all(case.evaluable and case.comparable for case in cases):
        return None
    right = {case.part: _seen(case) for case in cases}
    shown = _all_shown(cases)
    masks = None
    if shown is not None:
        masks = {case.part: _mask_of(case, found) for case, found in zip(cases, shown, strict=True)}
        masks = masks if _evidence(masks, right) >= 4 else None
    masks = masks or _masks_of_spans(cases)
    if masks is None or all((masks[part] == right[part]).all() for part in masks):
        return None
    segments = as_segments(cases[0], masks[cases[0].part], right[cases[0].part])
    return segments or Mistake(
        "another_mask",
        f"the numbers are right for another mask: {_difference(cases, masks, right)}"
        f"{_examples(cases, masks, right)}",
        _with_mask(masks),
        stages.MASK,
        "let each query see the keys that the problem lets it see, and no others",
        "masked or longer inputs",
        needs=frozenset({"heads"}),
        pattern=True,
    )


def _evidence(masks: dict[Part, Bools], right: dict[Part, Bools]) -> int:
    """Return how many weights of rows with another mask follow from the others of their row.

    The weight of a key that is seen alone is 1, whatever its score.
    """
    return sum(
        int(np.maximum(mask.sum(axis=-1) - 1, 0)[(mask != right[part]).any(axis=-1)].sum())
        for part, mask in masks.items()
    )


def strongest_keys(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that only the strongest keys of each query count (top-k)."""
    shown = _all_shown(cases)
    if shown is None:
        most = _nearest_count(cases[0])
    else:
        masks = [_mask_of(case, found) for case, found in zip(cases, shown, strict=True)]
        most = max((int(mask.sum(-1).max()) for mask in masks), default=0)
        same = (
            np.array_equal(_strongest(case, most), mask)
            for case, mask in zip(cases, masks, strict=True)
        )
        most = most if most and all(same) else 0
    if most == 0:
        return None
    keys = (
        "key that scores highest counts" if most == 1 else f"{most} keys that score highest count"
    )
    return Mistake(
        "strongest_keys",
        f"for each query, only the {keys}",
        lambda pipe: _with_strongest(pipe, most),
        stages.STRONGEST_KEYS,
        "count every key that the query sees: apply the softmax, not argmax or top-k, to scores "
        "that are not far too large",
        f"queries that see more than {counted(most, 'key')}",
    )


# Of argmax, and of top-k.
_USUAL = (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256)


def _nearest_count(case: Case) -> int:
    """Return with how many of the strongest keys a case comes nearest to its files; 0 if none."""
    if not case.comparable:
        return 0
    counts = [count for count in _USUAL if count < case.problem.shape[3]]
    distances = {count: distance_of(case, _with_strongest(case.pipe, count)) for count in counts}
    nearest = min(distances, key=distances.__getitem__, default=0)
    return nearest if nearest and distances[nearest] < distance_of(case, case.pipe) else 0


def _with_strongest(pipe: Pipeline, count: int) -> Pipeline:
    """Return the pipeline that hides all but the keys with the highest scores of their query."""

    def step(_: Run, scores: Array) -> Array:
        if count >= scores.shape[-1]:
            return scores
        least = np.partition(scores, -count, axis=-1)[..., -count, None]
        return np.where(scores >= least, scores, -np.inf)

    return pipe.with_step("strongest", step, before=None)


def _strongest(case: Case, count: int) -> Bools:
    scores = np.where(_seen(case), _unhidden(case), -np.inf)
    if count >= scores.shape[-1]:
        return np.isfinite(scores)
    least = np.partition(scores, -count, axis=-1)[..., -count, None]
    return np.asarray((scores >= least) & np.isfinite(scores))


# Masks of spans, in a context that has fewer columns than there are keys: of all keys in a row,
# there are S(S + 1)/2 spans that a loop, a window or an offset may leave.

_STOOD_FOR = ({"causal", "window"}, {"causal", "window", "mask"})
# All spans of more keys would take too much memory: one end is that of the right span, or of all.
# Of so many that come near, those most like the right one are looked at.
_MANY_KEYS, _MOST_NEAR = 2048, 20_000
# Spans that come so much nearer, or all within so small a share of the error, are the same.
_AS_GOOD, _LEAST, _BITS = 1.05, 1e-3, 48.0


def _masks_of_spans(cases: Sequence[Case]) -> dict[Part, Bools] | None:
    """Return the masks with which each query sees the keys from one to another; None by chance."""
    if any("context" not in case.files or case.pipe.output is not None for case in cases):
        return None
    for rules in _STOOD_FOR:
        found = [_spans(case, rules) for case in cases]
        known = [each for each in found if each is not None]
        if len(known) == len(cases) and sum(bits for _, bits in known) >= _BITS:
            return {case.part: mask for case, (mask, _) in zip(cases, known, strict=True)}
    return None


def _spans(case: Case, instead: set[str]) -> tuple[Bools, float] | None:
    """Return the mask of a case in the place of some rules, and the evidence for it in bits."""
    look = Look(case, instead)
    if not np.isfinite(look.file).all():
        return None
    mask, bits = _seen(case).copy(), 0.0
    keys = mask.shape[-1]
    for row in np.argwhere((np.abs(look.file - look.right) > TYPICAL * look.error).any(axis=-1)):
        b, h, i = map(int, row)
        case.question.work.spend(min(keys, _MANY_KEYS) ** 2)
        if case.question.work.over:
            return None
        file = look.file[b, h, i]
        span = _span(look.sums(b, h, i), file, look.error, mask[b, h, i])
        if span is None:
            return None
        mask[b, h, i] = False
        mask[b, h, i, slice(*span)] = np.isfinite(look.scores[b, h, i, slice(*span)])
        if span[1] - span[0] == 1:  # its weight is 1, whatever its score: any copy of a value is
            continue
        with np.errstate(divide="ignore"):  # what was right says nothing
            known = np.log2(np.abs(file - look.right[b, h, i]) / (TYPICAL * look.error))
        bits += float(np.clip(known, 0, 16).sum()) - 2 * math.log2(keys)
    return mask, bits


def _span(sums: RunningSums, context: Array, error: float, right: Bools) -> tuple[int, int] | None:
    """Return the keys, first and end, whose context a row is; the most like the right one.

    Nothing is left of a row of zeros. Where many keys have no weight, many spans are the same.
    """
    if (np.abs(context) <= error).all():
        return 0, 0
    seen = np.flatnonzero(right)
    ends = (int(seen[0]), int(seen[-1]) + 1) if seen.size else (0, 0)
    # Near along one direction, which is quickly seen.
    along = np.random.default_rng(0).choice([-1.0, 1.0], len(context))
    apart = sums.values @ along - (context @ along) * sums.shares
    first, end = np.broadcast_arrays(*_candidates(len(sums.shares), ends))
    shares = sums.shares[end] - sums.shares[first] + sums.sink
    by = np.abs(apart[end] - apart[first] - sums.sink * (context @ along))
    near = (by <= SLACK * math.sqrt(len(context)) * error * shares) & (shares > 0) & (first < end)
    first, end = first[near], end[near]
    unlike = np.abs(first - ends[0]) + np.abs(end - ends[1])
    order = np.argsort(unlike, kind="stable")[:_MOST_NEAR]
    first, end = first[order], end[order]
    off = np.abs(sums.contexts(first, end) - context)
    errors = np.square(off).mean(axis=1)
    errors[off.max(axis=1, initial=0.0) > SLACK * error] = math.inf
    least = float(errors.min(initial=math.inf))
    if least == math.inf:
        return None
    # Keys with next to no weight are left as they should be.
    one = np.flatnonzero(errors <= _AS_GOOD * least + (_LEAST * error) ** 2)[0]
    return int(first[one]), int(end[one])


def _candidates(count: int, ends: tuple[int, int]) -> tuple[Array, Array]:
    """Return where spans begin and end: all of them, or of many keys those with a usual end."""
    at = np.arange(count)
    if count <= _MANY_KEYS + 1:
        return at[:, None], at[None, :]
    pairs = [(np.minimum(at, end), np.maximum(at, end)) for end in sorted({0, *ends, count - 1})]
    first, behind = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return first, behind


# What a mask does, in words.


def _difference(cases: Sequence[Case], masks: dict[Part, Bools], right: dict[Part, Bools]) -> str:
    """Say how many pairs are wrongly hidden or seen, and list the keys if they are few."""
    labels = cases[0].problem.key_labels
    words = []
    for what, other in (
        ("it hides what should be seen:", [right[part] & ~mask for part, mask in masks.items()]),
        ("it shows what should be hidden:", [mask & ~right[part] for part, mask in masks.items()]),
    ):
        count, of = sum(int(np.count_nonzero(e)) for e in other), sum(e.size for e in other)
        keys = np.unique(np.concatenate([np.nonzero(each)[-1] for each in other]))
        where = f"{_keys(keys, labels)}, in " if len(keys) <= _NAMED else ""
        if count:
            words.append(f"{what} {where}{count:,} of {of:,} pairs of query and key")
    return ", and ".join(words)


def _examples(cases: Sequence[Case], masks: dict[Part, Bools], right: dict[Part, Bools]) -> str:
    """Say what some queries see, or do not, where it is few keys or keys that lie side by side."""
    words = []
    for case in cases:
        start = 0 if case.part.rows is None else case.part.rows[0]
        mask, own = masks[case.part], right[case.part]
        alike = (mask == mask[:1, :1]).all() and (own == own[:1, :1]).all()
        wrong = np.argwhere((mask != own).any(axis=-1))
        for b, h, i in wrong[sorted({0, len(wrong) // 2, len(wrong) - 1})] if len(wrong) else ():
            at = (case.part.batch or b, case.part.head or h)
            where = (
                ""
                if alike
                else f" of {', '.join(places({'batch': int(at[0]), 'head': int(at[1])}))}"
            )
            sight = _sight(mask[b, h, i], own[b, h, i], case.problem.key_labels)
            if sight:
                labels = case.problem.query_labels
                query = labelled(int(start + i), labels[start + i] if labels else None)
                words.append(f"query {query}{where} {sight}")
    return "".join(f"; {word}" for word in dict.fromkeys(words[:_NAMED]))


def _sight(seen: Bools, right: Bools, labels: tuple[str, ...] | None) -> str:
    """Say what a query sees, or does not; nothing where the keys are many and lie scattered."""
    spans = _span_words(seen, labels), _span_words(right, labels)
    if None not in spans:
        return f"sees {spans[0]}, not {spans[1]}"
    lost, more = np.flatnonzero(right & ~seen), np.flatnonzero(seen & ~right)
    if lost.size + more.size > _NAMED:
        return ""
    sights = (("does not see", lost), ("sees", more))
    return " and ".join(f"{verb} {_keys(keys, labels)}" for verb, keys in sights if keys.size)


def _span_words(keys: Bools, labels: tuple[str, ...] | None) -> str | None:
    """Return the words for keys that lie side by side; None for others."""
    seen = np.flatnonzero(keys)
    if seen.size == 0:
        return "no key"
    first, last = int(seen[0]), int(seen[-1])
    if last - first + 1 > seen.size:
        return None
    named = [labelled(key, labels[key] if labels else None) for key in (first, last)]
    return f"key {named[0]}" if first == last else f"keys {named[0]} to {named[1]}"


def _keys(keys: Array, labels: tuple[str, ...] | None) -> str:
    named = " and ".join(labelled(int(key), labels[key] if labels else None) for key in keys)
    return f"{'key' if len(keys) == 1 else 'keys'} {named}"


# Weights, or numbers of a context, that are 0 but should not be.

# Somebody chose the share that is dropped; less than this is rounding error.
_LEAST_SHARE = 1e-3


def _zeros(cases: Sequence[Case], shown: Sequence[_Found]) -> dict[Part, Bools] | None:
    """Return which weights are 0 that should not be; None where there are none."""
    zeros = {
        case.part: found.zero(case.right["weights"])
        for case, found in zip(cases, shown, strict=True)
    }
    return zeros if any(pattern.any() for pattern in zeros.values()) else None


def _zeroed(zeros: dict[Part, Bools], factor: float) -> Stage:
    """Return the change that drops numbers and raises the others."""

    def change(run: Run, array: Array) -> Array:
        if run.part not in zeros:
            return array
        return np.where(zeros[run.part], 0, array * factor)

    return change


def _share(
    zeros: dict[Part, Bools], cases: Sequence[Case], files: Sequence[Array], name: str
) -> float | None:
    """Return the p with which right / (1 − p) comes nearest to what is not 0; None below 0."""
    kept = [~zeros[c.part] & np.isfinite(f) for c, f in zip(cases, files, strict=True)]
    found = np.concatenate([file[at] for file, at in zip(files, kept, strict=True)])
    right = np.concatenate([c.right[name][at] for c, at in zip(cases, kept, strict=True)])
    if not right.any():
        return None
    factor = float(np.dot(found, right) / np.dot(right, right))
    if factor <= 1:
        return None
    short = short_of((found,))
    share = fewest_digits(
        1 - 1 / factor,
        lambda tried: root_mean_square(found - right / (1 - tried)) if tried < 1 else math.inf,
        # Large weights count most, and may have been rounded to the same side.
        0.0 if short is None else short.eps / 2 * root_mean_square(found),
    )
    return share if _LEAST_SHARE <= share < 1 else None


def _percent(zeros: dict[Part, Bools], cases: Sequence[Case]) -> str:
    count = sum(int(np.count_nonzero(pattern)) for pattern in zeros.values())
    of = sum(int(np.count_nonzero(case.right["weights"])) for case in cases)
    return f"{100 * count / of:.2g} %"


def dropout(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that weights were dropped out, and the others raised."""
    shown = _all_shown(cases)
    zeros = None if shown is None else _zeros(cases, shown)
    if shown is None or zeros is None:
        return None
    share = _share(zeros, cases, [found.weights for found in shown], "weights")
    if share is None:
        return None
    return Mistake(
        "dropout",
        f"dropout was left on: {_percent(zeros, cases)} of the weights are 0, and the others are "
        f"divided by 1 − {share:.6g}",
        lambda pipe: pipe.then("after", _zeroed(zeros, 1 / (1 - share))),
        stages.DROPOUT,
        "switch dropout off: dropout_p=0, or eval() before the output is computed",
    )


def output_dropout(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that numbers of the context were dropped out, and the others raised."""
    if not all("context" in case.files and case.comparable for case in cases):
        return None
    files = [case.canonical("context") for case in cases]
    zeros = {
        case.part: (file == 0) & (np.abs(case.right["context"]) > case.pipe.file.resolution)
        for case, file in zip(cases, files, strict=True)
    }
    share = _share(zeros, cases, files, "context")
    if share is None or not any(zero.any() for zero in zeros.values()):
        return None
    stage = "finish" if cases[0].pipe.output is None else "behind"
    return Mistake(
        "output_dropout",
        "dropout is left on behind attention: some numbers of the context are 0, and the others "
        "are "
        f"divided by 1 − {share:.6g}",
        lambda pipe: pipe.then(stage, of_context(_zeroed(zeros, 1 / (1 - share)))),
        stages.DROPOUT,
        "switch dropout off: eval() before the output is computed",
    )


def zeroed_weights(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that some weights are 0, and the others as they should be."""
    shown = _all_shown(cases)
    zeros = None if shown is None else _zeros(cases, shown)
    if zeros is None:
        return None
    return Mistake(
        "zeroed_weights",
        f"{_percent(zeros, cases)} of the weights are 0, and the others are as they should be, "
        f"so the rows do not sum to 1",
        lambda pipe: pipe.then("after", _zeroed(zeros, 1.0)),
        stages.DROPOUT,
        "hide keys before the softmax, with scores of −inf, and sum the values of all keys",
        pattern=True,
    )


def dropped_weights_negative(cases: Sequence[Case]) -> Mistake | None:
    """Return the mistake that weights which dropout drops are written with a minus sign.

    FlashAttention returns them so for its tests (``return_attn_probs``), the others raised or not.
    """
    if any("weights" not in case.files or not case.comparable for case in cases):
        return None
    signs = {case.part: case.canonical("weights") < 0 for case in cases}
    if not any(sign.any() for sign in signs.values()):
        return None
    pairs = [(np.abs(case.canonical("weights")), case.right["weights"]) for case in cases]
    found, right = (
        np.concatenate([each.ravel() for each in side]) for side in zip(*pairs, strict=True)
    )
    factor = fewest_digits(
        float(np.dot(found, right) / max(float(np.dot(right, right)), 1e-300)),
        lambda tried: root_mean_square(found - tried * right),
    )

    def change(run: Run, weights: Array) -> Array:
        sign = signs.get(run.part)
        return weights if sign is None else np.where(sign, -1, 1) * weights * factor

    return Mistake(
        "dropped_weights_negative",
        "weights that dropout drops have a minus sign, as FlashAttention returns them for tests"
        + ("" if factor == 1 else f", and all are divided by 1 − {1 - 1 / factor:.6g}"),
        lambda pipe: pipe.then("after", change),
        stages.DROPOUT,
        "take the weights from a formula, or the absolute values; and switch dropout off",
        needs=frozenset({"heads"}),
        # Which weights are negative may be chosen; that they are right otherwise may not.
        choice=sum(map(np.count_nonzero, signs.values())) * math.log2(found.size),
    )


FITTINGS = (
    at_first(counted_keys, "batch"),
    Fitting(dropout, of_part=True),
    Fitting(output_dropout, of_part=True),
    Fitting(dropped_weights_negative, frozenset({"heads"}), of_part=True),
    Fitting(strongest_keys),
)
# Made of everything that the weights of the files show: they explain much, but say little. The
# mask of one head may be something else in the others.
SHOWN = (
    Fitting(another_mask, frozenset({"heads"}), of_part=True),
    Fitting(zeroed_weights, of_part=True),
)
