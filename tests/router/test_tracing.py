"""The spans of a request in the router, with scripted pools: what they are, whose children, and that none are off."""

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from llm42.config import Config, Traces
from llm42.protocol import ReplayReply, ReplayRequest, StopRules
from llm42.protocol.errors import ReplayFailed, ReplayRefused
from llm42.router import deterministic
from llm42.router.admission import FLAG
from llm42.router.answer import ANSWER, Answer
from llm42.router.core import RouterCore
from llm42.router.verifiers import VerifierPool
from llm42.tracing import Tracing, tracing_of
from llm42.tracing.spans import SpanTracing
from tests.protocol.model import canonical_output, canonical_token
from tests.router.test_deterministic import PROMPT, TIMEOUTS, Draft, Hub, Metrics, Verifiers

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONFIG = Config.model_validate(
    {"window_size": 4, "run_ahead": 8, "cadence": {"min_candidates": 2}, "timeouts": TIMEOUTS, "audit": {"share": 0}}
)
LENGTH = 30


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deterministic, "RETRY_DRAFT_S", 0.01)


class Listening(Verifiers):
    """Keeps the questions that were asked."""

    def __init__(self, *faults: Any) -> None:
        super().__init__(*faults)
        self.asked: list[ReplayRequest] = []

    def remote(self, request: ReplayRequest, *, replica_id: str | None, avoid: object) -> Awaitable[ReplayReply]:
        self.asked.append(request)
        return super().remote(request, replica_id=replica_id, avoid=avoid)


