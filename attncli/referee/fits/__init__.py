"""Mistakes that are read off the numbers of the files: a number, counts of keys, places, shapes."""

from __future__ import annotations

from attncli.referee.fits import counts, numbers, pages, places, segments, shapes, spans
from attncli.referee.fits.table import Fitting
from attncli.referee.fits.unwritten import unwritten

__all__ = ["FITTED", "SHOWN", "Fitting"]

FITTED: tuple[Fitting, ...] = (
    *numbers.FITTINGS,
    *spans.FITTINGS,
    *segments.FITTINGS,
    *counts.FITTINGS,
    *places.FITTINGS,
    *pages.FITTINGS,
    *shapes.FITTINGS,
    Fitting(unwritten, of_part=True),
)
SHOWN = counts.SHOWN
