"""Targets: what a rewriter should answer."""
