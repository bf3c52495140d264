"""``--show stats`` and ``--show top``: what many weights come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from attncli.cli.options import RunOptions
    from attncli.problem import Problem
    from attncli.view.tables import Limits

__all__ = ["summary", "summary_parts"]


def summary(name: str, problem: Problem, count: int, run: RunOptions) -> list[dict[str, object]]:
    """Return the statistics of each head, or the strongest keys of each query, as plain data."""
    from attncli.stats import statistics  # noqa: PLC0415
    from attncli.strongest import top  # noqa: PLC0415
    from attncli.view.stats import stats_list, top_list  # noqa: PLC0415

    if name == "stats":
        return stats_list(statistics(problem, threads=run.threads))
    return top_list(top(problem, count, threads=run.threads))


def summary_parts(
    name: str, problem: Problem, count: int, limits: Limits, run: RunOptions
) -> Iterator[Text]:
    """Yield the title and the lines of the table of a summary."""
    from rich.text import Text  # noqa: PLC0415

    from attncli.stats import statistics  # noqa: PLC0415
    from attncli.strongest import top  # noqa: PLC0415
    from attncli.view.stats import stats_parts, top_parts  # noqa: PLC0415

    yield Text(name, style="bold")
    if name == "stats":
        heads = statistics(problem, threads=run.threads)
        yield from stats_parts(
            heads, width=limits.width, digits=limits.digits, unicode=limits.unicode
        )
    else:
        queries = problem.shape[2]
        shown = min(queries, limits.rows or queries)
        rows = top(problem, count, rows=(0, shown), threads=run.threads)
        yield from top_parts(
            rows,
            width=limits.width,
            digits=limits.digits,
            unicode=limits.unicode,
            depth=limits.depth,
        )
        if shown < queries:
            words = f"… {queries - shown} more queries (--max-rows)"
            yield Text(limits.known(words), style="dim italic")
    yield Text("")
