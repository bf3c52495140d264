"""All cases: importing this module fills `referee.case.CASES`."""

from __future__ import annotations

from referee import cases_heads, cases_masks, cases_rope, cases_scores  # noqa: F401 - they fill CASES
from referee.case import chosen

__all__ = ["chosen"]
