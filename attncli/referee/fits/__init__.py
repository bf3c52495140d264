"""Fits: mistakes whose parameters are read off the files: numbers, counts, places, shapes."""

from __future__ import annotations

from attncli.referee.fits import counts, places, quantities, rows, shapes, spans, tokens
from attncli.referee.fits.quantities import SCALE
from attncli.referee.fits.table import Fitting

__all__ = ["FITTED", "SCALE", "SHOWN", "Fitting"]

FITTED: tuple[Fitting, ...] = (
    *quantities.FITTINGS,
    *spans.FITTINGS,
    *rows.FITTINGS,
    *counts.FITTINGS,
    *places.FITTINGS,
    *tokens.FITTINGS,
    *shapes.FITTINGS,
)
SHOWN = counts.SHOWN
