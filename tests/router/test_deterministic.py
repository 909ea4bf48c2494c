"""The driver of a session against adversarial pools: it commits the canonical tokens, or fails clearly."""

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason

from llm42.config import Timeouts
from llm42.fastpath.errors import NoReplica
from llm42.internals.draft_margins import name_margins, with_margins
from llm42.protocol import (
    Commit,
    Doubt,
    Finish,
    Haste,
    ReplayGrid,
    ReplayReply,
    ReplayRequest,
    Scores,
    Session,
    StopRules,
    VerifyCadence,
    unpack_tokens,
)
from llm42.protocol.errors import FingerprintMismatch, ReplayFailed, ReplayImpossible, ReplayRefused, VerifierBusy
from llm42.router import deterministic
from llm42.router.deterministic import DeterministicRequest
from llm42.router.verifiers import Pin, Unverifiable, VerifierPool
from llm42.tracing import RequestTrace
from tests.protocol.model import EOS, VOCABULARY, canonical_output, canonical_token, reply_to

PROMPT, STOP = [3, 1, 4, 1, 5], StopRules(max_tokens=30, eos_token_id=EOS)
TIMEOUTS = Timeouts(replay_s=0.3, verify_s=2.0, draft_s=0.2, control_s=0.2)
Draft = Callable[[list[int]], int]


class Metrics:
    def failover(self, request_id: str, error: Exception) -> None: ...
    def replayed(self, seconds: float) -> None: ...

    def crashed(self, name: str, error: BaseException) -> None:
        pytest.fail(f"{name}: {error!r}")


class Verifiers:
    """Stands in for a Serve handle. ``faults`` are raised, slept or answered before honest replies."""

    def __init__(self, *faults: Any) -> None:
        self.faults = list(faults)
        self.fingerprints: set[str | None] = set()
        self.hastes: list[Haste] = []
        self.calls: list[asyncio.Task[ReplayReply]] = []
        self.replay = self

    def remote(self, request: ReplayRequest, *, replica_id: str | None, avoid: object) -> Awaitable[ReplayReply]:
        call = asyncio.create_task(self._answer(request))
        self.calls.append(call)
        return call

    async def _answer(self, request: ReplayRequest) -> ReplayReply:
        self.fingerprints.add(request.fingerprint)
        self.hastes.append(request.haste)
        await asyncio.sleep(0)
        honest = reply_to(request.question)
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, float):
                await asyncio.sleep(fault)
            elif isinstance(fault, Exception):
                raise fault
            else:
                return fault(honest)  # type: ignore[no-any-return]
        return honest


class Hub:
    """Drafts with ``draft``, one token a step, until aborted; keeps talking after the abort if ``rude``. Those who ask
    for margins get ``margins`` with each step."""

    def __init__(self, draft: Draft | None, rude: bool = False, margins: Sequence[float] = ()) -> None:
        self.draft, self.rude, self.margins = draft, rude, array("f", margins).tobytes()
        self.asked_for_margins: list[bool] = []
        self.running: dict[str, asyncio.Task[None]] = {}

    async def submit(self, request: EngineCoreRequest, sink: Any, on_lost: Any, prefer: str | None = None) -> str:
        if self.draft is None:
            raise NoReplica("nobody")
        self.running[request.request_id] = asyncio.create_task(self._play(request, sink, on_lost))
        return "a"

    def abort(self, request_id: str) -> None:
        task = self.running.pop(request_id, None)
        if task is not None and not self.rude:
            task.cancel()

    async def _play(self, request: EngineCoreRequest, sink: Any, on_lost: Any) -> None:
        assert self.draft is not None
        tokens = list(request.prompt_token_ids or [])
        self.asked_for_margins.append(name_margins(request.sampling_params, "r"))
        for i in range(request.sampling_params.max_tokens):
            await asyncio.sleep(0)
            token = self.draft(tokens)
            if token < 0:
                self.running.pop(request.request_id, None)
                on_lost("died")
                return
            tokens.append(token)
            last = token == EOS or i + 1 == request.sampling_params.max_tokens
            output = EngineCoreOutput(request.request_id, [token], finish_reason=FinishReason.STOP if last else None)
            sink(with_margins(output, self.margins) if self.asked_for_margins[-1] else output)
            if last:
                break
        self.running.pop(request.request_id, None)


