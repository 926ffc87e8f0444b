"""What Prometheus is told. No label ever holds what a caller wrote."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0)


class Metrics:
    """One registry a server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        to = self._registry
        self.requests = Counter("toolrewrite_requests", "Requests answered.", ["route", "status"], registry=to)
        self.latency = Histogram(
            "toolrewrite_request_seconds", "Seconds a request took.", ["route"], buckets=BUCKETS, registry=to
        )
        self.stages = Histogram(
            "toolrewrite_stage_seconds", "Seconds a stage of a search took.", ["stage"], buckets=BUCKETS, registry=to
        )
        self.fallbacks = Counter(
            "toolrewrite_fallbacks", "Raw rankings in place of rewritten ones.", ["reason"], registry=to
        )
        self.rewrites = Counter("toolrewrite_rewrites", "What became of utterances.", ["status"], registry=to)
        self.cache = Counter("toolrewrite_rewrite_cache", "Lookups in the cache of rewrites.", ["result"], registry=to)
        self.refused = Counter("toolrewrite_refused", "Requests refused before any work.", ["code"], registry=to)
        self.in_flight = Gauge("toolrewrite_in_flight", "Requests under way.", registry=to)
        self.waiting = Gauge("toolrewrite_searches_waiting", "Texts that wait for retrieval.", registry=to)
        self.endpoint_up = Gauge(
            "toolrewrite_model_up", "1: this endpoint has the rewriter.", ["endpoint"], registry=to
        )
        self.breaker = Gauge("toolrewrite_model_left_alone", "1: the breaker is not closed.", ["endpoint"], registry=to)
        self.vllm_starts = Gauge("toolrewrite_vllm_starts", "Starts of the managed vLLM.", registry=to)
        self.tools = Gauge("toolrewrite_tools", "Tools that can be found.", registry=to)
        self.reloads = Counter("toolrewrite_reloads", "Newer versions taken up.", ["what", "result"], registry=to)
        self.stale = Gauge("toolrewrite_catalogue_stale", "1: newer versions cannot be taken up now.", registry=to)
        self.feedback = Counter("toolrewrite_feedback", "Confirmations taken.", registry=to)

    def page(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
