"""The spans themselves. Each has the attributes that its question needs, under ``llm42.``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import llm42
from llm42.protocol import (
    Action,
    Commit,
    Question,
    ReplayReply,
    ReplayRequest,
    SessionStats,
    StartDraft,
    StopDraft,
    Verify,
)
from llm42.tracing.off import Began, RequestTrace, Tracing

PARENT = "traceparent"
_W3C = TraceContextTextMapPropagator()


class SpanTracing(Tracing):
    """Spans to wherever ``provider`` sends them."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("llm42", llm42.__version__)

    def request(
        self, request_id: str, stats: SessionStats, headers: Mapping[str, str] | None, arrived: float
    ) -> RequestTrace:
        return RequestSpans(self._tracer, request_id, stats, headers, arrived)

    @contextmanager
    def replay(self, request: ReplayRequest) -> Iterator[Began | None]:
        if request.trace is None:  # an audit, or a receipt that is checked
            yield None
            return
        within = _W3C.extract({PARENT: request.trace}, Context())
        span = self._tracer.start_span("replay", within, SpanKind.SERVER, _asked(request.request_id, request.question))
        with _ending(span):
            yield lambda: span.add_event("first pass")

    def close(self) -> None:
        self._provider.shutdown()


class RequestSpans(RequestTrace):
    """One ``request`` span, and what is below it."""

    def __init__(
        self,
        tracer: Tracer,
        request_id: str,
        stats: SessionStats,
        headers: Mapping[str, str] | None,
        arrived: float,
    ) -> None:
        self._tracer = tracer
        self._request_id = request_id
        self._stats, self._seen = stats, replace(stats)
        client = _W3C.extract(headers or {}, Context())
        attributes = {"llm42.request_id": request_id}
        self._span = tracer.start_span("request", client, SpanKind.SERVER, attributes, start_time=int(arrived * 1e9))
        self._within = set_span_in_context(self._span, Context())
        self._drafts: dict[int, tuple[Span, int]] = {}
        """By stream, with how many tokens had been drafted before it."""
        self._verify: Span | None = None
        self._tries = 0

    def acting(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Commit(scores=scores, finish=finish) if self._verify is not None:
                    ended = {} if finish is None else {"llm42.finish": finish.value}
                    self._verify.add_event("commit", {"llm42.tokens": len(scores), **ended})
                    self._verify.set_attribute("llm42.accepted", self._stats.accepted - self._seen.accepted)
                case StopDraft(stream=stream):
                    self.draft_ended(stream, "stopped")
        if self._stats.rollbacks > self._seen.rollbacks:
            discarded = self._stats.rolled_back - self._seen.rolled_back
            self._tracer.start_span("rollback", self._within, attributes={"llm42.tokens": discarded}).end()
        for action in actions:
            if isinstance(action, StartDraft):
                attributes = {"llm42.stream": action.stream, "llm42.start": len(action.tokens)}
                span = self._tracer.start_span("draft", self._within, SpanKind.CLIENT, attributes)
                self._drafts[action.stream] = span, self._stats.drafted
        self._seen = replace(self._stats)

    def draft_placed(self, stream: int, replica_id: str) -> None:
        if draft := self._drafts.get(stream):
            draft[0].set_attribute("llm42.replica", replica_id)
            draft[0].add_event("placed")

    def draft_ended(self, stream: int, why: str) -> None:
        if draft := self._drafts.pop(stream, None):
            span, before = draft
            span.set_attributes({"llm42.tokens": self._stats.drafted - before, "llm42.end": why})
            span.end()

    @contextmanager
    def verifying(self, verify: Verify) -> Iterator[str | None]:
        asked = _asked(self._request_id, verify.question)
        span = self._tracer.start_span("verify", self._within, SpanKind.CLIENT, asked)
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(span, Context()))
        self._verify, self._tries = span, 1  # a session has one replay at a time
        with _ending(span):
            try:
                yield carrier.get(PARENT)  # none where OpenTelemetry is switched off
            finally:
                span.set_attribute("llm42.tries", self._tries)
                self._verify = None

    def retried(self, error: Exception) -> None:
        if self._verify is not None:
            self._tries += 1
            self._verify.add_event("retry", {"llm42.error": type(error).__name__})

    def replied(self, reply: ReplayReply) -> None:
        if self._verify is not None:
            attributes: dict[str, str | int] = {"llm42.replica": reply.replica_id, "llm42.idle_rows": reply.idle_rows}
            self._verify.set_attributes(attributes)

    def ended(self, outcome: str) -> None:
        for stream in list(self._drafts):
            self.draft_ended(stream, "the request ended")
        counts = {f"llm42.{name}": count for name, count in asdict(self._stats).items()}
        self._span.set_attributes({"llm42.outcome": outcome, **counts})
        if outcome not in ("finished", "stopped"):
            self._span.set_status(Status(StatusCode.ERROR, outcome))
        self._span.end()


def _asked(request_id: str, question: Question) -> dict[str, str | int]:
    return {
        "llm42.request_id": request_id,
        "llm42.start": question.start,
        "llm42.candidates": question.count - question.given - 1,
    }


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    """Ends ``span``. Of what fails it has the kind alone: a message may quote the request."""
    try:
        yield
    except Exception as error:
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        raise
    finally:
        span.end()
