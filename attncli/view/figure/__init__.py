"""Pictures as matplotlib figures, and figures as the bytes of a file."""
