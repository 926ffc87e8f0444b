"""Languages of texts."""
