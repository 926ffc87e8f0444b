"""Batch query expansion that survives anything."""
