"""Pages of a cache that hold zeros, inferred from the numbers of the files."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from attncli.referee import topics
from attncli.referee.catalogue.helpers import emptied
from attncli.referee.catalogue.online import ONLINE_SIZES
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import distance_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.referee.case import Case

__all__ = ["empty_pages"]

_MOST_KEYS = 4096
# Pages of fewer keys are tried where there are not more of them than this.
_USUAL, _MOST_PAGES = 16, 128
_KINDS = (("key", "value"), ("key",), ("value",))

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
    for names in _KINDS:
        found = _nearest_of(case, names, keys)
        if found is None:
            return None
        distance, page = found
        if distance < least:
            least, best = distance, (names, page)
    return best


def _nearest_of(case: Case, names: Names, keys: int) -> tuple[float, Page] | None:
    """Return how near the best page of zeros in some inputs comes, and where it is.

    None where there is no time to find it.
    """

    def distance(page: Page) -> float:
        return distance_of(case, emptied(case.recipe, names, slice(*page)))

    least, best = math.inf, (0, keys)
    for page in _pages(keys):
        if time.monotonic() > case.deadline:
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
