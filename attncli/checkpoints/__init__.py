"""Checkpoints of models: find one attention layer and the rules of its model."""
