"""Reranking as a stage of the query path: settings, loading, and the stage itself."""
