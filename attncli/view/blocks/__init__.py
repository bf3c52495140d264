"""Pictures as text for a terminal."""
