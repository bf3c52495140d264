"""Conventions that are fitted to the numbers of the files: a scale, a factor or a mask."""
