"""The continuous audit: some finished answers are replayed again, and must come out the same.

All of an answer is replayed at once: from scratch, in other rows, among other neighbours, and by another verifier
where there is one. It costs no more than a second prefill of prompt and answer, and nobody waits for it.
"""

import random
from collections.abc import Iterator

import numpy as np

from llm42.logs import printable
from llm42.metrics import RouterMetrics
from llm42.protocol import ReplayReply
from llm42.protocol.errors import ReplayImpossible, ReplayRefused
from llm42.router.background import Background
from llm42.router.transcript import Transcript
from llm42.router.verifiers import Pin, Unverifiable, VerifierPool

MAX_AT_ONCE = 2
"""Audits of one router that run at a time; further ones are skipped, and counted as that."""


class Auditor:
    """``share`` of the deterministic requests is audited, 0 to 1."""

    def __init__(self, verifiers: VerifierPool, share: float, background: Background, metrics: RouterMetrics) -> None:
        self._verifiers = verifiers
        self._share = share
        self._background = background
        self._metrics = metrics
        self._running = 0

    def picks(self) -> bool:
        """Whether the next request shall be audited. At random: no pattern of traffic can evade it."""
        return random.random() < self._share

    def submit(self, transcript: Transcript, verifiers: set[str], fingerprint: str) -> None:
        """Audit a finished answer, in the background. ``verifiers`` are the replicas that it came from."""
        if self._running >= MAX_AT_ONCE:
            self._metrics.audited("skipped")
            return
        self._running += 1
        work = self._audit(transcript, verifiers, fingerprint)
        self._background.spawn(work, name=f"audit of {transcript.request_id}")

    async def _audit(self, transcript: Transcript, verifiers: set[str], fingerprint: str) -> None:
        try:
            question = transcript.question(fingerprint)
            reply = await self._verifiers.replay(question, None, Pin(fingerprint), verifiers)
        except (Unverifiable, ReplayRefused) as error:
            self._metrics.audited("unanswered", f"{printable(transcript.request_id)}: {error}")
            return
        except ReplayImpossible as none:  # it was answered, so there has been a token to choose
            difference, witness = str(none), none.replica_id
        else:
            found = next(_differences(transcript, reply), None)
            if found is None:
                self._metrics.audited("confirmed")
                return
            difference, witness = found, reply.replica_id
        finally:
            self._running -= 1
        suspects = sorted(verifiers | {witness} - {""})
        reason = (
            f"the audit of {printable(transcript.request_id)} failed: {difference}; verifiers {', '.join(suspects)}"
        )
        self._metrics.audited("mismatch", reason)
        # One of them computes wrongly, and nothing tells which: Serve replaces all, and start-up audits the new ones.
        self._verifiers.condemn(suspects, reason)


def _differences(transcript: Transcript, reply: ReplayReply) -> Iterator[str]:
    said = np.frombuffer(transcript.logprobs, dtype=np.uint32)
    replayed = np.frombuffer(reply.scores.logprobs, dtype=np.uint32)
    for index, (token, again) in enumerate(zip(transcript.tokens, reply.scores.tokens, strict=False)):
        if token != again or said[index] != replayed[index]:
            yield (
                f"position {len(transcript.prompt) + index} had token {token} with logprob 0x{said[index]:08x}, "
                f"replayed it is {again} with 0x{replayed[index]:08x}"
            )
    if len(reply.scores) < len(transcript.tokens):
        yield f"position {len(transcript.prompt) + len(reply.scores)} had a token, replayed there is none to choose"
