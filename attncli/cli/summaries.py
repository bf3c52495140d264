"""``--show stats`` and ``--show top``: statistics of the weights, and the strongest keys."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from attncli.cli.terminal import progress_bar
from attncli.errors.names import SUMMARIES
from attncli.errors.text import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.text import Text

    from attncli.cli.output import OutputOptions
    from attncli.numerics.indices import Picked
    from attncli.summaries.maps import Labels, Maps
    from attncli.summaries.stats import HeadStats
    from attncli.summaries.strongest import TopKeys
    from attncli.view.limits import Limits

__all__ = ["Summaries"]

_Part = TypeVar("_Part", "HeadStats", "TopKeys")


class Summaries:
    """The summaries of weights, each made when it is asked for, and once."""

    def __init__(self, weights: Maps, picked: Picked, options: OutputOptions) -> None:
        self._weights, self._picked, self._options = weights, picked, options

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """The names of queries and keys."""
        return self._weights.labels

    def among(self, names: Collection[str]) -> dict[str, object]:
        """Return those among some names of outputs, as plain data."""
        return {
            name: [asdict(part) for part in (self._stats if name == "stats" else self._top)]
            for name in SUMMARIES
            if name in names
        }

    def parts(self, name: str, limits: Limits) -> Iterator[Text]:
        """Yield the title and the table of one."""
        from attncli.view.stats import stats_parts, top_parts
        from attncli.view.tables import heading, remark

        yield heading(name, limits)
        if name == "stats":
            yield from stats_parts(self._stats, limits)
        else:
            queries = self._weights.shape[2]
            shown = min(queries, limits.rows or queries)
            yield from top_parts([*self._top_of(shown)], limits)
            if shown < queries:
                more = counted(queries - shown, "more query", "more queries")
                yield remark(f"… {more} (--max-rows)", limits)
        yield remark("", limits)

    @cached_property
    def _stats(self) -> list[HeadStats]:
        from attncli.summaries.stats import statistics

        with progress_bar(quiet=self._options.quiet) as progress:
            return [*map(self._named, statistics(self._weights, progress=progress))]

    @cached_property
    def _top(self) -> list[TopKeys]:
        return [*self._top_of(self._weights.shape[2])]

    def _top_of(self, queries: int) -> Iterator[TopKeys]:
        from attncli.summaries.strongest import top

        return map(self._named, top(self._weights, self._options.top or 3, queries=queries))

    def _named(self, part: _Part) -> _Part:
        """Say which batch entry and head of all it is."""
        batch, head = self._picked.place(part.batch, part.head)
        return replace(part, batch=batch, head=head)
