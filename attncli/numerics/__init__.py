"""Number formats, indices, positions: what is computed with, below every question."""
