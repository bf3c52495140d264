"""Signs for terminals that have ASCII only: one table, to which formulas add theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors.text import in_ascii

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMULA_SIGNS", "known"]

_SIGNS = {
    " · ": ", ", "…": "...", "−": "-", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "—": "-",
    "“": '"', "”": '"', "␣": "_",
}  # fmt: skip
# A dot multiplies here, so it must not be read as the one between two words.
FORMULA_SIGNS = {
    "·": "*", "√": "sqrt ", "‖": "|", "Σ": "sum", "ᵀ": "^T",
    **{sign: instead for sign, instead in _SIGNS.items() if "·" not in sign},
}  # fmt: skip


def known(text: str, *, unicode: bool, signs: Mapping[str, str] = _SIGNS) -> str:
    """Return a text in characters that the terminal has: in ASCII, unless it has Unicode.

    Examples
    --------
    >>> known("weights · head 0", unicode=False)
    'weights, head 0'
    >>> known("q · k", unicode=False, signs=FORMULA_SIGNS)
    'q * k'
    """
    return text if unicode else in_ascii(text, signs)
