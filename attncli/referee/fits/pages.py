"""Pages of a cache that are read in the place of others, or hold zeros, read off a few rows.

Every number c of a context is Σ_j p_j v_j / Σ_j p_j with p_j = exp(score_j), so that

    Σ_j p_j (v_j − c) = 0

over the keys that were read. What a page adds to this sum tells which pages were read: it is
linear in how often each one counts, of the entry's own pages and of those of other batch entries.
Where there are fewer equations than that takes, one page that is read in the place of another, or
not at all, is found by the pair that comes nearest; and so is one of only the keys or only the
values, or two that are exchanged. Of a page of zeros p_j is 1, or v_j is 0.

References
----------
Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
PagedAttention", for pages and the table of their blocks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors.text import first_few
from attncli.referee.fits.table import Fitting, at_first
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.inputs import emptied
from attncli.referee.mistakes.table import SIZES, Mistake
from attncli.referee.pipeline import Pipeline, Rule, lengths_of, table, turned_inputs
from attncli.referee.tolerance import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from attncli.referee.formats import Array, Bools, Ints
    from attncli.referee.parts import Case

__all__ = ["FITTINGS", "is_plain"]

# Keys of a page, the most first; products of keys, columns and heads; pages in all.
_SIZES, _MOST_NUMBERS, _MOST_PAGES = (256, 128, 64, 32, 16, 8, 4, 2, 1), 2**22, 1024
# So many equations for each page, at least; else a pair is looked for, in so many at least.
_EQUATIONS, _FOR_A_PAIR = 2, 8
# Numbers of a context that are looked at for pages of one side, more than enough to tell; and how
# many pages there are at most then.
_CROSSED, _MOST_CROSSED = 16, 512
# How far a count lies from a whole number; a second solution leaves so much more than the first.
_NEAR, _APART = 0.05, 100.0
# What is told instead of something simpler leaves so much less.
_NEARER = 2.0
# Pairs whose distance is worked out exactly; pages that are told.
_NEAREST, _NAMED = 8, 3
# Rows that are looked at for pages of zeros, keys, and numbers of a sum over them.
_ROWS, _MOST_KEYS, _MOST_TERMS = 4, 4096, 2**22
_KINDS = (("key", "value"), ("key",), ("value",))


def is_plain(case: Case) -> bool:
    """Return whether a file is the context of products, keys and values and of nothing else."""
    problem = case.problem
    return bool(
        "context" in case.files
        and problem.value is not None
        and problem.output is None
        and problem.score == "dot"
        and problem.softcap is None
        and problem.sinks is None
        and not case.pipe.terms
        and case.comparable
    )


class Page(NamedTuple):
    """Keys of a batch entry."""

    entry: int
    start: int
    stop: int


class Misread(NamedTuple):
    """What an entry reads otherwise: own pages that are lost, and pages that are read for them.

    Attributes
    ----------
    names : tuple of str
        Which inputs are read so: key and value, or one of them.
    lost, added : tuple of Page
    """

    names: tuple[str, ...]
    lost: tuple[Page, ...] = ()
    added: tuple[Page, ...] = ()


def _turned(case: Case) -> Pipeline:
    """Return the right pipeline with rotated inputs; padding may hold anything."""
    memory = case.pipe.file.memory
    if "turned" not in memory:
        memory["turned"] = turned_inputs(case.pipe)
    made: Pipeline = memory["turned"]
    return made


class _Row:
    """What each key of the whole problem would add to the sum of one query, which is 0.

    Parameters
    ----------
    case : Case
    at, row : int
        Batch entry and query, as they stand in the case.
    """

    def __init__(self, case: Case, at: int, row: int) -> None:
        pipe, part = _turned(case), case.part
        self.entry = at if part.batch is None else part.batch
        self.error = pipe.file.resolution
        batch = pipe.shape[0]
        self.seen = np.broadcast_to(case.run.seen, (*case.run.shape[:1], 1, *case.run.shape[2:]))[
            at, 0, row
        ]
        self._counts = lengths_of(case.problem)
        first = 0 if part.rows is None else part.rows[0]
        heads = np.arange(pipe.shape[1])[part.index[1]]
        query = pipe.query[self.entry, heads, first + row]
        self.context = context = case.canonical("context")[at, :, row]
        lse = case.right["lse"][at, :, row]
        self.shares, self.differences = [], []
        with np.errstate(over="ignore"):
            self.zero_share = np.exp(-lse)
        for entry in range(batch):
            key, value = (
                array[entry % len(array), heads // (pipe.shape[1] // array.shape[1])]
                for array in (pipe.key, pipe.value)
                if array is not None
            )
            real = self._real(entry)[:, None]
            with np.errstate(all="ignore"):
                scores = np.einsum("hd,hsd->hs", query, key) * pipe.scale
                self.shares.append(np.where(real, np.exp(scores - lse)[..., None], 0))
                self.differences.append(np.where(real, value - context[:, None], 0))

    def _real(self, entry: int) -> Bools:
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

    def together(self, keys: Page, values: Page) -> Array:
        """Return what the keys of one page add with the values of another, (H, E)."""
        shares = self.shares[keys.entry][:, keys.start : keys.stop]
        differences = self.differences[values.entry][:, values.start : values.stop]
        both = min(shares.shape[1], differences.shape[1])
        return np.asarray((shares[:, :both] * differences[:, :both]).sum(axis=1))

    def crossed(self, pages: Sequence[Page], size: int) -> Array:
        """Return what the keys of each page add with the values of each, of the first columns."""
        columns = -(-_CROSSED // len(self.shares[0]))

        def padded(array: Array) -> Array:
            return np.pad(array, ((0, 0), (0, size - array.shape[1]), (0, 0)))

        shares, differences = (
            np.stack([padded(of[p.entry][:, p.start : p.stop, :columns]) for p in pages])
            for of in (self.shares, self.differences)
        )
        made = np.einsum("phk,qhkc->pqhc", shares[..., 0], differences, optimize=True)
        return np.asarray(made).reshape(len(pages), len(pages), -1)

    def left_by(self, misread: Misread) -> float:
        """Return the root mean square of the sum where pages are misread so."""
        left = (self.shares[self.entry] * self.differences[self.entry]).sum(axis=1)
        for page in misread.lost:
            left = left - self.together(page, page)
        if len(misread.names) > 1:
            return root_mean_square(left + sum(self.together(p, p) for p in misread.added))
        for one, other in zip(misread.lost, misread.added, strict=True):
            keys, values = (one, other) if misread.names == ("value",) else (other, one)
            left = left + self.together(keys, values)
        return root_mean_square(left)


def misread_pages(case: Case) -> Mistake | None:
    """Return the mistake that pages of keys and values are read in the place of others."""
    found = _found(case) if _is_tried(case) else None
    if not found:
        return None
    batch, _, _, keys = case.problem.shape
    pages = sum(len(misread.lost) + len(misread.added) for misread in found.values())
    return Mistake(
        "misread_pages",
        "rows of the inputs, or pages of a cache, are read in the place of others, once more, or "
        f"not at all: {_told(found, batch)}",
        lambda pipe: _misreading(pipe, found),
        stages.SLOTS,
        "read each key and value once, in its own place; of a cache, the pages that the block "
        "table of the batch entry names",
        variant_of=(
            *("last_key_lost", "first_key_lost", "counted_keys", "padding_unasked"),
            *("tokens_misplaced", "padding_on_the_left_unasked"),
        ),
        choice=pages * math.log2(batch * keys + 1),
    )


def _is_tried(case: Case) -> bool:
    key = case.pipe.key
    return bool(
        is_plain(case)
        and not set(case.pipe.rules) - {"causal", "window", "kv_lengths", "query_lengths"}
        and key.shape[0] == case.problem.shape[0]
        and math.prod(key.shape[:3]) * case.right["context"].shape[3] <= _MOST_NUMBERS
        and case.canonical("context").shape == case.right["context"].shape
        and np.isfinite(case.canonical("context")).all()
    )


def _found(case: Case) -> dict[int, Misread] | None:
    """Return what each batch entry misreads; None where a wrong one shows nothing."""
    errors = np.abs(case.canonical("context") - case.right["context"]).max(axis=(1, 3))
    found = {}
    for at, of_entry in enumerate(errors):
        wrong = np.flatnonzero(of_entry > case.pipe.file.resolution)
        row = _Row(case, at, int(wrong[-1]) if wrong.size else int(of_entry.argmax()))
        misread = None if case.question.work.over else _misread(row)
        if misread is not None:
            found[row.entry] = misread
        elif wrong.size:
            return None
    return found


def _misread(row: _Row) -> Misread | None:
    """Return which pages are read otherwise: those that leave least of a row unexplained.

    Large pages come first; what smaller ones explain, too, is theirs.
    """
    least, best = min(row.error, row.left_by(Misread(("key", "value"))) / _NEARER), None
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
    sums = np.stack([row.together(page, page) for page in pages]).reshape(len(pages), -1)
    own = np.array([page.entry == row.entry for page in pages])
    if not np.isfinite(sums).all() or sums.shape[1] < _FOR_A_PAIR:
        return None
    counts = _solved(sums, own) if sums.shape[1] >= _EQUATIONS * len(pages) else None
    more = _by_a_pair(sums, own) if counts is None else counts - own
    lost = tuple(page for page, count in zip(pages, more, strict=True) if count < 0)
    added = (page for page, count in zip(pages, more, strict=True) for _ in range(count))
    return Misread(("key", "value"), lost, tuple(added)) if more.any() else None


def _solved(sums: Array, own: Bools) -> Ints | None:
    """Return how often each page counts; None where there is no one solution in whole numbers."""
    left, lengths, _ = np.linalg.svd(sums, full_matrices=False)
    unit = float(np.median(left[own, -1]))
    if unit == 0 or lengths[-1] * _APART > lengths[-2]:
        return None
    counts = left[:, -1] / unit
    whole = counts.round()
    if np.abs(counts - whole).max() > _NEAR or whole.min() < 0 or whole.max() > _MOST_PAGES:
        return None
    return whole.astype(np.intp)


def _by_a_pair(sums: Array, own: Bools) -> Ints:
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
    out, more = min(pairs, key=lambda pair: np.abs(known - lost[pair[0]] + added[pair[1]]).max())
    counts = np.zeros(len(sums) + 1, np.intp)
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
    for name, crossed in (("value", made), ("key", made.swapaxes(0, 1))):
        replaced = alone.sum(axis=0) - alone[:, None] + crossed[:own]
        exchanged = replaced[:, :own] - alone + crossed[:own, :own].swapaxes(0, 1)
        for both, left in ((False, replaced), (True, exchanged)):
            far = np.square(left).sum(axis=2)
            np.fill_diagonal(far, np.inf)
            place, source = divmod(int(far.argmin()), far.shape[1])
            one, other = pages[place], pages[source]
            yield Misread(
                (name,), (one, other) if both else (one,), (other, one) if both else (other,)
            )


def _misreading(pipe: Pipeline, found: Mapping[int, Misread]) -> Pipeline:
    """Return the pipeline in which each entry reads what was found of it."""
    pipe = turned_inputs(pipe)
    batch, _, _, keys = pipe.shape
    read, made = np.zeros((batch, keys, 2), np.intp), pipe
    for name in ("key", "value"):
        array: Array = getattr(pipe, name)
        misread = {entry: each for entry, each in found.items() if name in each.names}
        read = _tables(misread, batch, keys)
        rows = np.moveaxis(array, 2, 1)[read[..., 0], read[..., 1]]  # (B, S, G, ·)
        made = made.but(**{name: np.nan_to_num(np.moveaxis(rows, 1, 2))})
    rules = {name: _longer(rule, keys) for name, rule in pipe.rules.items()}
    if (read[..., 1] < 0).any():
        rules["pages"] = table((read[..., 1] >= 0)[:, None, None])
    return made.but(rules=rules)


def _longer(rule: Rule, keys: int) -> Rule:
    """Let the keys be seen that are read beyond the last one."""
    return lambda run: rule(run) | (run.j >= keys)


def _tables(found: Mapping[int, Misread], entries: int, keys: int) -> Ints:
    """Return which key of which entry stands in each place, (B, S, 2); key −1 for none."""
    tables = []
    for entry in range(entries):
        own = [(entry, key) for key in range(keys)]
        misread = found.get(entry, Misread(()))
        places = [key for page in misread.lost for key in range(page.start, page.stop)]
        sources = [
            (page.entry, key) for page in misread.added for key in range(page.start, page.stop)
        ]
        for place in places:
            own[place] = (entry, -1)
        for place, source in zip(places, sources, strict=False):
            own[place] = source
        tables.append(own + sources[len(places) :])
    most = max(map(len, tables))
    return np.array([[*own, *[(0, -1)] * (most - len(own))] for own in tables])


def _told(found: Mapping[int, Misread], entries: int) -> str:
    """Say what is read in the place of what, of so many batch entries in all."""
    said: dict[str, list[int]] = {}
    for entry, misread in found.items():
        for sentence in _sentences(misread, entry):
            said.setdefault(sentence, []).append(entry)
    words = []
    for sentence, at in said.items():
        which = f"batch {'entry' if len(at) == 1 else 'entries'} {first_few([*map(str, at)])}"
        where = f" ({'every batch entry' if len(at) == entries else which})"
        words.append(sentence + (where if entries > 1 else ""))
    more = len(words) - _NAMED
    return "; ".join(words if more <= 1 else [*words[:_NAMED], f"and {more} more"])


def _sentences(misread: Misread, entry: int) -> Iterator[str]:
    """Say what is read in the place of what, if both are as many."""
    lost, added = _keys(misread.lost), _keys(misread.added)
    if len(lost) == len(added):
        # Runs in which both go on key by key.
        runs: list[tuple[Page, Page]] = []
        for place, source in zip(lost, added, strict=True):
            last = runs[-1] if runs else None
            pairs = zip(last, (place, source), strict=True) if last else ()
            if last and all(len(_joined(pair)) == 1 for pair in pairs):
                runs[-1] = _joined((last[0], place))[0], _joined((last[1], source))[0]
            else:
                runs.append((place, source))
        for place, source in runs:
            yield f"{_named(misread, source, entry)} in the place of {_span(place)}"
        return
    for one in _joined(misread.lost):
        yield f"{_named(misread, one, entry)} not at all"
    for other in _joined(misread.added):
        again = "once more" if other.entry == entry else "too"
        yield f"{_named(misread, other, entry)} {again}"


def _keys(pages: Iterable[Page]) -> list[Page]:
    """Return pages of one key each."""
    return [Page(page.entry, n, n + 1) for page in pages for n in range(page.start, page.stop)]


def _joined(pages: Iterable[Page]) -> list[Page]:
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


# Pages of zeros.


def empty_pages(case: Case) -> Mistake | None:
    """Return the mistake that the keys, the values or both of one page are 0."""
    problem = case.problem
    # A mask of each head leaves no row that all heads see alike.
    if not is_plain(case) or not 1 < problem.shape[3] <= _MOST_KEYS or case.run.seen.shape[1] > 1:
        return None
    found = _nearest(case)
    if found is None:
        return None
    names, (start, stop) = found
    which = f"of key {start}" if stop - start == 1 else f"{start} to {stop - 1}"
    return Mistake(
        "empty_page",
        f"the {' and '.join(f'{name}s' for name in names)} {which} are zero, as in a page of a "
        "cache that is not yet written, or freed",
        lambda pipe: emptied(turned_inputs(pipe), names, slice(start, stop)),
        stages.SLOTS,
        "write the cache before it is read, and read the pages that the block table names",
        variant_of=(
            *("last_slot_unwritten", "last_key_unwritten", "last_value_unwritten"),
            *(f"online_last_context_{size}" for size in SIZES),
        ),
    )


def _nearest(case: Case) -> tuple[tuple[str, ...], tuple[int, int]] | None:
    """Return which inputs, in which keys, are zeros if the worst rows are right then."""
    errors = np.abs(case.canonical("context") - case.right["context"]).max(axis=(1, 3))
    if not np.isfinite(errors).all():
        return None
    worst = np.argsort(-errors, axis=None, kind="stable")[:_ROWS]
    rows = [_Row(case, *(int(n) for n in np.unravel_index(at, errors.shape))) for at in worst]
    best: tuple[float, tuple[str, ...], tuple[int, int]] | None = None
    for names in _KINDS:
        far = _Emptied(rows, names)
        if case.question.work.over or far.sums.size > _MOST_TERMS:
            return None
        case.question.work.spend(far.sums.size)
        left, page = far.nearest()
        if best is None or left < best[0] / _NEARER:
            best = left, names, page
    return None if best is None else best[1:]


class _Emptied:
    """What is left of some rows' sums where pages of some inputs are zeros, (S + 1, numbers)."""

    def __init__(self, rows: Sequence[_Row], names: tuple[str, ...]) -> None:
        changes, known = [], []
        for row in rows:
            shares, differences = row.shares[row.entry], row.differences[row.entry]
            seen = row.seen[:, None]
            # exp(0 − lse), which all keys of zeros have, and what a value of zeros is away by.
            zero = np.where(seen, row.zero_share[:, None], 0) if "key" in names else shares
            away = np.where(seen, -row.context[:, None], 0) if "value" in names else differences
            changes.append((zero * away - shares * differences).swapaxes(0, 1))
            known.append((shares * differences).sum(axis=1))
        each = np.concatenate([change.reshape(len(change), -1) for change in changes], axis=1)
        self.sums = np.zeros((len(each) + 1, each.shape[1]))
        np.cumsum(each, axis=0, out=self.sums[1:])
        self._known = np.concatenate([one.ravel() for one in known])

    def _left(self, start: Array, stop: Array) -> Array:
        with np.errstate(invalid="ignore"):
            left = self._known + self.sums[stop] - self.sums[start]
        return np.asarray(np.nan_to_num(np.square(left).mean(axis=-1), nan=np.inf))

    def nearest(self) -> tuple[float, tuple[int, int]]:
        """Return the root mean square that the best page leaves, and the page."""
        keys = len(self.sums) - 1
        least, best = math.inf, (0, keys)
        for size in (2**power for power in range(keys.bit_length())):
            starts = np.arange(0, keys, size)
            left = self._left(starts, np.minimum(starts + size, keys))
            at = int(left.argmin())
            if left[at] < least:
                least, best = float(left[at]), (int(starts[at]), min(int(starts[at]) + size, keys))
        step = 1 << keys.bit_length()
        while step := step // 2:  # its ends are moved as long as that comes nearer
            for start, stop in ((-step, 0), (step, 0), (0, -step), (0, step)):
                page = best[0] + start, best[1] + stop
                while 0 <= page[0] < page[1] <= keys and (near := self._of(page)) < least:
                    least, best = near, page
                    page = best[0] + start, best[1] + stop
        return math.sqrt(least), best

    def _of(self, page: tuple[int, int]) -> float:
        return float(self._left(np.array(page[0]), np.array(page[1])))


FITTINGS = (
    at_first(misread_pages, "heads"),
    Fitting(lambda cases: empty_pages(cases[0])),
)
