"""Judge gradients, and name the mistake of the backward pass that explains them."""

from __future__ import annotations

from attncli.referee.gradients.judging import with_gradients

__all__ = ["with_gradients"]
