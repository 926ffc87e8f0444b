"""Prometheus metrics. No label holds text of a caller."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0)


class Metrics:
    """One registry per server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"toolrewrite_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"toolrewrite_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"toolrewrite_{name}", text, labels, buckets=BUCKETS, registry=registry)

        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.latency = seconds("request_seconds", "Seconds per request.", "route")
        self.stages = seconds("stage_seconds", "Seconds per stage of a search.", "stage")
        self.fallbacks = counter("fallbacks", "Raw rankings in place of rewritten ones.", "reason")
        self.rewrites = counter("rewrites", "Rewrites by status.", "status")
        self.not_asked = counter("rewriter_not_asked", "Searches without the rewriter.", "reason")
        self.nothing_fits = counter("nothing_fits", "Searches without a tool that reaches min_score.")
        self.not_reranked = counter("not_reranked", "Lists in their first order despite a reranker.", "reason")
        self.cache = counter("rewrite_cache", "Lookups in the cache of rewrites.", "result")
        self.refused = counter("refused", "Requests refused before any work.", "code")
        self.in_flight = gauge("in_flight", "Running requests.")
        self.connections = gauge("connections", "Open connections.")
        self.connections_closed = counter("connections_closed", "Connections closed by a limit.", "reason")
        self.waiting = gauge("searches_waiting", "Texts that wait for a search thread.")
        self.endpoint_up = gauge("model_up", "1: this endpoint has the rewriter.", "endpoint")
        self.breaker = gauge("model_left_alone", "1: the circuit breaker is not closed.", "endpoint")
        self.vllm_starts = gauge("vllm_starts", "Starts of the managed vLLM.")
        self.tools = gauge("tools", "Tools in the catalogue.")
        self.reloads = counter("reloads", "Newer versions loaded.", "what", "result")
        self.stale = gauge("catalogue_stale", "1: a newer catalogue cannot be loaded.")
        self.calls = counter("calls", "Calls of tools.", "upstream", "outcome")
        self.call_seconds = seconds("call_seconds", "Seconds per call of a tool.", "upstream")
        self.upstream_up = gauge("upstream_up", "1: calls can be sent to this server.", "upstream")
        self.upstream_starts = counter(
            "upstream_starts", "Connections to this server; starts of a command.", "upstream"
        )
        self.feedback = counter("feedback", "Feedback records kept.")

    def page(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)
