"""Threads that share work, with one BLAS thread each."""
