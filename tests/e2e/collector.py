"""As much of an OpenTelemetry collector as a test needs: it takes spans over HTTP, and keeps them."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ARRIVED_S = 60.0
"""Spans are sent every few seconds."""


@dataclass(frozen=True)
class Span:
    """Ids are bytes; ``parent_id`` is empty for one that begins a trace."""

    service: str
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    attributes: dict[str, Any]
    events: tuple[str, ...]


class Collector:
    """``url`` is the endpoint to configure."""

    def __init__(self) -> None:
        spans: list[Span] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    spans.extend(read(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.spans = spans

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def trace(self, trace_id: str, *services: str) -> list[Span]:
        """The spans of a trace, once each of ``services`` has sent some of it and no more come."""
        deadline, before = time.monotonic() + ARRIVED_S, -1
        while True:
            found = [span for span in self.spans if span.trace_id.hex() == trace_id]
            if {span.service for span in found} == set(services) and len(found) == before:
                return found
            assert time.monotonic() < deadline, f"of this trace there is only {found}"
            before = len(found)
            time.sleep(6.0)  # longer than spans wait to be sent


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()


def read(request: ExportTraceServiceRequest) -> Iterator[Span]:
    """The spans in one message."""
    for of_resource in request.resource_spans:
        resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    resource["service.name"],
                    span.name,
                    span.trace_id,
                    span.span_id,
                    span.parent_span_id,
                    {one.key: _value(one.value) for one in span.attributes},
                    tuple(event.name for event in span.events),
                )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
