"""Conventions that are read off the numbers of the files: a scale, a mask, places, lengths."""
