"""Scores that mean the same for every retriever: estimated probabilities that a request needs a tool."""
