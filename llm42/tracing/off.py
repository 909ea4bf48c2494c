"""What is told of a deterministic request on its way; here nobody listens. :mod:`llm42.tracing.spans` does."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from llm42.protocol import Action, ReplayReply, ReplayRequest, SessionStats, Verify

Began = Callable[[], None]

_NOBODY: AbstractContextManager[None] = nullcontext()


class RequestTrace:
    """Of one request in a router."""

    def acting(self, actions: Sequence[Action]) -> None:
        """The session asks for these."""

    def draft_placed(self, stream: int, replica_id: str) -> None:
        """Replica ``replica_id`` drafts stream ``stream``."""

    def draft_ended(self, stream: int, why: str) -> None:
        """By itself, or because it was lost."""

    def verifying(self, verify: Verify) -> AbstractContextManager[str | None]:
        """Around a replay, with all of its tries and its commit. Gives the ``traceparent`` to send with it."""
        return _NOBODY

    def retried(self, error: Exception) -> None:
        """A try of the replay that runs has failed, and there will be another."""

    def replied(self, reply: ReplayReply) -> None:
        """The replay has an answer, which the session has not heard of yet."""

    def ended(self, outcome: str) -> None:
        """The request has ended."""


_OFF = RequestTrace()


class Tracing:
    """Of one process, router or verifier."""

    def request(
        self,
        request_id: str,
        stats: SessionStats,
        headers: Mapping[str, str] | None,
        arrived: float,
    ) -> RequestTrace:
        """``headers`` are those of W3C's trace context as the client has sent them; ``arrived`` is a ``time.time``."""
        return _OFF

    def replay(self, request: ReplayRequest) -> AbstractContextManager[Began | None]:
        """Around the work of a verifier on ``request``. Gives what is to be called when its first pass begins."""
        return _NOBODY

    def close(self) -> None:
        """Send what has not been sent. May take seconds."""
