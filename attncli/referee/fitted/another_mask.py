"""A mask that no rule makes, inferred from the weights of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted, labelled, places
from attncli.referee import topics
from attncli.referee.convention import Convention, with_rule
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.another_number import distance_of
from attncli.referee.fitted.found_weights import FoundWeights, Patterns, by_part, patterns_of
from attncli.referee.fitted.spans import masks_of_spans
from attncli.referee.fitted.unstated_segments import as_segments
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["another_mask", "strongest_keys"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Labels = tuple[str, ...] | None
_Item = TypeVar("_Item")
_NO_RULES: dict[str, Any] = {}
# Fewer weights may agree by chance.
_EVIDENCE = 4
# At most so many keys are listed.
_NAMED = 3
# Of argmax, and of top-k.
_USUAL_COUNTS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256)


def another_mask(cases: Sequence[Case]) -> Convention | None:
    """Return the convention of the mask that the files show."""
    if not all(case.evaluable for case in cases):
        return None
    right = {case.recipe.part: _seen(case) for case in cases}
    masks = _out_of_weights(cases, right) or masks_of_spans(cases)
    if masks is None:
        return None
    return as_segments(cases, masks, right) or Convention(
        name="another_mask",
        topic=topics.MASK,
        meaning=f"the numbers are right for another mask: {_difference(cases, masks, right)}"
        f"{_examples(cases, masks, right)}",
        fix="let each query see the keys that the problem lets it see, and no others",
        shows="masked or longer inputs",
        apply=by_part(masks, _masked),
        needs=frozenset({"heads"}),
        pattern=True,
    )


def _out_of_weights(cases: Sequence[Case], right: Patterns) -> Patterns | None:
    masks = patterns_of(cases, _mask_of)
    return masks if masks and _evidence(masks, right) >= _EVIDENCE else None


def _evidence(masks: Patterns, right: Patterns) -> int:
    """Return how many weights of rows with another mask follow from the others of their row.

    The weight of a key that is seen alone is 1, whatever its score.
    """
    return sum(
        int(np.maximum(mask.sum(axis=-1) - 1, 0)[(mask != right[part]).any(axis=-1)].sum())
        for part, mask in masks.items()
    )


def strongest_keys(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that only the strongest keys of each query count.

    References
    ----------
    Xu et al. 2015, "Show, attend and tell", equation 9, for hard attention.
    """
    masks = patterns_of(cases, _mask_of)
    most = _nearest_count(cases[0]) if masks is None else _count_in(cases, masks)
    if most == 0:
        return None
    keys = (
        "key that scores highest counts" if most == 1 else f"{most} keys that score highest count"
    )
    return Convention(
        name="strongest_keys",
        topic=topics.STRONGEST_KEYS,
        meaning=f"for each query, only the {keys}",
        fix="count every key that the query sees: apply the softmax, not argmax or top-k, "
        "to scores that are not far too large",
        shows=f"queries that see more than {counted(most, 'key')}",
        apply=lambda recipe: _with_strongest(recipe, most),
    )


def _count_in(cases: Sequence[Case], masks: Patterns) -> int:
    """Return how many keys of each query the masks show, if they are the strongest; else 0."""
    counts = {int(count) for mask in masks.values() for count in np.unique(mask.sum(-1))}
    most = max(counts, default=0)
    return most if all(_shows_strongest(case, masks, most) for case in cases) else 0


def _nearest_count(case: Case) -> int:
    """Return with how many of the strongest keys a case comes nearest to its files; 0 if none."""
    if not case.comparable:
        return 0
    counts = [count for count in _USUAL_COUNTS if count < case.recipe.problem.shape[3]]
    distances = {count: distance_of(case, _with_strongest(case.recipe, count)) for count in counts}
    nearest = min(distances, key=distances.__getitem__, default=0)
    return nearest if nearest and distances[nearest] < distance_of(case, case.recipe) else 0


def _with_strongest(recipe: Recipe, count: int) -> Recipe:
    return with_rule(recipe, "mask", _strongest(recipe, count))


def _shows_strongest(case: Case, masks: Patterns, count: int) -> bool:
    return np.array_equal(_strongest(case.recipe, count), masks[case.recipe.part])


def _strongest(recipe: Recipe, count: int) -> Bools:
    """Return which keys have the highest scores of their query, of those that it sees."""
    scores = np.where(recipe.seen, _unhidden(recipe), -np.inf)
    if count >= scores.shape[-1]:
        return np.isfinite(scores)
    least = np.partition(scores, -count, axis=-1)[..., -count, None]
    return np.asarray((scores >= least) & np.isfinite(scores))


def _seen(case: Case) -> Bools:
    return np.broadcast_to(case.recipe.seen, case.right["weights"].shape)


def _unhidden(recipe: Recipe, **known: Any) -> Array:
    return evaluate(replace(recipe, rules=_NO_RULES), **known)["scores"]


