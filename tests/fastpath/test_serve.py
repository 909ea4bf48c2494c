"""Hub, pinned router and deployment in a real Serve application: two engines, one ingress."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from llm42.config import Config
from llm42.fastpath.errors import NoReplica, StreamEnded, UnknownStream, WrongReplica
from llm42.fastpath.messages import Hello
from tests.e2e.cluster import Cluster
from tests.fastpath.app import GRACE_S, POOL, Job, Result, ingress, pool
from tests.fastpath.conftest import CONTROL_S
from tests.fastpath.engine_requests import greedy, prompt

CALL_S = 60.0
REPLACED_S = 90.0


class App:
    """The ingress, called from the test."""

    def __init__(self, ingress: Any, fast_path: Any, url: str) -> None:
        self.ingress = ingress
        self.fast_path = fast_path
        self.url = url

    async def call(self, method: str, *args: Any) -> Any:
        async with asyncio.timeout(CALL_S):
            return await self.ingress.options(method_name=method).remote(*args)

    async def run(self, *jobs: Job) -> list[Result]:
        results: list[Result] = await self.call("run", list(jobs))
        return results

    async def direct(self, method: str, replica_id: str, stream_id: str, **arguments: Any) -> Any:
        """A pinned call past the hub."""
        async with asyncio.timeout(CALL_S):
            return await self.fast_path.options(method_name=method).remote(
                replica_id=replica_id, stream_id=stream_id, **arguments
            )

    def open_stream(self, replica_id: str, stream_id: str) -> Any:
        """A pinned stream past the hub."""
        return self.fast_path.options(method_name="stream", stream=True).remote(
            replica_id=replica_id, stream_id=stream_id
        )

    async def streams(self) -> int:
        """Open streams of all replicas."""
        infos = await self.fast_path.broadcast("describe").results_async(timeout_s=CALL_S)
        return sum(info.streams for info in infos)

    async def until(self, holds: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while not await holds():  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.2)

    async def until_replicas(self, count: int, but: str | None = None) -> list[str]:
        async def there() -> bool:
            replicas, _, failure = await self.call("state")
            assert failure is None
            return len(replicas) == count and but not in replicas

        await self.until(there, REPLACED_S)
        return (await self.call("state"))[0]

    async def in_engines(self) -> int:
        """Requests in all engines, by their own account."""
        infos = await self.fast_path.broadcast("describe").results_async(timeout_s=CALL_S)
        return sum(info.in_flight for info in infos)

    async def until_in_engines(self, count: int, timeout_s: float = 20.0) -> None:
        async def holds() -> bool:
            return await self.in_engines() == count

        await self.until(holds, timeout_s)


@pytest.fixture(scope="module")
def app(ray_and_serve: Cluster, config: Config) -> Iterator[App]:
    from ray import serve

    ray_and_serve.clear()
    serve.run(pool(config, replicas=2), name=POOL, route_prefix=None)
    handle = serve.run(ingress(config), name="fastpath-test", route_prefix="/test")
    fast_path = serve.get_deployment_handle("FastPath", POOL)
    yield App(handle, fast_path, f"{ray_and_serve.url}/test")
    serve.delete("fastpath-test")
    serve.delete(POOL)


@pytest.fixture(autouse=True)
async def clean(app: App) -> AsyncIterator[None]:
    """Every test begins with both replicas, and leaves nothing in flight anywhere."""
    await app.until_replicas(2)
    yield
    assert (await app.call("state"))[1] == 0
    if (await app.call("state"))[0]:
        await app.until_in_engines(0)


async def test_requests_spread_and_finish(app: App) -> None:
    results = await app.run(*(Job(f"r{i}", seed=i % 2, max_tokens=20) for i in range(8)))
    assert {(len(result.tokens), result.finish) for result in results} == {(20, "length")}
    assert not any(result.lost for result in results)
    replicas = [result.replica for result in results]
    assert sorted(replicas.count(replica) for replica in set(replicas)) == [4, 4]


async def test_preferred_replica(app: App) -> None:
    for replica in (await app.call("state"))[0]:
        results = await app.run(*(Job(f"r{i}", prefer=replica) for i in range(3)))
        assert {result.replica for result in results} == {replica}
    results = await app.run(*(Job(f"r{i}", prefer=replica) for i in range(12)))
    assert {result.replica for result in results} != {replica}  # not when it is much busier
    (gone,) = await app.run(Job("r", prefer="never heard of"))
    assert gone.finish == "length"


async def test_abort_stops_the_engine_and_the_sink(app: App) -> None:
    aborted, finished = await app.run(
        Job("long", seed=1, max_tokens=450, abort_after=3), Job("short", seed=2, max_tokens=30)
    )
    assert aborted.finish is None
    assert aborted.late == 0
    assert 3 <= len(aborted.tokens) < 100
    assert not aborted.lost
    assert (len(finished.tokens), finished.finish) == (30, "length")
    assert await app.in_engines() == 0


async def test_same_id_again_after_abort(app: App) -> None:
    (first,) = await app.run(Job("again", seed=3, max_tokens=450, abort_after=5))
    (second,) = await app.run(Job("again", seed=3, max_tokens=5))
    assert second.tokens == first.tokens[:5]
    assert second.finish == "length"


async def test_bad_request_fails_alone(app: App, config: Config) -> None:
    bad, good = await app.run(Job("bad", seed=-1), Job("good"))
    assert (bad.tokens, bad.finish, bad.lost) == ([], "error", [])
    assert good.finish == "length"


async def test_eight_siblings_of_one_http_request(app: App) -> None:
    async with httpx.AsyncClient(timeout=CALL_S) as client:
        answer = await client.get(app.url, params={"n": 8})
    assert [len(tokens) for tokens in answer.json()] == [16] * 8


async def test_concurrent_pinned_calls_need_a_context_of_their_own(app: App) -> None:
    """The trap that Background exists for. If the second line fails, Ray has mended it."""
    assert await app.call("pinned_siblings", 8, True, 10.0) == 8
    assert await app.call("pinned_siblings", 8, False, 3.0) < 8


async def test_pinned_calls_reach_their_replica(app: App) -> None:
    pids = await app.call("replica_pids")
    assert len(set(pids.values())) == 2
    assert await app.call("replica_pids") == pids


async def test_killed_replica_loses_only_its_own(app: App) -> None:
    pids = await app.call("replica_pids")
    victim = sorted(pids)[0]
    running = asyncio.create_task(app.run(*(Job(f"r{i}", seed=i, max_tokens=400) for i in range(8))))
    await app.until_in_engines(8)
    os.kill(pids[victim], signal.SIGKILL)
    results = await running
    on_victim = [result for result in results if result.replica == victim]
    others = [result for result in results if result.replica != victim]
    assert len(on_victim) == 4
    assert [len(result.lost) for result in on_victim] == [1] * 4
    assert {result.finish for result in on_victim} == {None}
    assert [(result.lost, len(result.tokens), result.finish) for result in others] == [([], 400, "length")] * 4

    (survivor,) = await app.run(Job("meanwhile"))
    assert survivor.finish == "length"
    replicas = await app.until_replicas(2, but=victim)
    results = await app.run(*(Job(f"after-{i}") for i in range(4)))
    assert {result.replica for result in results} == set(replicas)


async def test_silent_router_loses_its_stream(app: App) -> None:
    """One that reads but no longer renews is taken for dead, and its requests are aborted."""
    replica_id = (await app.call("state"))[0][0]
    stream = app.open_stream(replica_id, "mute")
    assert await anext(stream) == Hello(replica_id)
    await app.direct("submit", replica_id, "mute", requests=[greedy("r", prompt(1), 480)])

    async def read() -> None:
        async with asyncio.timeout(10 * CONTROL_S):
            async for _ in stream:
                pass

    with pytest.raises(StreamEnded, match="not renewed"):
        await read()
    assert await app.streams() == 2


async def test_cancelled_stream_takes_its_requests_along(app: App) -> None:
    replica_id = (await app.call("state"))[0][0]
    stream = app.open_stream(replica_id, "brief")
    assert isinstance(await anext(stream), Hello)
    await app.direct("submit", replica_id, "brief", requests=[greedy("r", prompt(1), 480)])
    while not await anext(stream):
        pass
    assert await app.in_engines() == 1
    stream.cancel()
    await app.until_in_engines(0, 2)  # it would run for longer
    with pytest.raises(UnknownStream):
        await app.direct("abort", replica_id, "brief", request_ids=["r"])


async def test_call_for_a_replica_that_is_gone(app: App) -> None:
    with pytest.raises(WrongReplica):
        await app.direct("abort", "gone", "any", request_ids=["r"])
    with pytest.raises(WrongReplica):
        await anext(app.open_stream("gone", "any"))


async def test_killed_router_leaves_nothing_behind(app: App) -> None:
    running = asyncio.create_task(app.run(Job("orphan", max_tokens=480), Job("orphan-2", max_tokens=480)))
    await app.until_in_engines(2)
    os.kill(await app.call("pid"), signal.SIGKILL)
    with pytest.raises(Exception, match=r"died|unavailable|Died"):
        await running
    await app.until_replicas(2)  # of the next router

    async def only_the_next() -> bool:
        return await app.streams() == 2

    await app.until(only_the_next, 10 * CONTROL_S)


async def test_zz_leaving_replicas_finish_what_they_have(app: App) -> None:
    """Last: none is left. They leave when their requests are done, not when Serve loses patience."""
    from ray import serve

    running = asyncio.create_task(app.run(*(Job(f"r{i}", seed=i, max_tokens=300) for i in range(4))))
    await app.until_in_engines(4)
    began = time.monotonic()
    deletion = asyncio.create_task(asyncio.to_thread(serve.delete, POOL))
    results = await running
    assert [(result.lost, len(result.tokens), result.finish) for result in results] == [([], 300, "length")] * 4
    assert len({result.replica for result in results}) == 2
    await deletion
    assert time.monotonic() - began < GRACE_S
    assert await app.call("state") == ([], 0, None)
    with pytest.raises(NoReplica):
        await app.run(Job("too late"))
