"""`assert_attention`: for tests of kernels, an assertion whose message is the diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from attncli.problem.posing import Rules, pose
from attncli.referee.judging import check

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

# The most lines of a failure's message.
_LINES = 10


def assert_attention(
    actual: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike | None = None,
    *,
    dcontext: npt.ArrayLike | None = None,
    dlse: npt.ArrayLike | None = None,
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
    time_limit: float = 10.0,
    **rules: Unpack[Rules],
) -> None:
    """Raise an `AssertionError` that names the mistake, unless outputs are right.

    Parameters
    ----------
    actual : array_like, or mapping of str to array_like
        The context that a kernel gave, or several outputs and gradients by name: ``{"dquery":
        query.grad}``. Tensors may be on any device and may require gradients.
    query, key, value : array_like
        The inputs of the kernel.
    dcontext, dlse : array_like, optional
        The gradients of context and lse, as in `attncli.gradients`.
    rtol, atol, time_limit
        As in `attncli.check`.
    **rules
        The rules that the kernel should follow: any rule of `attncli.attention`.

    Raises
    ------
    AssertionError
        An output is wrong. The message is the diagnosis, in at most ten lines.
    AttnError
        The arguments do not fit together.

    Examples
    --------
    >>> import attncli
    >>> attncli.assert_attention([[1.0]], [[2.0]], [[3.0]], [[1.0]])
    """
    problem = pose(query, key, value, **rules)
    report = check(
        actual,
        problem,
        rtol=rtol,
        atol=atol,
        time_limit=time_limit,
        dcontext=dcontext,
        dlse=dlse,
    )
    if report.passed:
        return
    wrong = tuple(verdict for verdict in report.verdicts if not verdict.passed)
    lines = str(replace(report, verdicts=wrong)).splitlines()
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"… {len(lines) - _LINES + 1} more lines: print(report)"]
    raise AssertionError("\n".join(lines))
