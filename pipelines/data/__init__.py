"""Data sets: reading, splits, labels, training sets, TREC files."""
