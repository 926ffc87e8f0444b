"""OpenTelemetry spans. No span holds text of a caller."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rewrite.errors import RewriteError

_tracer: Any = None


def start() -> None:
    """Send spans to $OTEL_EXPORTER_OTLP_ENDPOINT from now on."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = "traces need OpenTelemetry; run `pip install 'toolrewrite[traces]'`, or leave `traces` out"
        raise RewriteError(message) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "rewrite-serve"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    use(trace.get_tracer("rewrite-serve"))


def use(tracer: Any) -> None:
    """Set the tracer; None turns tracing off."""
    global _tracer
    _tracer = tracer


def span(name: str, **attributes: str | int) -> AbstractContextManager[Any]:
    """A span around one stage of a request; does nothing without a tracer."""
    return nullcontext() if _tracer is None else _tracer.start_as_current_span(name, attributes=attributes)