def driver(
    hub: Hub, verifiers: Verifiers, cadence: VerifyCadence | None = None, timeouts: Timeouts = TIMEOUTS
) -> tuple[DeterministicRequest, list[Commit]]:
    params = SamplingParams(temperature=0, max_tokens=STOP.max_tokens)
    request = EngineCoreRequest("r", PROMPT, None, params, None, 0.0, None, None, None)
    session = Session(PROMPT, STOP, cadence or VerifyCadence(ReplayGrid(4), 2), run_ahead=8)
    commits: list[Commit] = []
    pool = VerifierPool(verifiers, timeouts, Metrics())  # type: ignore[arg-type]
    parts: tuple[Any, ...] = (request, session, Pin(), hub, pool, timeouts, commits.append, RequestTrace())
    return DeterministicRequest(*parts), commits


async def outcome(
    hub: Hub, verifiers: Verifiers, cadence: VerifyCadence | None = None, timeouts: Timeouts = TIMEOUTS
) -> tuple[list[int], Finish | None]:
    runner, commits = driver(hub, verifiers, cadence, timeouts)
    async with asyncio.timeout(10):
        await runner.run()
    await asyncio.sleep(0)
    assert hub.rude or not hub.running, "a finished request leaves no draft behind"
    return [token for commit in commits for token in commit.scores.tokens], commits[-1].finish


def flaky(tokens: list[int]) -> int:
    return -1 if len(tokens) % 7 == 6 else canonical_token(tokens)


def digest_of_another(reply: ReplayReply) -> ReplayReply:
    return replace(reply, digest=b"x", scores=ones(reply))


def empty(reply: ReplayReply) -> ReplayReply:
    return replace(reply, scores=reply.scores[:0])


def longer(reply: ReplayReply) -> ReplayReply:
    scores = reply.scores
    return replace(reply, scores=Scores([*scores.tokens, 2], scores.logprobs + b"\0" * 4, [*scores.ranks, 1]))


def incomplete(reply: ReplayReply) -> ReplayReply:
    return replace(reply, scores=replace(ones(reply), logprobs=reply.scores.logprobs[:-1]))


def ones(reply: ReplayReply) -> Scores:
    return replace(reply.scores, tokens=[1] * len(reply.scores))


async def test_one_request_never_mixes_two_fingerprints() -> None:
    """A reply from another pool is dropped, and its verifier asked no more than the others."""

    def foreign(reply: ReplayReply) -> ReplayReply:
        return replace(reply, fingerprint="other", scores=ones(reply))

    verifiers = Verifiers(lambda reply: reply, foreign, foreign)
    assert (await outcome(Hub(canonical_token), verifiers))[0] == canonical_output(PROMPT, STOP)
    assert verifiers.fingerprints == {None, "f"}, "after the first answer, the pool's fingerprint is named"


async def test_verifiers_hear_who_waits() -> None:
    verifiers = Verifiers()
    await outcome(Hub(canonical_token), verifiers)
    assert verifiers.hastes[0] is Haste.URGENT
    assert Haste.DUE in verifiers.hastes
    again = Verifiers(lambda reply: reply, VerifierBusy("full"), ReplayFailed("gone"))
    await outcome(Hub(canonical_token), again)
    assert again.hastes[1] is again.hastes[2] is not Haste.URGENT
    assert again.hastes[3] is Haste.URGENT, "by then the draft has ended, or gone far ahead"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deterministic, "RETRY_DRAFT_S", 0.01)


@pytest.mark.parametrize("rude", [False, True])
@pytest.mark.parametrize(
    "draft",
    [canonical_token, lambda tokens: 3, lambda tokens: len(tokens) % VOCABULARY, flaky, None],
    ids=["right", "constant", "counting", "flaky", "nobody"],
)
async def test_drafter_independence(draft: Draft | None, rude: bool) -> None:
    expected = canonical_output(PROMPT, STOP)
    assert await outcome(Hub(draft, rude), Verifiers()) == (
        expected,
        Finish.STOP if expected[-1] == EOS else Finish.LENGTH,
    )


@pytest.mark.parametrize("margins", [[], [0.0], [math.nan], [-1.0], [1e38], [0.01, 0.0, 7.0]])
@pytest.mark.parametrize("draft", [canonical_token, lambda tokens: 3, lambda tokens: len(tokens) % VOCABULARY])
async def test_margins_decide_nothing_that_is_said(draft: Draft, margins: list[float]) -> None:
    hub = Hub(draft, margins=margins)
    said, _ = await outcome(hub, Verifiers(), VerifyCadence(ReplayGrid(16), None, Doubt(0.1)))
    assert said == canonical_output(PROMPT, STOP)
    assert all(hub.asked_for_margins)


