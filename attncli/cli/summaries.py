"""``--show stats`` and ``--show top``: what many weights come to."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from attncli.names import SUMMARIES
from attncli.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.text import Text

    from attncli.cli.options import RunOptions
    from attncli.problem import Problem
    from attncli.stats import HeadStats
    from attncli.view.tables import Limits

__all__ = ["Summaries"]


class Summaries:
    """The summaries of a problem, each made when it is asked for, and once.

    Parameters
    ----------
    problem : Problem
    count : int
        How many keys of a query ``top`` lists.
    run : RunOptions
    """

    def __init__(self, problem: Problem, count: int, run: RunOptions) -> None:
        self._problem, self._count, self._run = problem, count, run

    def among(self, names: Iterable[str]) -> dict[str, object]:
        """Return those among some names of outputs, as plain data."""
        known: dict[str, object] = {}
        for name in names:
            if name in SUMMARIES:
                known[name] = self._stats_data if name == "stats" else self._top_data
        return known

    def parts(self, name: str, limits: Limits) -> Iterator[Text]:
        """Yield the title and the lines of the table of one."""
        from rich.text import Text  # noqa: PLC0415

        yield Text(name, style="bold")
        yield from self._stats_parts(limits) if name == "stats" else self._top_parts(limits)
        yield Text("")

    @cached_property
    def _stats(self) -> tuple[HeadStats, ...]:
        from attncli.cli.progress import progress_bar  # noqa: PLC0415
        from attncli.stats import statistics  # noqa: PLC0415

        with progress_bar(quiet=self._run.quiet) as progress:
            return statistics(self._problem, threads=self._run.threads, progress=progress)

    @cached_property
    def _stats_data(self) -> list[dict[str, object]]:
        from attncli.view.stats import stats_list  # noqa: PLC0415

        return stats_list(self._stats)

    @cached_property
    def _top_data(self) -> list[dict[str, object]]:
        from attncli.strongest import top  # noqa: PLC0415
        from attncli.view.stats import top_list  # noqa: PLC0415

        return top_list(top(self._problem, self._count, threads=self._run.threads))

    def _stats_parts(self, limits: Limits) -> Iterator[Text]:
        from attncli.view.stats import stats_parts  # noqa: PLC0415

        return stats_parts(
            self._stats, width=limits.width, digits=limits.digits, unicode=limits.unicode
        )

    def _top_parts(self, limits: Limits) -> Iterator[Text]:
        from rich.text import Text  # noqa: PLC0415

        from attncli.strongest import top  # noqa: PLC0415
        from attncli.view.stats import top_parts  # noqa: PLC0415

        queries = self._problem.shape[2]
        shown = min(queries, limits.rows or queries)
        yield from top_parts(
            top(self._problem, self._count, rows=(0, shown), threads=self._run.threads),
            width=limits.width,
            digits=limits.digits,
            unicode=limits.unicode,
            depth=limits.depth,
        )
        if shown < queries:
            words = f"… {counted(queries - shown, 'more query', 'more queries')} (--max-rows)"
            yield Text(limits.known(words), style="dim italic")
