"""Mistakes that are read off the numbers of the files: numbers, counts of keys, places, shapes."""

from __future__ import annotations

from functools import partial

from attncli.referee.fits import choices, counts, places, segments, shapes, spans, sums, tokens
from attncli.referee.fits import unwritten as lines
from attncli.referee.fits.numbers import fitted
from attncli.referee.fits.quantities import QUANTITIES, SCALE
from attncli.referee.fits.table import Fitting, at_first

__all__ = ["FITTED", "SCALE", "SHOWN", "Fitting"]

FITTED: tuple[Fitting, ...] = (
    *(at_first(partial(fitted, one), one.name) for one in QUANTITIES),
    *sums.FITTINGS,
    *choices.FITTINGS,
    *spans.FITTINGS,
    *segments.FITTINGS,
    *counts.FITTINGS,
    *places.FITTINGS,
    *tokens.FITTINGS,
    *shapes.FITTINGS,
    *lines.FITTINGS,
)
SHOWN = counts.SHOWN
