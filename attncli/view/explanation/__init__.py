"""Explanations for the terminal, for a lecture and for machines."""
