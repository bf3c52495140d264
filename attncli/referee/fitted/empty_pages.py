"""Pages of a cache that hold zeros, inferred from the numbers of the files."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import emptied
from attncli.referee.catalogue.online import ONLINE_SIZES
from attncli.referee.convention import Convention
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.another_number import distance_between, distance_of
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.referee.case import Case

__all__ = ["empty_pages"]

_MOST_KEYS = 4096
# Pages of fewer keys are tried where there are not more of them than this.
_USUAL, _MOST_PAGES = 16, 128
# Of sums over the keys, in memory: 64 MB.
_MOST_TERMS = 2**22
_KINDS = (("key", "value"), ("key",), ("value",))

Array = npt.NDArray[Any]
Names = tuple[str, ...]
Page = tuple[int, int]


def empty_pages(case: Case) -> Convention | None:
    """Return the convention that the keys, the values or both of one page are 0.

    References
    ----------
    Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", for pages.
    """
    problem = case.recipe.problem
    if problem.value is None or problem.shape[3] > _MOST_KEYS or not case.comparable:
        return None
    found = _nearest(case, problem.shape[3])
    if found is None:
        return None
    names, (start, stop) = found
    which = f"of key {start}" if stop - start == 1 else f"{start} to {stop - 1}"
    return Convention(
        "empty_page",
        f"the {' and '.join(f'{name}s' for name in names)} {which} are zero, as in a page of a "
        "cache that is not yet written, or freed",
        lambda recipe: emptied(recipe, names, slice(start, stop)),
        topic=topics.SLOTS,
        fix="write the cache before it is read, and read the pages that the block table names",
        shows="almost any input",
        variant_of=(
            *("last_slot_unwritten", "last_key_unwritten", "last_value_unwritten"),
            *(f"online_last_context_{size}" for size in ONLINE_SIZES),
        ),
    )


def _nearest(case: Case, keys: int) -> tuple[Names, Page] | None:
    """Return the page of zeros with which a case comes nearest to its files, if one is nearer."""
    least, best = distance_of(case, case.recipe), None
    made_with = _contexts_of(case) if [*case.files] == ["context"] else None

    def distance(names: Names, page: Page) -> float:
        if made_with is not None:
            return distance_between(case.files["context"], made_with(names, page))
        return distance_of(case, emptied(case.recipe, names, slice(*page)))

    for names in _KINDS:
        found = _nearest_of(partial(distance, names), keys, case.deadline)
        if found is None:
            return None
        near, page = found
        if near < least:
            least, best = near, (names, page)
    return best


def _contexts_of(case: Case) -> Callable[[Names, Page], Array] | None:
    """Return what makes the contexts of any page of zeros; None where more than sums is needed.

    Weights and contexts of keys that follow each other are differences of sums up to each.
    """
    recipe, value = case.recipe, case.recipe.problem.value
    if value is None or recipe.problem.output is not None:
        return None
    if case.cells * value.shape[3] > _MOST_TERMS:
        return None
    none = emptied(recipe, ("key",), slice(None))
    right, zeros = (evaluate(one, known=case.stages) for one in (recipe, none))
    lse = right["lse"]
    with np.errstate(invalid="ignore", over="ignore"):
        others = np.where(np.isfinite(lse), np.exp(zeros["scores"] - lse), 0)
    each = shared(recipe.problem, value)[:, :, None]
    (seen, mixed), (seen_0, mixed_0) = (
        (_up_to_each(weights), _up_to_each(weights[..., None] * each))
        for weights in (right["weights"], others)
    )

    def of_page(sums: Array, page: Page) -> Array:
        return np.asarray(sums[:, :, :, page[1]] - sums[:, :, :, page[0]])

    def made_with(names: Names, page: Page) -> Array:
        context = right["context"] - of_page(mixed, page)
        if "value" not in names:
            context = context + of_page(mixed_0, page)
        if "key" in names:
            total = 1 - of_page(seen, page) + of_page(seen_0, page)
            with np.errstate(invalid="ignore", divide="ignore"):
                context = context / total[..., None]
        return np.asarray(
            context if not case.whole else recipe.shape(recipe.problem, "context", context)
        )

    return made_with


def _up_to_each(terms: Array) -> Array:
    """Return the sums of the terms of the keys before each, and of all (B, H, L, S + 1, …)."""
    sums = np.zeros((*terms.shape[:3], terms.shape[3] + 1, *terms.shape[4:]))
    np.cumsum(terms, axis=3, out=sums[:, :, :, 1:])
    return sums


def _nearest_of(
    distance: Callable[[Page], float], keys: int, deadline: float
) -> tuple[float, Page] | None:
    """Return how near the best page of zeros in some inputs comes, and where it is.

    None where there is no time to find it.
    """
    least, best = math.inf, (0, keys)
    for page in _pages(keys):
        if time.monotonic() > deadline:
            return None
        least, best = min((least, best), (distance(page), page))
    step = 1 << keys.bit_length()
    while step := step // 2:  # its ends are moved as long as that comes nearer
        for start, stop in ((-step, 0), (step, 0), (0, -step), (0, step)):
            page = best[0] + start, best[1] + stop
            while 0 <= page[0] < page[1] <= keys and (near := distance(page)) < least:
                least, best = near, page
                page = best[0] + start, best[1] + stop
    return least, best


def _pages(keys: int) -> Iterator[Page]:
    """Yield the pages of 1, 2, 4, … keys."""
    size = 1
    while size < keys:
        if size >= _USUAL or keys <= size * _MOST_PAGES:
            yield from ((at, min(at + size, keys)) for at in range(0, keys, size))
        size *= 2
