"""Universal Sentence Encoder multilingual v3 as a module of sentence-transformers."""
