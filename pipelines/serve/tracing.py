"""OpenTelemetry spans, where they are wanted. No span ever holds what a caller wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rewrite.errors import RewriteError

_tracer: Any = None


def start() -> None:
    """Sends spans where $OTEL_EXPORTER_OTLP_ENDPOINT says, from now on."""
    global _tracer
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RewriteError(
            "traces need OpenTelemetry; run `pip install 'toolrewrite[traces]'`, or leave `traces` out"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "rewrite-serve"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    use(trace.get_tracer("rewrite-serve"))


def use(tracer: Any) -> None:
    """Takes another tracer, or none."""
    global _tracer
    _tracer = tracer


def span(name: str, **facts: str | int) -> AbstractContextManager[None]:
    """A stage of a request; nothing where nobody wants to know."""
    return nullcontext() if _tracer is None else _span(name, facts)


@contextmanager
def _span(name: str, facts: dict[str, str | int]) -> Iterator[None]:
    with _tracer.start_as_current_span(name, attributes=facts):
        yield
