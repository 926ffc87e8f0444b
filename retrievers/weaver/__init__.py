"""ToolWeaver (arXiv 2601.21947): codes of several tokens, learned from the tools' meaning and their co-usage."""
