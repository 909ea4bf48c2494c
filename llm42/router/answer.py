"""What one deterministic HTTP answer has to say about itself, from the middleware to its sessions and back.

One HTTP request may hold several prompts, each with a session of its own; they share this object, and so one
verifier pool. It travels in a context variable: between the middleware and the sessions lies vLLM's frontend,
which has no place for it.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field

from llm42.protocol import SessionStats
from llm42.router.quota import Spend
from llm42.router.transcript import Transcript
from llm42.router.verifiers import Pin


@dataclass(slots=True)
class Answer:
    """``pin`` names the fingerprint that all tokens of the answer come from, once the first reply has told it."""

    pin: Pin = field(default_factory=Pin)
    seed: int | None = None
    """What random choices are made from; None where all are greedy."""
    prompts: dict[int, str] = field(default_factory=dict)
    """By its number, each prompt's digest: a chat template that uses the clock, say, makes another prompt."""
    singly: bool = False
    """Whether a token leaves at a time: what parses a stream must see the same pieces however commits fall."""
    with_receipts: bool = False
    transcripts: dict[tuple[int, int], Transcript] = field(default_factory=dict)
    """By choice: the number of its prompt, and of its sample among ``n``. Only with receipts."""
    with_stats: bool = False
    stats: list[SessionStats] = field(default_factory=list)
    """One for each choice; they grow until it ends."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """The client's, of W3C's trace context. vLLM drops them where its own tracing is off."""
    spend: Spend = field(default=lambda _: None, compare=False)
    """Charges tokens to the client's quota."""

    @property
    def tells_at_its_end(self) -> bool:
        """Whether it has something to say that is known when the last token has been sent, and not before."""
        return self.with_receipts or self.with_stats

    def statement(self, completion_tokens: int | None) -> dict[str, object]:
        """The ``determinism`` object of the response, or of a chunk that may know the tokens it ends with."""
        said: dict[str, object] = {"verified": True}
        if self.seed is not None:
            said["seed"] = self.seed
        if self.prompts:
            said["prompts"] = [digest for _, digest in sorted(self.prompts.items())]
        if self.with_receipts and completion_tokens is not None:
            said["receipts"] = self._receipts(completion_tokens)
        if self.with_stats and completion_tokens is not None:
            said["stats"] = self._stats()
        return said

    def _stats(self) -> dict[str, int]:
        """All choices together."""
        choices = [asdict(stats) for stats in self.stats]
        return {name: sum(choice[name] for choice in choices) for name in asdict(SessionStats())}

    def _receipts(self, completion_tokens: int) -> list[dict[str, object]]:
        fingerprint = self.pin.fingerprint
        assert fingerprint is not None
        transcripts = [transcript for _, transcript in sorted(self.transcripts.items())]
        # Several choices have no stop strings (see admission), so what they have committed is what they have sent.
        counts = [completion_tokens] if len(transcripts) == 1 else [len(one.tokens) for one in transcripts]
        return [
            transcript.receipt(fingerprint, count).model_dump()
            for transcript, count in zip(transcripts, counts, strict=True)
        ]


ANSWER: ContextVar[Answer | None] = ContextVar("llm42_answer")
"""Of the request at hand; None for an ordinary one. Where it is not set nobody has decided: no token may leave."""