def _mask_of(case: Case, found: FoundWeights) -> Bools:
    """Return which keys count in the weights of a file.

    A weight is exp(score − lse), so the largest of a row yields the lse, and with it the
    weights of the other keys if they are seen. Where those underflow, take the problem's mask.
    """
    scores = _unhidden(case.recipe, known=case.stages)
    largest = found.weights.argmax(-1)[..., None]
    with np.errstate(all="ignore"):
        lse = np.take_along_axis(scores - np.log(found.weights), largest, -1)
        expected = np.exp(scores - lse)
    blind: Bools = found.weights.max(-1, keepdims=True) <= found.least
    return ~blind & np.where(expected > found.least, ~found.zero(expected), _seen(case))


def _masked(recipe: Recipe, mask: Bools) -> Recipe:
    # An output projection knows padded queries by their rule.
    kept = {name: rule for name, rule in recipe.rules.items() if name == "query_lengths"}
    return replace(recipe, rules={**kept, "mask": mask})


def _difference(cases: Sequence[Case], masks: Patterns, right: Patterns) -> str:
    """Say how many pairs are wrongly hidden or seen, and list the keys if they are few."""
    labels = cases[0].recipe.whole.key_labels
    hidden = [right[part] & ~mask for part, mask in masks.items()]
    seen = [mask & ~right[part] for part, mask in masks.items()]
    return ", and ".join(
        f"{what} {_which(patterns, labels)}"
        for what, patterns in (
            ("it hides what should be seen:", hidden),
            ("it shows what should be hidden:", seen),
        )
        if any(pattern.any() for pattern in patterns)
    )


def _examples(cases: Sequence[Case], masks: Patterns, right: Patterns) -> str:
    """Say what some queries see, or do not, where it is few keys or keys that lie side by side."""
    words = []
    for case in cases:
        part, start, whole = case.recipe.part, case.recipe.start, case.recipe.whole
        mask, own = (each.reshape(-1, *each.shape[2:]) for each in (masks[part], right[part]))
        alike = (mask == mask[0]).all() and (own == own[0]).all()
        for head, row in _few(_other_rows(mask, own)):
            where = "" if alike else f" of {_place(case, head)}"
            sight = _sight(mask[head, row], own[head, row], whole.key_labels)
            if sight:
                query = _named(start + row, whole.query_labels)
                words.append(f"query {query}{where} {sight}")
    return "".join(f"; {word}" for word in _few(words))


def _few(items: Sequence[_Item]) -> list[_Item]:
    """Return the first of some items, one from their middle, and the last."""
    return [items[place] for place in sorted({0, len(items) // 2, len(items) - 1})] if items else []


def _other_rows(mask: Bools, own: Bools) -> list[tuple[int, int]]:
    """Return the head and the query of each row that differs; of heads that are alike the first."""
    rows = (mask != own).any(axis=-1)
    first: dict[tuple[bytes, bytes], int] = {}
    for head in np.flatnonzero(rows.any(axis=-1)).tolist():
        first.setdefault((mask[head].tobytes(), own[head].tobytes()), head)
    return [(head, row) for head in first.values() for row in np.flatnonzero(rows[head]).tolist()]


def _sight(seen: Bools, right: Bools, labels: Labels) -> str:
    """Say what a query sees, or does not; nothing where the keys are many and lie scattered."""
    spans = _span(seen, labels), _span(right, labels)
    if None not in spans:
        return f"sees {spans[0]}, not {spans[1]}"
    lost, more = np.flatnonzero(right & ~seen), np.flatnonzero(seen & ~right)
    if lost.size + more.size > _NAMED:
        return ""
    sights = (("does not see", lost), ("sees", more))
    return " and ".join(f"{verb} {_keys(keys, labels)}" for verb, keys in sights if keys.size)


def _place(case: Case, flat: int) -> str:
    """Return the batch entry and the head of a case, counted together, in words."""
    heads = case.right["weights"].shape[1]
    batch, head = (
        own if own is not None else index
        for own, index in zip(case.recipe.part[:2], divmod(flat, heads), strict=True)
    )
    return ", ".join(places({"batch": batch, "head": head}))


def _span(keys: Bools, labels: Labels) -> str | None:
    """Return the words for keys that lie side by side; None for others."""
    seen = np.flatnonzero(keys)
    if seen.size == 0:
        return "no key"
    first, last = seen[0], seen[-1]
    if last - first + 1 > seen.size:
        return None
    if first == last:
        return f"key {_named(first, labels)}"
    return f"keys {_named(first, labels)} to {_named(last, labels)}"


def _which(patterns: Sequence[Bools], labels: Labels) -> str:
    count = sum(int(np.count_nonzero(pattern)) for pattern in patterns)
    of = sum(pattern.size for pattern in patterns)
    keys = np.unique(np.concatenate([np.nonzero(pattern)[-1] for pattern in patterns]))
    where = f"{_keys(keys, labels)}, in " if len(keys) <= _NAMED else ""
    return f"{where}{count:,} of {of:,} pairs of query and key"


def _named(index: int, labels: Labels) -> str:
    return labelled(index, labels[index] if labels else None)


def _keys(keys: npt.NDArray[np.intp], labels: Labels) -> str:
    named = " and ".join(_named(key, labels) for key in keys)
    return f"{'key' if len(keys) == 1 else 'keys'} {named}"
