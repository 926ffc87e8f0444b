"""Reranking: a model reads the request together with each of the first tools, and puts them into a better order."""
