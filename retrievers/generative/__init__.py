"""Generative retrieval: a language model that says which tool, token by token, and can say nothing else."""
