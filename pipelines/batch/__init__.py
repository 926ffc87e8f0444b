"""Batch query expansion that resumes after any crash."""
