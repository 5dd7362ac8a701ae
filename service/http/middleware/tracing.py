"""Spans of requests, by OpenTelemetry. Without its standard variables nothing is traced, and its
SDK is not imported."""

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog
from opentelemetry.trace import Tracer

from service.http.limits import Stage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

EXPORT_TIMEOUT = 2.0  # seconds
# The SDK reads these variables, too: https://opentelemetry.io/docs/specs/otel/protocol/exporter
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def open_tracing() -> "TracerProvider | None":
    """Return a provider whose spans go to the collector at OTEL_EXPORTER_OTLP_ENDPOINT.

    Return None if no collector is named, or OTEL_TRACES_EXPORTER is none. If the extra `otel` is
    not installed, log so: some clusters set these variables in every container.
    """
    if os.environ.get("OTEL_TRACES_EXPORTER") == "none" or not any(
        map(os.environ.get, ENDPOINT_VARIABLES)
    ):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        advice = "run pip install 'heed-server[otel]', or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        structlog.get_logger().warning("requests are not traced", missing="otel", advice=advice)
        return None
    resource = Resource({"service.name": "heed"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def close_tracing(provider: "TracerProvider") -> None:
    """Send the last spans; give up after EXPORT_TIMEOUT if no collector takes them."""
    closing = threading.Thread(target=provider.shutdown, daemon=True)  # does not delay the exit
    closing.start()
    closing.join(EXPORT_TIMEOUT)


def write_spans(tracer: Tracer, stages: Mapping[str, Stage]) -> None:
    """Write a span for each stage, as a child of the current span.

    The stages have ended: those of the engine were measured there, in another process, on the same
    clock, and came with the answer.
    """
    offset = time.time() - time.monotonic()
    for name, stage in stages.items():
        start = int((stage.started + offset) * 1e9)
        tracer.start_span(name, start_time=start).end(start + int(stage.seconds * 1e9))
