"""How one query gets its weights and context: every number, as data."""
