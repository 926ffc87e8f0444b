"""Spans name stages, and never contain a user's words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from doubles import ModelServer
from serving import Running, rewriter

from pipelines.serve import tracing

Serve = Callable[..., Running]


def test_a_search_is_a_request_with_its_stages(serve: Serve, model: ModelServer) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    server = serve(rewriter=rewriter(model))
    server.until_ready()
    tracing.use(provider.get_tracer("test"))
    try:
        server.search("a very private matter of the weather")
    finally:
        tracing.use(None)
    spans = {span.name: span for span in kept.get_finished_spans()}
    assert set(spans) == {"request", "raw", "rewrite", "lists"}
    assert {span.context.trace_id for span in spans.values()} == {spans["request"].context.trace_id}
    assert "private" not in "".join(span.to_json() for span in spans.values())
