"""All cases: importing this module fills `referee.case.CASES`."""

from __future__ import annotations

from referee import (  # noqa: F401 - they fill CASES
    cases_heads,
    cases_kernels,
    cases_layers,
    cases_masks,
    cases_reports,
    cases_rope,
    cases_scores,
    cases_torch,
)
from referee.case import chosen
from referee.common_pairs import pair, pair_names

__all__ = ["chosen", "pair", "pair_names"]
