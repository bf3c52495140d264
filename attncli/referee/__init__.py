"""The referee: judges outputs of other implementations and names the mistake.

>>> import attncli
>>> query, key = [[1.0, 0.0, 2.0, 1.0]], [[0.5, 1.0, 1.0, 0.0], [2.0, 0.0, 0.0, 1.0]]
>>> problem = attncli.pose(query, key, [[1.0, 2.0], [3.0, 4.0]])
>>> report = check([[2.2449, 3.2449]], problem)
>>> report.passed, [explanation.name for explanation in report.diagnosis.explanations]
(False, ['unscaled'])
"""

from __future__ import annotations

from attncli.referee.judging import check
from attncli.referee.report import CheckReport

__all__ = ["CheckReport", "check"]
