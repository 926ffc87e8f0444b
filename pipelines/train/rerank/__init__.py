"""`rewrite-train rerank`: a reranker from labelled queries and the lists that retrievers return for them."""