async def test_margins_reach_the_session_that_asked() -> None:
    doubt = Doubt(1)
    await outcome(Hub(lambda tokens: 3, margins=[0.25]), Verifiers(), VerifyCadence(ReplayGrid(4), None, doubt))
    assert doubt.sigma == pytest.approx(0.25 / (math.sqrt(2 * math.pi) / 4))
    hub = Hub(canonical_token, margins=[0.25])
    await outcome(hub, Verifiers())
    assert not any(hub.asked_for_margins)


@pytest.mark.parametrize(
    "fault",
    [VerifierBusy("full"), ReplayFailed("x"), TimeoutError(), 0.5, digest_of_another, empty, longer, incomplete],
    ids=lambda fault: getattr(fault, "__name__", type(fault).__name__),
)
async def test_a_verifier_fault_is_tried_again(fault: Any) -> None:
    assert (await outcome(Hub(canonical_token), Verifiers(fault, fault)))[0] == canonical_output(PROMPT, STOP)


@pytest.mark.parametrize(
    ("faults", "error", "message"),
    [
        ([ReplayFailed("down")] * 99, Unverifiable, "no verifier answered within 2 s; the last try: .*down"),
        ([digest_of_another] * 99, Unverifiable, "answered another question"),
        ([9.0] * 99, Unverifiable, "no verifier answered"),
        ([lambda reply: reply] + [FingerprintMismatch("other")] * 99, Unverifiable, "FingerprintMismatch: other"),
        ([ReplayRefused("too long")], ReplayRefused, "too long"),
        ([ReplayImpossible("NaN")] * 2, ReplayImpossible, "NaN"),  # one that is contradicted says nothing
    ],
)
async def test_what_cannot_be_verified_fails_clearly(faults: list[Any], error: type[Exception], message: str) -> None:
    hub = Hub(canonical_token)
    runner, commits = driver(hub, Verifiers(*faults))
    with pytest.raises(ExceptionGroup) as caught:
        await runner.run()
    assert caught.group_contains(error, match=message)
    said = [token for commit in commits for token in commit.scores.tokens]
    assert said == canonical_output(PROMPT, STOP)[: len(said)], "nothing unverified was said before"
    assert not hub.running


class Silent(Hub):
    async def _play(self, *_: Any) -> None:
        await asyncio.sleep(60)


async def test_a_silent_drafter_is_given_up() -> None:
    assert (await outcome(Silent(canonical_token), Verifiers()))[0] == canonical_output(PROMPT, STOP)


class Slow(Hub):
    """A token in less than the time after which a drafter counts as silent; all of them take far more."""

    told = 0

    async def _play(self, request: EngineCoreRequest, sink: Any, on_lost: Any) -> None:
        for self.told, token in enumerate(canonical_output(PROMPT, STOP), start=1):
            await asyncio.sleep(0.2)
            sink(EngineCoreOutput(request.request_id, [token]))


async def test_a_slow_drafter_is_not_silent() -> None:
    hub, canonical = Slow(canonical_token), canonical_output(PROMPT, STOP)
    patient = TIMEOUTS.model_copy(update={"draft_s": 0.7})
    assert (await outcome(hub, Verifiers(), timeouts=patient))[0] == canonical
    assert len(canonical) >= 8, "else it would not have been given up either way"
    assert hub.told >= len(canonical) - 2, "the verifier would have gone on alone"


async def test_disconnect_stops_everything() -> None:
    hub, verifiers = Silent(canonical_token), Verifiers(5.0)
    runner, commits = driver(hub, verifiers)
    task = asyncio.create_task(runner.run())
    await asyncio.sleep(0.05)
    (draft,), (call,) = hub.running.values(), verifiers.calls
    assert not draft.done()
    assert not call.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert not hub.running
    assert draft.cancelled()
    assert call.cancelled()
    assert commits == []


async def test_negative_control_a_lying_verifier_would_be_believed() -> None:
    """The comparison above can fail: what the verifier says is what is committed."""

    def lie(reply: ReplayReply) -> ReplayReply:
        tokens = [(token + 1) % VOCABULARY for token in reply.scores.tokens]
        return replace(reply, scores=replace(reply.scores, tokens=tokens))

    said, _ = await outcome(Hub(canonical_token), Verifiers(lie))
    assert said != canonical_output(PROMPT, STOP)


def test_the_model_is_not_trivial() -> None:
    assert len(canonical_output(PROMPT, STOP)) > 8
    assert unpack_tokens(b"\1\0\0\0") == [1]
