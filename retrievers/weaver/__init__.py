"""Hierarchical codes woven from meaning and co-usage (ToolWeaver, arXiv 2601.21947)."""
