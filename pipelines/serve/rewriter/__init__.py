"""The rewriter behind the server: engines, vLLM process, circuit breaker, cache."""
