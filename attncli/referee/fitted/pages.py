"""Pages of a cache, and what a batch entry reads of them otherwise than it should."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors.text import first_few
from attncli.referee.catalogue.helpers import factors_of, groups_of
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from attncli.referee.recipe import Recipe

__all__ = ["Misread", "Page", "misreading", "told_pages"]

Array = npt.NDArray[Any]
# Pages that are told.
_NAMED = 3


class Page(NamedTuple):
    """Keys of a batch entry."""

    entry: int
    start: int
    stop: int


class Misread(NamedTuple):
    """What an entry reads otherwise than it should.

    Attributes
    ----------
    names : tuple of str
        Which inputs are read so: key and value, or one of them.
    lost : tuple of Page
        Own pages that are not read.
    added : tuple of Page
        Pages that are read, and should not be, or not again.
    """

    names: tuple[str, ...]
    lost: tuple[Page, ...]
    added: tuple[Page, ...]


def misreading(recipe: Recipe, found: Mapping[int, Misread]) -> Recipe:
    """Return the recipe in which each entry reads what was found of it."""
    whole, (batch, head, _) = recipe.whole, recipe.part
    entries = range(whole.shape[0]) if batch is None else [batch]
    source, query = factors_of(whole), factors_of(recipe.problem)["query"]
    heads = np.arange(source["key"].shape[1])[groups_of(whole, head), None]
    read = {}
    for name in ("key", "value"):
        misread = {entry: each for entry, each in found.items() if name in each.names}
        table = _tables(misread, entries, recipe.problem.shape[3])[:, None]
        # No key stands where the last one, which may be anything, is not seen.
        read[name] = np.nan_to_num(source[name][table[..., 0], heads, table[..., 1]])
    rules = {name: _longer(rule, table.shape[2]) for name, rule in recipe.rules.items()}
    if (table[..., 1] < 0).any():
        rules["pages"] = (table[..., 1] >= 0)[:, None]
    return replace(vary(recipe, rope=None, query=query, **read), rules=rules)


def _longer(rule: npt.NDArray[np.bool_], keys: int) -> npt.NDArray[np.bool_]:
    """Let the keys be seen that are read beyond the last one."""
    if rule.shape[3] == 1:
        return rule
    more = np.ones((*rule.shape[:3], keys - rule.shape[3]), np.bool_)
    return np.concatenate([rule, more], axis=-1)


def _tables(found: Mapping[int, Misread], entries: Iterable[int], keys: int) -> Array:
    """Return which key of which entry stands in each place, (entries, keys, 2); key −1 for none."""
    tables = [_table(found.get(entry), entry, keys) for entry in entries]
    most = max(map(len, tables))
    return np.array([[*table, *[(0, -1)] * (most - len(table))] for table in tables])


def _table(misread: Misread | None, entry: int, keys: int) -> list[tuple[int, int]]:
    table = [(entry, key) for key in range(keys)]
    if misread is None:
        return table
    places = [key for page in misread.lost for key in range(page.start, page.stop)]
    sources = [(page.entry, key) for page in misread.added for key in range(page.start, page.stop)]
    for place in places:
        table[place] = (entry, -1)
    for place, source in zip(places, sources, strict=False):
        table[place] = source
    return table + sources[len(places) :]


def told_pages(found: Mapping[int, Misread], entries: int) -> str:
    """Say what is read in the place of what, of so many batch entries in all."""
    said: dict[str, list[int]] = {}
    for entry, misread in found.items():
        for sentence in _sentences(misread, entry):
            said.setdefault(sentence, []).append(entry)
    words = [sentence + _where(at, entries) for sentence, at in said.items()]
    more = len(words) - _NAMED
    return "; ".join(words if more <= 1 else [*words[:_NAMED], f"and {more} more"])


def _where(at: Sequence[int], entries: int) -> str:
    """Say in which batch entries it is so, where there are several."""
    if entries == 1:
        return ""
    if len(at) == entries:
        return " (every batch entry)"
    return f" (batch {'entry' if len(at) == 1 else 'entries'} {first_few([*map(str, at)])})"


def _sentences(misread: Misread, entry: int) -> Iterator[str]:
    """Say what is read in the place of what, if both are as many."""
    places, sources = _single(misread.lost), _single(misread.added)
    if len(places) == len(sources):
        for place, source in _pairs(places, sources):
            yield f"{_named(misread, source, entry)} in the place of {_span(place)}"
        return
    lost, added = _runs(misread.lost), _runs(misread.added)
    for one in lost:
        yield f"{_named(misread, one, entry)} not at all"
    for other in added:
        again = "once more" if other.entry == entry else "too"
        yield f"{_named(misread, other, entry)} {again}"


def _single(pages: Iterable[Page]) -> list[Page]:
    """Return pages of one key each."""
    return [Page(page.entry, n, n + 1) for page in pages for n in range(page.start, page.stop)]


def _pairs(places: Sequence[Page], sources: Sequence[Page]) -> list[tuple[Page, Page]]:
    """Return the place and the source of each run in which both go on key by key."""
    pairs: list[tuple[Page, Page]] = []
    for place, source in zip(places, sources, strict=True):
        if pairs:
            joined = _runs((pairs[-1][0], place)), _runs((pairs[-1][1], source))
            if all(len(run) == 1 for run in joined):
                pairs[-1] = joined[0][0], joined[1][0]
                continue
        pairs.append((place, source))
    return pairs


def _runs(pages: Iterable[Page]) -> list[Page]:
    """Join pages that follow one another."""
    runs: list[Page] = []
    for page in pages:
        if runs and (runs[-1].entry, runs[-1].stop) == (page.entry, page.start):
            runs[-1] = runs[-1]._replace(stop=page.stop)
        else:
            runs.append(page)
    return runs


def _named(misread: Misread, page: Page, entry: int) -> str:
    end = "" if page.stop - page.start == 1 else "s"
    words = f"{' and '.join(name + end for name in misread.names)} {_span(page)}"
    return words if page.entry == entry else f"{words} of batch entry {page.entry}"


def _span(page: Page) -> str:
    one = page.stop - page.start == 1
    return f"{page.start}" if one else f"{page.start} to {page.stop - 1}"
