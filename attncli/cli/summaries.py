"""``--show stats`` and ``--show top``: what many weights come to."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from attncli.errors.names import SUMMARIES
from attncli.errors.text import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.text import Text

    from attncli.cli.options import RunOptions
    from attncli.numerics.indices import Picked
    from attncli.summaries.row_blocks import Labels, Weights
    from attncli.summaries.stats import HeadStats
    from attncli.summaries.strongest import TopKeys
    from attncli.view.tables import Limits

__all__ = ["Summaries"]

_Part = TypeVar("_Part", "HeadStats", "TopKeys")


class Summaries:
    """The summaries of weights, each made when it is asked for, and once.

    Parameters
    ----------
    weights : Weights
    count : int
        How many keys of a query ``top`` lists.
    picked : Picked
        Which of all batch entries and heads these are.
    run : RunOptions
    """

    def __init__(self, weights: Weights, count: int, picked: Picked, run: RunOptions) -> None:
        self._weights, self._count, self._picked, self._run = weights, count, picked, run

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """The names of queries and keys."""
        return self._weights.labels

    def among(self, names: Collection[str]) -> dict[str, object]:
        """Return those among some names of outputs, as plain data."""
        known: dict[str, object] = {}
        for name in SUMMARIES:
            if name in names:
                known[name] = self._stats_data if name == "stats" else self._top_data
        return known

    def parts(self, name: str, limits: Limits) -> Iterator[Text]:
        """Yield the title and the lines of the table of one."""
        from rich.text import Text

        from attncli.view.tables import heading

        yield heading(name, limits)
        yield from self._stats_parts(limits) if name == "stats" else self._top_parts(limits)
        yield Text("")

    @cached_property
    def _stats(self) -> tuple[HeadStats, ...]:
        from attncli.cli.terminal import progress_bar
        from attncli.summaries.stats import statistics

        with progress_bar(quiet=self._run.quiet) as progress:
            heads = statistics(self._weights, progress=progress)
        return tuple(map(self._named, heads))

    @cached_property
    def _stats_data(self) -> list[dict[str, object]]:
        from attncli.view.stats import stats_list

        return stats_list(self._stats)

    @cached_property
    def _top_data(self) -> list[dict[str, object]]:
        from attncli.view.stats import top_list

        return top_list(self._top((0, self._weights.shape[2])))

    def _top(self, rows: tuple[int, int]) -> Iterator[TopKeys]:
        from attncli.summaries.strongest import top

        return map(self._named, top(self._weights, self._count, rows=rows))

    def _named(self, part: _Part) -> _Part:
        """Say which batch entry and head of all it is."""
        batch, head = self._picked.place(part.batch, part.head)
        return replace(part, batch=batch, head=head)

    def _stats_parts(self, limits: Limits) -> Iterator[Text]:
        from attncli.view.stats import stats_parts

        return stats_parts(
            self._stats,
            width=limits.width,
            digits=limits.digits,
            unicode=limits.unicode,
            markdown=limits.markdown,
        )

    def _top_parts(self, limits: Limits) -> Iterator[Text]:
        from attncli.view.stats import top_parts
        from attncli.view.tables import remark

        queries = self._weights.shape[2]
        shown = min(queries, limits.rows or queries)
        yield from top_parts(
            self._top((0, shown)),
            width=limits.width,
            digits=limits.digits,
            unicode=limits.unicode,
            depth=limits.depth,
            markdown=limits.markdown,
        )
        if shown < queries:
            words = f"… {counted(queries - shown, 'more query', 'more queries')} (--max-rows)"
            yield remark(words, limits)
