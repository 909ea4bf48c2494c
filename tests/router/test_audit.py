"""The continuous audit: what a second replay must confirm, and what happens when it does not."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from llm42.config import Timeouts
from llm42.protocol import Commit, ReplayReply, ReplayRequest, Scores, Selection
from llm42.protocol.errors import ReplayImpossible, VerifierBusy
from llm42.router.audit import MAX_AT_ONCE, Auditor
from llm42.router.background import Background
from llm42.router.transcript import Transcript
from llm42.router.verifiers import VerifierPool

PROMPT, TOKENS = [1, 2, 3], [10, 11, 12, 13]
BITS = np.asarray([-0.5, -0.25, -1, -2], dtype=np.float32).tobytes()


@dataclass
class Heard:
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    uncondemned_: list[str] = field(default_factory=list)

    def audited(self, outcome: str, reason: str = "") -> None:
        self.outcomes.append((outcome, reason))

    def crashed(self, name: str, error: BaseException) -> None:
        pytest.fail(f"{name}: {error!r}")

    def uncondemned(self, replica_id: str, reason: str) -> None:
        self.uncondemned_.append(replica_id)

    def failover(self, request_id: str, error: Exception) -> None: ...
    def replayed(self, seconds: float) -> None: ...


class Method:
    def __init__(self, answer: Any) -> None:
        self.remote = answer


class Handle:
    """A verifier pool that answers ``tokens`` and ``bits``, as replica ``b``."""

    def __init__(self, tokens: list[int] = TOKENS, bits: bytes = BITS, busy: bool = False, blind: bool = False) -> None:
        self.tokens, self.bits, self.busy, self.blind = tokens, bits, busy, blind
        self.asked: list[tuple[ReplayRequest, list[str]]] = []
        self.condemned: list[str] = []
        self.replay, self.condemn = Method(self._replay), Method(self._condemn)
        self.turn = asyncio.Event()
        self.turn.set()

    def _replay(self, request: ReplayRequest, *, replica_id: str | None, avoid: list[str]) -> Awaitable[ReplayReply]:
        async def answer() -> ReplayReply:
            self.asked.append((request, avoid))
            await self.turn.wait()
            if self.busy:
                raise VerifierBusy("full")
            if self.blind:
                raise ReplayImpossible("no token to choose", "b")
            scores = Scores(self.tokens, self.bits, [1] * len(self.tokens))
            return ReplayReply("f", request.question.digest, scores, 0, "b")

        return answer()

    def _condemn(self, reason: str, *, replica_id: str) -> Awaitable[None]:
        async def answer() -> None:
            self.condemned.append(replica_id)
            if replica_id == "gone":
                raise TimeoutError

        return answer()


def transcript() -> Transcript:
    made = Transcript("r", PROMPT, Selection(0.8, seed=5), 8)
    for index, token in enumerate(TOKENS):
        made.add(Commit(Scores([token], BITS[4 * index : 4 * index + 4], [1])))
    return made


def auditor(handle: Handle, share: float = 1) -> tuple[Auditor, Heard, Background]:
    heard: Any = Heard()
    background = Background(lambda name, error: pytest.fail(f"{name}: {error!r}"))
    pool = VerifierPool(handle, Timeouts(replay_s=0.2, verify_s=0.2, control_s=0.2), heard)
    return Auditor(pool, share, background, heard), heard, background


async def outcome(handle: Handle, verifiers: set[str] | None = None) -> Heard:
    one, heard, background = auditor(handle)
    one.submit(transcript(), {"a"} if verifiers is None else verifiers, "f")
    async with asyncio.timeout(5):
        while len(background) or len(one._verifiers._background):  # noqa: ASYNC110 - tasks have no common event
            await asyncio.sleep(0.01)
    return heard


async def test_a_true_answer_is_confirmed_from_scratch_by_another_verifier() -> None:
    handle = Handle()
    assert (await outcome(handle)).outcomes == [("confirmed", "")]
    ((request, avoid),) = handle.asked
    assert avoid == ["a"]
    assert (request.fresh, request.question.start, request.fingerprint) == (True, len(PROMPT) - 1, "f")
    assert request.question.selection == Selection(0.8, seed=5)
    assert np.frombuffer(request.question.tokens, dtype=np.int32).tolist() == [*PROMPT, *TOKENS[:-1]]
    assert handle.condemned == []


@pytest.mark.parametrize("index", range(len(TOKENS)))
async def test_one_wrong_token_or_bit_condemns_all_who_took_part(index: int) -> None:
    bits = bytearray(BITS)
    bits[4 * index] ^= 1
    other = [*TOKENS[:index], 99, *TOKENS[index + 1 :]]
    for handle in (Handle(bits=bytes(bits)), Handle(tokens=other)):
        ((said, reason),) = (await outcome(handle)).outcomes
        assert said == "mismatch"
        assert f"position {len(PROMPT) + index} had token {TOKENS[index]}" in reason
        assert handle.condemned == ["a", "b"]


async def test_a_verifier_that_cannot_be_told_is_reported() -> None:
    heard = await outcome(Handle(tokens=[0, 0, 0, 0]), {"gone"})
    assert heard.uncondemned_ == ["gone"]


async def test_an_answer_for_which_there_is_no_token_any_more_is_a_mismatch() -> None:
    handle = Handle(blind=True)
    ((said, reason),) = (await outcome(handle)).outcomes
    assert (said, "no token to choose" in reason) == ("mismatch", True)
    assert handle.condemned == ["a", "b"]


async def test_no_answer_is_no_confirmation() -> None:
    ((said, reason),) = (await outcome(Handle(busy=True))).outcomes
    assert (said, "full" in reason) == ("unanswered", True)


async def test_audits_are_few_at_a_time() -> None:
    handle = Handle()
    handle.turn.clear()
    one, heard, background = auditor(handle)
    for _ in range(MAX_AT_ONCE + 3):
        one.submit(transcript(), {"a"}, "f")
    assert heard.outcomes == [("skipped", "")] * 3
    await background.close(1)


def test_the_share() -> None:
    async def picked(share: float) -> int:
        one, _, _ = auditor(Handle(), share)
        return sum(one.picks() for _ in range(2000))

    assert asyncio.run(picked(0)) == 0
    assert asyncio.run(picked(1)) == 2000
    assert 100 < asyncio.run(picked(0.1)) < 300
