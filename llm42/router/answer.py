"""What one deterministic HTTP answer has to say about itself, from the middleware to its sessions and back.

One HTTP request may hold several prompts, each with a session of its own; they share this object, and so one
verifier pool. It travels in a context variable: between the middleware and the sessions lies vLLM's frontend,
which has no place for it.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field

from llm42.router.transcript import Transcript
from llm42.router.verifiers import Pin


@dataclass(slots=True)
class Answer:
    """``pin`` names the fingerprint that all tokens of the answer come from, once the first reply has told it."""

    pin: Pin = field(default_factory=Pin)
    seed: int | None = None
    """What random choices are made from; None where all are greedy."""
    with_receipts: bool = False
    transcripts: dict[tuple[int, int], Transcript] = field(default_factory=dict)
    """By choice: the number of its prompt, and of its sample among ``n``. Only with receipts."""

    def statement(self, completion_tokens: int | None) -> dict[str, object]:
        """The ``determinism`` object of the response, or of a chunk that may know the tokens it ends with."""
        said: dict[str, object] = {"verified": True}
        if self.seed is not None:
            said["seed"] = self.seed
        if self.with_receipts and completion_tokens is not None:
            said["receipts"] = self._receipts(completion_tokens)
        return said

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


ANSWER: ContextVar[Answer | None] = ContextVar("llm42_answer", default=None)
"""Of the request at hand; None for an ordinary one."""
