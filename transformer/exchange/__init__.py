"""Weights and models of other programs, read and written."""
