"""Generative retrieval (ToolGen): a language model generates the tokens of a tool, and can generate nothing else."""
