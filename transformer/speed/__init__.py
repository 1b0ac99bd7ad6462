"""Faster ways to compute what the core computes: the same parameters, names and results."""
