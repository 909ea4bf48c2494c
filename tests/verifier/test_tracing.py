"""A replay in a verifier is a span below the router's, on the real engine; what fails names its request."""

import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from llm42.protocol.errors import ReplayFailed, ReplayRefused
from llm42.protocol.messages import Question, ReplayRequest, pack_tokens
from llm42.tracing.spans import SpanTracing
from llm42.verifier import deployment
from llm42.verifier.deployment import Verifier
from llm42.verifier.engine import ReplayEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUTER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOKENS = pack_tokens(range(10, 60))


def deployed(engine: Any, exporter: InMemorySpanExporter) -> Verifier:
    """The deployment without Serve, around an engine that is there already."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    verifier = Verifier.__new__(Verifier)
    verifier._engine, verifier._replica_id, verifier._tracing = engine, "v1", SpanTracing(provider)
    return verifier


async def test_a_replay_is_a_span_of_the_routers_trace(engine: ReplayEngine) -> None:
    exporter = InMemorySpanExporter()
    verifier = deployed(engine, exporter)
    question = Question(TOKENS, 40)
    reply = await verifier.replay(ReplayRequest("cmpl-1", question, trace=ROUTER))
    (span,) = exporter.get_finished_spans()
    assert span.name == "replay"
    assert span.parent is not None
    assert f"00-{format_trace_id(span.parent.trace_id)}-{format_span_id(span.parent.span_id)}-01" == ROUTER
    assert span.attributes == {"llm42.request_id": "cmpl-1", "llm42.start": 40, "llm42.candidates": 9}
    assert [event.name for event in span.events] == ["first pass"]
    assert reply == await verifier.replay(ReplayRequest("cmpl-1", question)), "nothing else is different"
    assert len(exporter.get_finished_spans()) == 1, "who sends no trace gets none"


async def test_a_refusal_ends_it(engine: ReplayEngine) -> None:
    exporter = InMemorySpanExporter()
    with pytest.raises(ReplayRefused):
        await deployed(engine, exporter).replay(ReplayRequest("cmpl-1", Question(TOKENS, 50), trace=ROUTER))
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ReplayRefused")
    assert not span.events


async def test_a_failed_replay_names_its_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        fingerprint = "F"

        async def replay(self, *_: Any) -> None:
            raise ReplayFailed("the pass failed")

    monkeypatch.setattr(deployment.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(deployment.logger, "propagate", False)
    caplog.set_level(logging.WARNING, deployment.logger.name)
    with pytest.raises(ReplayFailed):
        await deployed(Failing(), InMemorySpanExporter()).replay(ReplayRequest("cmpl-1\n", Question(TOKENS, 40)))
    assert caplog.messages == ["replay of cmpl-1\\n: ReplayFailed: the pass failed"]
