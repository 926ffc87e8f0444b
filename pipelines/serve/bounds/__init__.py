"""Bounds of what a caller can take: turns of callers, costs of requests."""
