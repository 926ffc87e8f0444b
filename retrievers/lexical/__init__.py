"""Lexical search: BM25 over all words of a tool, and a bonus for tools whose names are in the query."""
