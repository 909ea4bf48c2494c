"""OpenTelemetry spans of deterministic requests: who waited for what, and for how long. Off unless configured.

One request, as Jaeger and Tempo show it:

    request          in the router, from arrival to end; under the client's own span if it sent a ``traceparent``
    ├ draft          one for each stream of drafts, from its order to its end
    ├ verify         one for each replay, all tries together; what it commits is an event of it
    │ └ replay       in the verifier, one for each try that has arrived; an event tells when its first pass began
    └ rollback       a moment: drafts differ from the canonical tokens

Nothing of a prompt or an answer is in them: ids, counts, replicas. While they are off no span exists, and
OpenTelemetry is not even imported.
"""

from llm42.config import Traces
from llm42.tracing.off import RequestTrace, Tracing

__all__ = ["RequestTrace", "Tracing", "tracing_of"]


def tracing_of(settings: Traces, part: str, replica_id: str) -> Tracing:
    """For one process: ``part`` is what it does, ``replica_id`` which of them it is."""
    if settings.endpoint is None:
        return Tracing()
    from llm42.tracing.export import exporting
    from llm42.tracing.spans import SpanTracing

    return SpanTracing(exporting(settings, part, replica_id))
