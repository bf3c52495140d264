"""How one query gets its weights and context: every number as data, then as formulas in words."""
