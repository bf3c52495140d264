"""One query's way to its weights and context, every number of it, as data."""
