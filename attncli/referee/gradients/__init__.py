"""Whether gradients are right, and which mistake of the backward pass explains them."""

from __future__ import annotations

from attncli.referee.gradients.judging import with_gradients

__all__ = ["with_gradients"]
