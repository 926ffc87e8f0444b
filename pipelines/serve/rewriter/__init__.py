"""The rewriter behind the server: engines, vLLM process, breaker, cache."""
