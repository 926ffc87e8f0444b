"""Constrained decoding of tool codes."""
