"""The router's side of a pool whose verifiers change under it: no answer mixes two fingerprints, and none waits for
what will not come back."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from llm42.config import Timeouts
from llm42.internals.pinned_router import PinnedRouter
from llm42.protocol import Question, ReplayReply, ReplayRequest, Scores, pack_tokens
from llm42.protocol.errors import FingerprintMismatch, ReplayImpossible, VerifierBusy
from llm42.router import verifiers
from llm42.router.verifiers import Pin, Unverifiable, VerifierPool

TIMEOUTS = Timeouts(replay_s=1, verify_s=3, control_s=0.3)
QUESTION = ReplayRequest("r", Question(pack_tokens([1, 2, 3]), 2))


class Metrics:
    def __init__(self) -> None:
        self.failovers: list[tuple[str, Exception]] = []

    def failover(self, request_id: str, error: Exception) -> None:
        self.failovers.append((request_id, error))

    def replayed(self, seconds: float) -> None: ...

    def crashed(self, name: str, error: BaseException) -> None:
        pytest.fail(f"{name}: {error!r}")


class Verifiers:
    """Stands in for a Serve handle: ``replicas`` maps ids to fingerprints, asked in turn unless told otherwise."""

    def __init__(self, **replicas: str) -> None:
        self.replicas = replicas
        self.honest = True
        self.late: list[ReplayReply] = []
        self.asked: list[tuple[str, str | None]] = []
        self.described = 0
        self.replay = SimpleNamespace(remote=self._replay)
        self.describe = SimpleNamespace(remote=self._describe)

    async def _replay(self, request: ReplayRequest, *, replica_id: str | None, avoid: Collection[str]) -> ReplayReply:
        await asyncio.sleep(0)
        candidates = [id for id in self.replicas if id not in avoid] or list(self.replicas)
        if not candidates:
            raise RayServeException("nobody is there")
        chosen = replica_id if replica_id in self.replicas else candidates[len(self.asked) % len(candidates)]
        self.asked.append((chosen, request.fingerprint))
        if self.late:
            return self.late.pop()
        found = self.replicas[chosen]
        if self.honest and request.fingerprint not in (None, found):
            raise FingerprintMismatch(f"asked for {request.fingerprint}, this is {found}", chosen, found)
        return ReplayReply(found, request.question.digest, Scores([4], b"\0" * 4, [1]), 0, chosen)

    async def _describe(self) -> dict[str, Any]:
        self.described += 1
        await asyncio.sleep(0.01)
        if not self.replicas:
            raise RayServeException("nobody is there")
        return {"fingerprint": next(iter(self.replicas.values()))}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "_BACKOFF_S", (0.01, 0.02))
    monkeypatch.setattr(verifiers, "GONE_S", 0.3)


def pool(handle: Verifiers) -> VerifierPool:
    return VerifierPool(handle, TIMEOUTS, Metrics())  # type: ignore[arg-type]


async def ask(router: VerifierPool, pin: Pin, prefer: str | None = None) -> ReplayReply:
    return await router.replay(QUESTION, prefer, pin)


async def test_the_first_reply_settles_the_pin_of_its_request_alone() -> None:
    handle = Verifiers(a="F")
    router, pin, other = pool(handle), Pin(), Pin()
    await ask(router, pin)
    handle.replicas = {"b": "G"}
    assert (await ask(router, other)).fingerprint == "G", "a router outlives its pool"
    assert (pin.fingerprint, other.fingerprint) == ("F", "G")


async def test_a_reply_that_is_no_answer_settles_nothing() -> None:
    """The only verifier answers an earlier question first; its fingerprint is nothing to build on."""
    handle, pin = Verifiers(a="F"), Pin()
    stale = ReplayReply("E", replace(QUESTION.question, start=1).digest, Scores([4], b"\0" * 4, [1]), 0, "a")
    handle.late = [stale]
    assert (await pool(handle).replay(QUESTION, None, pin)).fingerprint == "F"
    assert (pin.fingerprint, handle.late, len(handle.asked)) == ("F", [], 2)


@pytest.mark.parametrize("honest", [True, False])
async def test_sessions_that_share_a_pin_never_mix(honest: bool) -> None:
    """Both calls leave before anybody knows who answers first. Verifiers that do not check are found out."""
    handle = Verifiers(a="F", b="G")
    handle.honest = honest
    router, pin = pool(handle), Pin()
    replies = await asyncio.gather(*(ask(router, pin) for _ in range(6)))
    assert {reply.fingerprint for reply in replies} == {pin.fingerprint}
    assert {asked for asked, _ in handle.asked} == {"a", "b"}, "negative control: both were met"


async def test_an_expected_fingerprint_is_asked_for_from_the_start() -> None:
    handle = Verifiers(a="F", b="G")
    router = pool(handle)
    for _ in range(8):
        assert (await ask(router, Pin("G"))).fingerprint == "G"
    assert {fingerprint for _, fingerprint in handle.asked} == {"G"}
    assert [asked for asked, _ in handle.asked].count("a") <= 1, "who is known to be of another pool is avoided"


async def test_a_pool_that_has_gone_is_given_up_soon_and_clearly() -> None:
    handle = Verifiers(a="F")
    router, pin = pool(handle), Pin()
    await ask(router, pin)
    handle.replicas = {"b": "G", "c": "G"}
    began = time.monotonic()
    with pytest.raises(Unverifiable, match="the verifiers have changed, none computes as F any more"):
        await ask(router, pin, prefer="a")
    assert 0.3 < time.monotonic() - began < 1.5, "neither at the first mismatch, nor only after verify_s"
    assert pin.fingerprint == "F"


async def test_a_pool_with_one_verifier_left_is_not_given_up() -> None:
    handle = Verifiers(a="F")
    router, pin = pool(handle), Pin()
    await ask(router, pin)
    handle.replicas = {f"new{i}": "G" for i in range(9)} | {"old": "F"}
    assert (await ask(router, pin)).replica_id == "old"


async def test_a_verifier_that_is_busy_may_still_answer() -> None:
    """What is not a mismatch says that somebody else is left."""
    handle = Verifiers(b="G")
    honest, turns = handle._replay, 0

    async def busy(request: ReplayRequest, **kwargs: Any) -> ReplayReply:
        nonlocal turns
        turns += 1
        if turns % 3 == 0:
            raise VerifierBusy("full")
        if turns > 50:
            handle.replicas = {"a": "F"}
        return await honest(request, **kwargs)

    handle.replay.remote = busy
    assert (await ask(pool(handle), Pin("F"))).fingerprint == "F"


async def test_a_description_is_shared_and_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Verifiers(a="F")
    router = pool(handle)
    found = await asyncio.gather(*(router.describe() for _ in range(5)))
    assert found == [{"fingerprint": "F"}] * 5
    await router.describe()
    assert handle.described == 1
    monkeypatch.setattr(verifiers, "DESCRIBED_S", 0.0)
    handle.replicas = {"b": "G"}
    assert await router.describe() == {"fingerprint": "G"}


async def test_no_description_is_unverifiable_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "DESCRIBED_S", 0.0)
    handle = Verifiers()
    router = pool(handle)
    for _ in range(2):
        with pytest.raises(Unverifiable, match="nobody is there"):
            await router.describe()
    handle.replicas = {"a": "F"}
    assert await router.describe() == {"fingerprint": "F"}


async def test_one_caller_that_leaves_does_not_take_the_description_with_it() -> None:
    router = pool(Verifiers(a="F"))
    leaving, staying = (asyncio.create_task(router.describe()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == {"fingerprint": "F"}


@pytest.mark.parametrize(
    ("kwargs", "possible"),
    [
        ({"avoid": ["a", "b"]}, {"c"}),
        ({"avoid": ["a", "b", "c"]}, {"a", "b", "c"}),
        ({"avoid": []}, {"a", "b", "c"}),
        ({"avoid": ["a"], "replica_id": "a"}, {"a"}),
        ({"avoid": ["a", "b"], "replica_id": "gone"}, {"c"}),
    ],
)
async def test_where_serve_is_told_to_send_a_call(kwargs: dict[str, Any], possible: set[str]) -> None:
    replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=id)) for id in "abc"]
    router = PinnedRouter.__new__(PinnedRouter)
    chosen = set()
    for _ in range(40):
        pending = SimpleNamespace(kwargs=kwargs, routing_context=SimpleNamespace(should_backoff=False))
        [ranked] = await router.choose_replicas(replicas, pending)  # type: ignore[arg-type]
        chosen |= {replica.replica_id.unique_id for replica in ranked}
    assert chosen == possible


class Broken(Verifiers):
    """``blind`` ones find no token to choose."""

    def __init__(self, blind: set[str], **replicas: str) -> None:
        super().__init__(**replicas)
        self.blind, self.condemned = blind, asyncio.Queue[tuple[str, str]]()
        self.unwilling = 0
        self.condemn = SimpleNamespace(remote=self._condemn)

    async def _replay(self, request: ReplayRequest, *, replica_id: str | None, avoid: Collection[str]) -> ReplayReply:
        reply = await super()._replay(request, replica_id=replica_id, avoid=avoid)
        if reply.replica_id in self.blind:
            raise ReplayImpossible("no token to choose", reply.replica_id, reply.fingerprint)
        return reply

    async def _condemn(self, reason: str, *, replica_id: str) -> bool:
        if self.unwilling:
            self.unwilling -= 1
            raise TimeoutError
        self.condemned.put_nowait((replica_id, reason))
        return True


async def test_a_verifier_that_finds_no_token_where_another_does_is_condemned() -> None:
    handle = Broken({"a"}, a="F", b="F")
    handle.unwilling = 3
    reply = await pool(handle).replay(QUESTION, "a", Pin())
    assert reply.replica_id == "b"
    async with asyncio.timeout(5):
        replica_id, reason = await handle.condemned.get()
    assert replica_id == "a"
    assert "no token to choose; b found one" in reason


async def test_what_another_pool_finds_contradicts_nobody() -> None:
    """Two functions: what is too large for the one may be small enough for the other."""
    handle = Broken({"a"}, a="F", b="G")
    reply = await pool(handle).replay(QUESTION, "a", Pin())
    assert reply.replica_id == "b"
    await asyncio.sleep(0.05)
    assert handle.condemned.empty()


@pytest.mark.parametrize("replicas", [{"a": "F"}, {"a": "F", "b": "F", "c": "F"}])
async def test_where_two_find_none_there_is_none(replicas: dict[str, str]) -> None:
    """The only verifier may be asked twice."""
    handle = Broken(set(replicas), **replicas)
    with pytest.raises(ReplayImpossible, match="no token to choose"):
        await ask(pool(handle), Pin())
    assert len(handle.asked) == 2
    assert len({asked for asked, _ in handle.asked}) == min(2, len(replicas))
    assert handle.condemned.empty()


async def test_who_is_of_another_pool_is_asked_once() -> None:
    """Even where it takes requests without a pin, as any verifier does, and so looks like one of ours again."""
    handle = Verifiers(a="F", b="G")
    handle.honest = False
    router = pool(handle)
    for _ in range(4):
        handle.asked.clear()
        await asyncio.gather(*(ask(router, Pin("F")) for _ in range(3)), *(ask(router, Pin()) for _ in range(3)))
        assert sum(asked == "b" and pin == "F" for asked, pin in handle.asked) <= 3