class Spans:
    """What a collector would have, by name, in order of their beginning."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = SpanTracing(provider)

    def named(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    @property
    def names(self) -> set[str]:
        return {span.name for span in self._exporter.get_finished_spans()}


def said(span: ReadableSpan) -> dict[str, Any]:
    """Its attributes, without their prefix."""
    return {name.removeprefix("llm42."): value for name, value in (span.attributes or {}).items()}


async def answered(
    tracing: Tracing, draft: Draft | None, verifiers: Verifiers, trace_headers: dict[str, str] | None = None
) -> tuple[list[int], list[str]]:
    """The tokens that left, and what the request failed with, if it did."""
    pool = VerifierPool(verifiers, CONFIG.timeouts, Metrics())  # type: ignore[arg-type]
    core = RouterCore(CONFIG, Hub(draft), pool, Metrics())  # type: ignore[arg-type]
    core.tracing, core.structured_outputs = tracing, None
    failures: list[str] = []
    core.fail = lambda request_id, status, message, param=None: failures.append(message)
    params = SamplingParams(temperature=0, max_tokens=LENGTH, extra_args={FLAG: 1})
    request = EngineCoreRequest("r", PROMPT, None, params, None, 0.0, None, None, None)
    ANSWER.set(Answer(trace_headers=trace_headers or {}))
    await core.add_request_async(request)
    async with asyncio.timeout(10):
        await asyncio.gather(*core._sessions.values())
    tokens: list[int] = []
    while not core._outputs.empty():
        tokens += core._outputs.get_nowait().new_token_ids
    return tokens, failures


def wrong_now_and_then(tokens: list[int]) -> int:
    return canonical_token(tokens) if len(tokens) % 11 else (canonical_token(tokens) + 1) % 8


async def test_spans_of_a_request_with_rollbacks() -> None:
    spans, verifiers = Spans(), Listening()
    tokens, failures = await answered(spans.tracing, wrong_now_and_then, verifiers, {"traceparent": CLIENT})
    assert (tokens, failures) == (canonical_output(PROMPT, StopRules(LENGTH)), [])
    assert spans.names == {"request", "draft", "verify", "rollback"}

    (request,) = spans.named("request")
    assert request.context is not None
    assert request.parent is not None
    assert f"00-{format_trace_id(request.context.trace_id)}-{format_span_id(request.parent.span_id)}-01" == CLIENT
    counts = said(request)
    assert (counts["request_id"], counts["outcome"], counts["committed"]) == ("r", "finished", LENGTH)
    for name in ("draft", "verify", "rollback"):
        assert all(span.parent == request.context for span in spans.named(name)), name

    rollbacks = [said(span)["tokens"] for span in spans.named("rollback")]
    assert (len(rollbacks), sum(rollbacks)) == (counts["rollbacks"], counts["rolled_back"])
    assert rollbacks

    verifies = spans.named("verify")
    assert len(verifies) == counts["replays"]
    assert sum(said(span)["candidates"] for span in verifies) == counts["verified"]
    assert sum(said(span)["accepted"] for span in verifies) == counts["accepted"]
    commits = [event for span in verifies for event in span.events]
    assert {event.name for event in commits} == {"commit"}
    assert sum((event.attributes or {})["llm42.tokens"] for event in commits) == LENGTH  # type: ignore[misc]
    assert (commits[-1].attributes or {})["llm42.finish"] == "length"
    assert {said(span)["tries"] for span in verifies} == {1}

    drafts = spans.named("draft")
    assert [said(span)["stream"] for span in drafts] == list(range(1, len(drafts) + 1))
    assert sum(said(span)["tokens"] for span in drafts) == counts["drafted"]
    assert {said(span)["replica"] for span in drafts} == {"a"}
    assert [request.trace for request in verifiers.asked] == [
        f"00-{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}-01"
        for span in verifies
        if span.context is not None
    ], "each replay is sent with its own span"


async def test_a_request_without_a_trace_begins_one() -> None:
    spans = Spans()
    await answered(spans.tracing, canonical_token, Verifiers(), {"traceparent": "no such thing"})
    (request,) = spans.named("request")
    assert request.parent is None


async def test_tries_are_told() -> None:
    spans = Spans()
    await answered(spans.tracing, canonical_token, Verifiers(ReplayFailed("of a secret"), ReplayFailed("again")))
    first, *others = spans.named("verify")
    assert said(first)["tries"] == 3
    assert [event.name for event in first.events] == ["retry", "retry", "commit"]
    assert {said(span)["tries"] for span in others} == {1}


async def test_a_failure_is_an_error_of_its_kind_alone() -> None:
    spans = Spans()
    _, failures = await answered(spans.tracing, canonical_token, Verifiers(ReplayRefused("of a secret")))
    assert "of a secret" in failures[0], "the client is told"
    (request,), (verify,) = spans.named("request"), spans.named("verify")
    assert (request.status.status_code, request.status.description) == (StatusCode.ERROR, "refused")
    assert (verify.status.status_code, verify.status.description) == (StatusCode.ERROR, "ReplayRefused")
    assert not verify.events
    assert "secret" not in request.to_json() + verify.to_json()


async def test_lost_drafts_say_why() -> None:
    spans = Spans()
    await answered(spans.tracing, None, Verifiers())
    assert said(spans.named("draft")[0])["end"] == "lost: no replica"


async def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("llm42.tracing.spans", "llm42.tracing.export"))]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    tracing, verifiers = tracing_of(Traces(), "router", "r1"), Listening()
    tokens, _ = await answered(tracing, canonical_token, verifiers, {"traceparent": CLIENT})
    assert tokens == canonical_output(PROMPT, StopRules(LENGTH))
    assert {request.trace for request in verifiers.asked} == {None}


async def test_negative_control_on_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm42.tracing.spans", None)
    with pytest.raises(ImportError):
        tracing_of(Traces(endpoint="http://127.0.0.1:1"), "router", "r1")


async def test_where_opentelemetry_is_switched_off_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    spans = Spans()
    tokens, failures = await answered(spans.tracing, wrong_now_and_then, Listening())
    assert (tokens, failures) == (canonical_output(PROMPT, StopRules(LENGTH)), [])
    assert not spans.names
