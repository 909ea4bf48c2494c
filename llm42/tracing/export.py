"""Where spans go: in batches, from a thread of their own, over OTLP.

OpenTelemetry's environment variables hold for all that is not settled here: headers, time limits, sampling, the size
of the queue (which drops spans when it is full, and never waits).
"""

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

import llm42
from llm42.config import Traces


def exporting(settings: Traces, part: str, replica_id: str) -> TracerProvider:
    """Not OpenTelemetry's global provider: that one belongs to whoever runs this process."""
    said = {
        "service.name": f"llm42-{part}",
        "service.instance.id": replica_id,
        "service.version": llm42.__version__,
    }
    provider = TracerProvider(resource=Resource.create(said).merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(_exporter(settings)))
    return provider


def _exporter(settings: Traces) -> SpanExporter:
    endpoint = settings.endpoint
    assert endpoint is not None
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
