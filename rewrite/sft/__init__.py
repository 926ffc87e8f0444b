"""Supervised fine-tuning of a rewriter."""
