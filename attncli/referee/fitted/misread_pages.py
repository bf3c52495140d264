"""Pages of a cache that are read in the place of others, inferred from a context.

Where page m of the keys and values counts c_m times, every number of the context is
Σ_m c_m N_m / Σ_m c_m d_m, with d_m the sum of exp(score) over the page and N_m the sum of the
values, each times that. So

    Σ_m c_m (N_m − context · d_m) = 0

for each head and column: equations that are linear in the counts, of the entry's own pages and
of those of other batch entries. Where there are fewer equations than that takes, one page that is
read in the place of another, or not at all, is found by the pair that comes nearest; and so is
one of only the keys or only the values, or two that are exchanged.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of, groups_of, lengths_of
from attncli.referee.convention import Convention
from attncli.referee.fitted.found_weights import is_plain
from attncli.referee.fitted.pages import Misread, Page, misreading, told_pages
from attncli.referee.stages import shared
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case

__all__ = ["misread_pages"]

Array = npt.NDArray[Any]
_SIZES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
# Products of keys, columns and heads; pages in all.
_MOST_NUMBERS, _MOST_PAGES = 2**22, 1024
# So many equations for each page, at least; else a pair is looked for, in so many at least.
_EQUATIONS, _FOR_A_PAIR = 2, 8
# Numbers of a context that are looked at for pages of one side, more than enough to tell; and
# how many pages there are at most then.
_CROSSED, _MOST_CROSSED = 16, 512
_NEAR = 0.05
# A second solution leaves so much more than the first.
_APART = 100.0
# What is told instead of something simpler leaves so much less.
_NEARER = 2.0
# Pairs whose distance is worked out exactly.
_NEAREST = 8


_RIGHT = Misread(("key", "value"), (), ())


def misread_pages(case: Case) -> Convention | None:
    """Return the convention that pages of keys and values are read in the place of others.

    References
    ----------
    Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", for pages and the table of their blocks.
    """
    found = _found(case) if _is_tried(case) else None
    if not found:
        return None
    whole = case.recipe.whole
    return Convention(
        "misread_pages",
        "rows of the inputs, or pages of a cache, are read in the place of others, once more, or "
        "not at all: "
        f"{told_pages(found, whole.key.shape[0])}",
        lambda recipe: misreading(recipe, found),
        topic=topics.SLOTS,
        fix="read each key and value once, in its own place; of a cache, the pages that the block "
        "table of the batch entry names",
        shows="almost any input",
        variant_of=(
            "last_key_lost",
            "first_key_lost",
            "counted_keys",
            "padding_unasked",
            "tokens_misplaced",
            "padding_on_the_left_unasked",
        ),
        choice=sum(_choice(misread, whole) for misread in found.values()),
    )


def _is_tried(case: Case) -> bool:
    recipe, whole = case.recipe, case.recipe.whole
    return bool(
        is_plain(case)
        and not set(recipe.rules) - {"causal", "window", "kv_lengths", "query_lengths"}
        and whole.key.shape[0] == whole.shape[0]
        and math.prod(whole.key.shape[:3]) * case.right["context"].shape[3] <= _MOST_NUMBERS
        and case.canonical("context").shape == case.right["context"].shape
        and np.isfinite(case.canonical("context")).all()
    )


def _found(case: Case) -> dict[int, Misread] | None:
    """Return what each batch entry misreads; None where a wrong one shows nothing."""
    recipe, file = case.recipe, case.canonical("context")
    entries = range(len(file)) if recipe.part[0] is None else [recipe.part[0]]
    errors = np.abs(file - case.right["context"]).max(axis=(1, 3))
    found = {}
    for at, entry in enumerate(entries):
        wrong = np.flatnonzero(errors[at] > recipe.resolution)
        last = int(wrong[-1]) if wrong.size else int(errors[at].argmax())
        misread = _misread(_Row(case, file[at, :, last], entry, at, last))
        if misread is not None:
            found[entry] = misread
        elif wrong.size:
            return None
    return found


class _Row:
    """What each key of the whole problem would add to the context of one query.

    Parameters
    ----------
    case : Case
    context : ndarray (H, E)
        As the file has it.
    entry : int
        Its batch entry.
    at, row : int
        Where the query stands in the case.
    """

    def __init__(self, case: Case, context: Array, entry: int, at: int, row: int) -> None:
        recipe, whole = case.recipe, case.recipe.whole
        batch, _, queries, keys = recipe.problem.shape
        self.entry = entry
        self.seen = np.broadcast_to(recipe.seen, (batch, 1, queries, keys))[at, 0, row]
        self.error = recipe.resolution
        self._counts = lengths_of(whole)
        self._shares, self._differences = [], []
        source, group = factors_of(whole), groups_of(whole, recipe.part[1])
        query = factors_of(recipe.problem)["query"][at, :, row]
        lse = case.right["lse"][at, :, row]
        for each in range(len(self._counts)):
            real = self._real(each)[:, None]
            key, value = (
                shared(recipe.problem, source[name][each : each + 1, group])[0]
                for name in ("key", "value")
            )
            with np.errstate(all="ignore"):  # padding may hold anything
                scores = np.einsum("hd,hsd->hs", query, key) * recipe.problem.scale
                self._shares.append(np.where(real, np.exp(scores - lse)[..., None], 0))
                self._differences.append(np.where(real, value - context[:, None], 0))

    def _real(self, entry: int) -> npt.NDArray[np.bool_]:
        """Return which keys of an entry can be read: its own that are seen, all of another."""
        if entry == self.entry:
            return np.asarray(self.seen)
        return np.asarray(np.arange(len(self.seen)) < self._counts[entry])

    def pages(self, size: int) -> list[Page]:
        """Return the pages that may be read, the entry's own first."""
        keys = len(self.seen)
        order = sorted(range(len(self._counts)), key=lambda entry: entry != self.entry)
        return [
            Page(entry, start, min(start + size, keys))
            for entry in order
            for start in range(0, keys, size)
            if self._real(entry)[start : start + size].any()
        ]

    def added(self, pages: Sequence[Page]) -> Array:
        """Return what each page adds, (pages, heads · columns)."""
        return np.stack([self._together(page, page) for page in pages]).reshape(len(pages), -1)

    def crossed(self, pages: Sequence[Page], size: int) -> Array:
        """Return what the keys of each page add with the values of each, (pages, pages, numbers).

        Of the first columns alone.
        """
        columns = -(-_CROSSED // len(self._shares[0]))
        shares, differences = (
            np.stack([_padded(of[p.entry][:, p.start : p.stop, :columns], size) for p in pages])
            for of in (self._shares, self._differences)
        )
        made = np.einsum("phk,qhkc->pqhc", shares[..., 0], differences, optimize=True)
        return np.asarray(made).reshape(len(pages), len(pages), -1)

    def left_by(self, misread: Misread) -> float:
        """Return the root mean square of what is left where pages are misread so."""
        left = (self._shares[self.entry] * self._differences[self.entry]).sum(axis=1)
        for page in misread.lost:
            left = left - self._together(page, page)
        if len(misread.names) > 1:
            for page in misread.added:
                left = left + self._together(page, page)
        else:
            for one, other in zip(misread.lost, misread.added, strict=True):
                keys, values = (one, other) if misread.names == ("value",) else (other, one)
                left = left + self._together(keys, values)
        return root_mean_square(left)

    def _together(self, keys: Page, values: Page) -> Array:
        """Return what the keys of one page add with the values of another, (H, E)."""
        shares = self._shares[keys.entry][:, keys.start : keys.stop]
        differences = self._differences[values.entry][:, values.start : values.stop]
        both = min(shares.shape[1], differences.shape[1])
        return np.asarray((shares[:, :both] * differences[:, :both]).sum(axis=1))


def _padded(page: Array, size: int) -> Array:
    if page.shape[1] == size:
        return page
    return np.pad(page, ((0, 0), (0, size - page.shape[1]), (0, 0)))


def _misread(row: _Row) -> Misread | None:
    """Return which pages are read otherwise: those that leave least of a row unexplained.

    Large pages come first; what smaller ones explain, too, is theirs.
    """
    least, best = min(row.error, row.left_by(_RIGHT) / _NEARER), None
    for size in _SIZES:
        if size >= np.count_nonzero(row.seen):
            continue
        pages = row.pages(size)
        if len(pages) > _MOST_PAGES:
            break
        for misread in (_counted(row, pages), *_of_one_side(row, pages, size)):
            if misread is not None and (left := row.left_by(misread)) < least:
                least, best = left / _NEARER, misread
    return best


def _counted(row: _Row, pages: Sequence[Page]) -> Misread | None:
    """Return which pages of keys and values count otherwise, if that explains a row."""
    sums = row.added(pages)
    own = np.array([page.entry == row.entry for page in pages])
    if not np.isfinite(sums).all() or sums.shape[1] < _FOR_A_PAIR:
        return None
    counts = _solved(sums, own) if sums.shape[1] >= _EQUATIONS * len(pages) else None
    more = _by_a_pair(sums, own) if counts is None else counts - own
    if not more.any():
        return None
    return Misread(
        ("key", "value"),
        tuple(page for page, count in zip(pages, more, strict=True) if count < 0),
        tuple(page for page, count in zip(pages, more, strict=True) for _ in range(count)),
    )


def _solved(sums: Array, own: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64] | None:
    """Return how often each page counts; None where there is no one solution in whole numbers."""
    left, lengths, _ = np.linalg.svd(sums, full_matrices=False)
    unit = float(np.median(left[own, -1]))
    if unit == 0 or lengths[-1] * _APART > lengths[-2]:
        return None
    counts = left[:, -1] / unit
    whole = counts.round()
    if np.abs(counts - whole).max() > _NEAR or whole.min() < 0 or whole.max() > _MOST_PAGES:
        return None
    return whole.astype(np.int64)


def _by_a_pair(sums: Array, own: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return how much more often each page counts, where one is lost or added, or both."""
    known = sums[own].sum(axis=0)
    nothing = np.zeros((1, sums.shape[1]))
    lost, added = np.concatenate([nothing, sums[own]]), np.concatenate([nothing, sums])
    # The square of known − lost + added, of all pairs, by three products.
    squares = np.square(added).sum(axis=1) + 2 * (added @ known)
    far = squares - 2 * lost @ added.T
    far += (np.square(lost).sum(axis=1) - 2 * (lost @ known))[:, None]
    nearest = np.argpartition(far, min(_NEAREST, far.size - 1), axis=None)[:_NEAREST]
    pairs = [divmod(int(flat), far.shape[1]) for flat in nearest]
    left = [float(np.abs(known - lost[out] + added[more]).max()) for out, more in pairs]
    out, more = pairs[int(np.argmin(left))]
    counts = np.zeros(len(sums) + 1, np.int64)
    counts[more] += 1
    counts[out] -= 1
    return counts[1:]


def _of_one_side(row: _Row, pages: Sequence[Page], size: int) -> Iterator[Misread]:
    """Yield the page of values, or of keys, that another stands for, and two that are exchanged."""
    if len(pages) > _MOST_CROSSED:
        return
    made = row.crossed(pages, size)
    if not np.isfinite(made).all() or made.shape[2] < _FOR_A_PAIR:
        return
    own = sum(page.entry == row.entry for page in pages)
    alone = np.diagonal(made).T[:own]
    for names, crossed in ((("value",), made), (("key",), made.swapaxes(0, 1))):
        replaced = alone.sum(axis=0) - alone[:, None] + crossed[:own]
        exchanged = replaced[:, :own] - alone + crossed[:own, :own].swapaxes(0, 1)
        for both, left in ((False, replaced), (True, exchanged)):
            far = np.square(left).sum(axis=2)
            np.fill_diagonal(far, np.inf)
            place, source = divmod(int(far.argmin()), far.shape[1])
            one, other = pages[place], pages[source]
            lost, added = ((one, other), (other, one)) if both else ((one,), (other,))
            yield Misread(names, lost, added)


def _choice(misread: Misread, whole: Problem) -> float:
    """Return how many bits it takes to name the pages."""
    batch, _, _, keys = whole.shape
    return (len(misread.lost) + len(misread.added)) * math.log2(batch * keys + 1)
