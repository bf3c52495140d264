"""Checkpoints of models: one attention layer, under whichever names it has."""
