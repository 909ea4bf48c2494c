"""The faults: each a name, a sentence, what it does to the running system, and which failures are its right."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.cases import CASES
from tests.faults.orders import Kind, Order
from tests.faults.system import REPLAY_S, Args, System, arguments
from tests.faults.traffic import Outcome, Traffic

MIB = 1 << 20
REQUESTS = 14
"""Deterministic requests that are served under a fault that lasts."""
UNDER_WAY = 4

LOST_ENGINE = "the engine was lost"
UNVERIFIABLE = "could not be verified: no verifier answered within"
BROKEN = "RemoteProtocolError|ReadError|APIConnectionError|the answer has no end|500"
BUSY = "^503"


@dataclass
class Scene:
    """What a fault acts on, and where it leaves further figures."""

    system: System
    traffic: Traffic
    notes: dict[str, float]


@dataclass(frozen=True)
class Fault:
    """``inject`` returns how often it struck, once the system is whole again.

    ``failures`` and ``ordinary_failures`` are patterns of the errors that deterministic and ordinary requests may end
    in; any other is a finding. ``args`` is what must be deployed before.
    """

    name: str
    description: str
    inject: Callable[[Scene], Awaitable[int]]
    failures: str | None = None
    ordinary_failures: str | None = None
    args: Callable[[System], Args] | None = None
    streams: int = 10


# -- death -------------------------------------------------------------------------------------------


def _kill(*parts: str) -> Callable[[Scene], Awaitable[int]]:
    async def inject(scene: Scene) -> int:
        await scene.traffic.under_way(UNDER_WAY)
        gone = scene.system.kill(*parts)
        await scene.system.until_whole(*gone)
        return len(gone)

    return inject


async def _kill_all_verifiers(scene: Scene) -> int:
    await scene.traffic.under_way(UNDER_WAY)
    gone = scene.system.kill_all("Verifier")
    await scene.system.until_whole(*gone)
    return len(gone)


async def _kill_all_fast_paths(scene: Scene) -> int:
    await scene.traffic.under_way(UNDER_WAY)
    gone = scene.system.kill_all("FastPath")
    await scene.system.until_whole(*gone)
    return len(gone)


async def _kill_router(scene: Scene) -> int:
    """Nobody but its own clients may notice: who was with the other one finishes."""
    scene.system.apply(scene.system.args, Router=2)
    await scene.system.until_whole()
    await scene.traffic.finished(REQUESTS)
    await scene.traffic.under_way(UNDER_WAY)
    witnesses = scene.traffic.in_flight
    gone = scene.system.kill("Router")
    killed = time.monotonic()
    await scene.system.until_whole(*gone)
    while any(outcome.ended is None for outcome in witnesses):  # noqa: ASYNC110 - fed by other tasks
        await asyncio.sleep(0.1)
    scene.notes["in flight when it died"] = len(witnesses)
    scene.notes["of which finished"] = sum(outcome.finished for outcome in witnesses)
    late = [o.error for o in scene.traffic.outcomes if o.ended is not None and o.error and o.began > killed + 5]
    assert not late, f"requests failed long after the router's death: {late}"
    assert scene.notes["of which finished"] > 0, "the other router's clients have noticed"
    scene.system.apply(scene.system.args)
    await scene.system.until_whole()
    return 1


# -- standing still ----------------------------------------------------------------------------------


def _stop(part: str, seconds: float) -> Callable[[Scene], Awaitable[int]]:
    async def inject(scene: Scene) -> int:
        await scene.traffic.under_way(UNDER_WAY)
        await scene.system.stop_for(part, seconds)
        await scene.traffic.finished(REQUESTS)
        return 1

    return inject


# -- verifiers that misbehave ------------------------------------------------------------------------


def _order(
    kind: Kind, seconds: float = 0.0, share: float = 1.0, requests: int = REQUESTS
) -> Callable[[Scene], Awaitable[int]]:
    async def inject(scene: Scene) -> int:
        await scene.traffic.under_way(UNDER_WAY)
        spoilt = await scene.system.misbehave(Order(kind, seconds, share), lambda: scene.traffic.finished(requests))
        assert spoilt > 0, "the fault was never met"
        return spoilt

    return inject


async def _all_fail(scene: Scene) -> int:
    """For longer than any request waits."""
    await scene.traffic.under_way(UNDER_WAY)
    seconds = scene.system.args["timeouts"]["verify_s"] + 10
    return await scene.system.misbehave(Order("digest"), lambda: asyncio.sleep(seconds), all_of_them=True)


# -- want of memory ----------------------------------------------------------------------------------


def _tight(system: System) -> Args:
    """Room for little more than one sequence of full length, in both pools."""
    return arguments(
        system.orders,
        fast_path__engine={"kv_cache_memory_bytes": 3 * MIB // 2, "block_size": 32},
        verifier__engine={"kv_cache_memory_bytes": 9 * MIB // 8},
    )


async def _few_pages(scene: Scene) -> int:
    """Counts how often replays were seen to wait for pages."""
    system = scene.system
    waiting = sum(1 for count in await system.watch("Verifier", "waiting", 15) if count)
    scene.notes["pages of a verifier"] = (await system.cluster.each("Verifier", "describe"))[0]["pages"]
    assert waiting > 0, "no replay has waited for pages"
    await scene.traffic.finished(REQUESTS)
    return waiting


async def _preemption(scene: Scene) -> int:
    before = sum(await scene.system.cluster.each("FastPath", "preemptions"))
    await scene.traffic.finished(2 * REQUESTS)
    preempted = sum(await scene.system.cluster.each("FastPath", "preemptions")) - before
    assert preempted > 0, "the fast path has not preempted anything"
    return int(preempted)


# -- change ------------------------------------------------------------------------------------------


def _scale(count: int) -> Callable[[Scene], Awaitable[int]]:
    async def inject(scene: Scene) -> int:
        await scene.traffic.under_way(UNDER_WAY)
        scene.system.apply(scene.system.args, FastPath=count, Verifier=count)
        await scene.system.until_whole()
        await scene.traffic.finished(REQUESTS)
        return 2

    return inject


def _redeploy(args: Callable[[System], Args]) -> Callable[[Scene], Awaitable[int]]:
    async def inject(scene: Scene) -> int:
        await scene.traffic.under_way(UNDER_WAY)
        gone = [pid for part in scene.system.replicas for pid in scene.system.cluster.pids(part)]
        scene.system.apply(args(scene.system))
        await scene.system.until_whole(*gone)
        await scene.traffic.finished(REQUESTS)
        return 1

    return inject


def _narrow(system: System) -> Args:
    return arguments(system.orders, window_size=16)


# -- too much ----------------------------------------------------------------------------------------


async def _overload(scene: Scene) -> int:
    """Some are refused, and told when to come back; the others are served as if nothing were."""
    system, traffic = scene.system, scene.traffic
    limit = system.args["router"]["max_requests"]
    short = next(case for case in CASES if case.max_tokens == 20)
    await traffic.under_way(UNDER_WAY)
    before = await _ordinary_seconds(traffic, short.name)
    crowd = [asyncio.create_task(traffic.ask(CASES[number % len(CASES)])) for number in range(6 * limit)]
    states = asyncio.create_task(system.watch("Router", "in_flight", 10))
    during = await _ordinary_seconds(traffic, short.name)
    outcomes: list[Outcome] = await asyncio.gather(*crowd)
    refused = [outcome for outcome in outcomes if outcome.status in (429, 503)]
    assert refused, "nobody was refused"
    assert all(outcome.retry_after is not None for outcome in refused), "refused without a Retry-After"
    held = max(state["sessions"] for state in await states)
    assert held <= limit, f"a router held {held} requests, its limit is {limit}"
    scene.notes |= {
        "most requests in a router": held,
        "its limit": limit,
        "ordinary request, s, before": before,
        "ordinary request, s, during": during,
    }
    return len(refused)


async def _ordinary_seconds(traffic: Traffic, name: str) -> float:
    """Median time of an ordinary request that is served; those that are refused ask again."""
    case = next(case for case in CASES if case.name == name)
    seconds: list[float] = []
    while len(seconds) < 5:
        outcome = await traffic.ask(case, deterministic=False)
        if outcome.finished:
            seconds.append(outcome.seconds)
        else:
            await asyncio.sleep(0.2)
    return sorted(seconds)[2]


_WRONG = "answers with wrong tokens and {}"

FAULTS: tuple[Fault, ...] = (
    Fault("kill-verifier", "kill -9 of a verifier", _kill("Verifier")),
    Fault("kill-verifiers", "kill -9 of both verifiers", _kill_all_verifiers, UNVERIFIABLE),
    Fault("kill-fast-path", "kill -9 of a fast path", _kill("FastPath"), ordinary_failures=LOST_ENGINE),
    Fault("kill-fast-paths", "kill -9 of both fast paths", _kill_all_fast_paths, ordinary_failures=LOST_ENGINE),
    Fault(
        "kill-both",
        "kill -9 of a verifier and a fast path at once",
        _kill("Verifier", "FastPath"),
        ordinary_failures=LOST_ENGINE,
    ),
    Fault(
        "stop-verifier",
        "a verifier stopped (SIGSTOP) for longer than the replay timeout, then resumed: its answers are late",
        _stop("Verifier", REPLAY_S + 6),
    ),
    Fault(
        "stop-fast-path",
        "a fast path stopped (SIGSTOP) for longer than the draft timeout, then resumed",
        _stop("FastPath", 14),
        ordinary_failures=LOST_ENGINE,
    ),
    Fault("slow-verifier", "a verifier that takes 1.5 s longer for each replay", _order("delay", 1.5)),
    Fault("error", "a verifier that answers with an error", _order("error")),
    Fault("crash", "a verifier that raises what nobody foresaw", _order("crash")),
    Fault(
        "late",
        "a verifier that answers after the replay timeout, when another has been asked",
        _order("late", REPLAY_S + 2, 0.3),
    ),
    Fault("stale", "a verifier that answers with its reply to an earlier question", _order("stale")),
    Fault("digest", f"a verifier that {_WRONG.format('the digest of another question')}", _order("digest")),
    Fault("tokens", f"a verifier that {_WRONG.format('one token too many')}", _order("tokens")),
    Fault("logprobs", f"a verifier that {_WRONG.format('a logprob too few')}", _order("logprobs")),
    Fault("ranks", f"a verifier that {_WRONG.format('no ranks')}", _order("ranks")),
    Fault("empty", "a verifier that answers with nothing", _order("empty")),
    Fault("foreign", f"a verifier that {_WRONG.format('the fingerprint of another pool')}", _order("foreign")),
    Fault("all-garbage", "no verifier answers rightly, for longer than a request waits", _all_fail, UNVERIFIABLE),
    Fault("overload", "six times as many requests as the router takes", _overload, BUSY, BUSY),
    Fault("kill-router", "kill -9 of one of two routers", _kill_router, BROKEN, BROKEN),
    Fault(
        "scale-down",
        "both pools scaled down from two replicas to one",
        _scale(1),
    ),
    Fault("scale-up", "both pools scaled up from one replica to two", _scale(2)),
    Fault(
        "redeploy",
        "redeploy with less KV memory in both pools: every replica is replaced, nobody notices",
        _redeploy(_tight),
    ),
    Fault(
        "few-pages", "window cache with fewer pages than the running replays need", _few_pages, args=_tight, streams=20
    ),
    Fault(
        "preemption",
        "fast path with less KV memory than its running sequences need",
        _preemption,
        args=_tight,
        streams=16,
    ),
    Fault(
        "new-fingerprint",
        "redeploy with another window_size: the pool's fingerprint changes",
        _redeploy(_narrow),
        "the verifiers have changed, none computes as .* any more",
        args=_tight,
    ),
)

LIE = Fault(
    "lie",
    "negative control: a verifier that lies in good form (wrong tokens, all else right)",
    _order("lie", requests=4),
)
"""Outside of the fault model: a verifier is trusted, and its audits and fingerprint are there to earn that."""
