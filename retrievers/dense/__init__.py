"""Dense retrieval: encoder, embeddings, approximate search, Milvus, tuning."""
