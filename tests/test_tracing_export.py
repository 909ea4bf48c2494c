"""Spans arrive at a collector, over either protocol; OpenTelemetry's own variables hold."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

import llm42
from llm42.config import Traces
from llm42.tracing.export import exporting
from tests.e2e.collector import Span, collector, read


@contextmanager
def over_http() -> Iterator[tuple[Traces, list[Span]]]:
    with collector() as found:
        yield Traces(endpoint=found.url), found.spans


@contextmanager
def over_grpc() -> Iterator[tuple[Traces, list[Span]]]:
    spans: list[Span] = []

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            spans.extend(read(request))
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Traces(endpoint=f"http://127.0.0.1:{port}", protocol="grpc"), spans
    finally:
        server.stop(None).wait(5)


@pytest.mark.parametrize("over", [over_http, over_grpc])
@pytest.mark.parametrize("named", [None, "of-the-operator"])
def test_spans_arrive(over: Any, named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(variable, raising=False)
    if named is not None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", named)
    with over() as (settings, spans):
        provider = exporting(settings, "verifier", "v1")
        provider.get_tracer("t").start_span("replay", attributes={"llm42.start": 7}).end()
        assert provider.resource.attributes["service.instance.id"] == "v1"
        assert provider.resource.attributes["service.version"] == llm42.__version__
        provider.shutdown()
    (span,) = spans
    assert (span.service, span.name, span.attributes) == (named or "llm42-verifier", "replay", {"llm42.start": 7})


def test_a_sampler_of_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with over_http() as (settings, spans):
        provider = exporting(settings, "router", "r1")
        provider.get_tracer("t").start_span("request").end()
        provider.shutdown()
    assert spans == []
