"""Training of rerankers on lists that a retriever returns."""
