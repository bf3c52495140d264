"""Number formats, indices, positions and threads, which all other packages use."""
