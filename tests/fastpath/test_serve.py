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
from tests.fastpath.app import Job, Result

CALL_S = 60.0
REPLACED_S = 90.0


class App:
    """The ingress, called from the test."""

    def __init__(self, handle: Any, url: str) -> None:
        self.handle = handle
        self.url = url

    async def call(self, method: str, *args: Any) -> Any:
        async with asyncio.timeout(CALL_S):
            return await self.handle.options(method_name=method).remote(*args)

    async def run(self, *jobs: Job) -> list[Result]:
        results: list[Result] = await self.call("run", list(jobs))
        return results

    async def until(self, holds: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while not await holds():
                await asyncio.sleep(0.2)

    async def until_replicas(self, count: int, but: str | None = None) -> list[str]:
        async def there() -> bool:
            replicas, _, failure = await self.call("state")
            assert failure is None
            return len(replicas) == count and but not in replicas

        await self.until(there, REPLACED_S)
        return (await self.call("state"))[0]

    async def until_engines_idle(self, timeout_s: float) -> None:
        async def idle() -> bool:
            return (await self.call("in_engines")) == 0

        await self.until(idle, timeout_s)


@pytest.fixture(scope="module")
def app(http_port: int, config: Config) -> Iterator[App]:
    from ray import serve

    from tests.fastpath.app import build

    handle = serve.run(build(config, fast_paths=2), name="fastpath-test", route_prefix="/test")
    yield App(handle, f"http://127.0.0.1:{http_port}/test")
    serve.delete("fastpath-test")


@pytest.fixture(autouse=True)
async def clean(app: App) -> AsyncIterator[None]:
    """Every test begins with both replicas, and leaves nothing in flight anywhere."""
    await app.until_replicas(2)
    yield
    assert (await app.call("state"))[1] == 0
    await app.until_engines_idle(10)


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
    began = time.monotonic()
    aborted, finished = await app.run(
        Job("long", seed=1, max_tokens=450, abort_after=3), Job("short", seed=2, max_tokens=30)
    )
    assert aborted.finish is None
    assert aborted.late == 0
    assert 3 <= len(aborted.tokens) < 100
    assert not aborted.lost
    assert (len(finished.tokens), finished.finish) == (30, "length")
    assert await app.call("in_engines") == 0
    assert time.monotonic() - began < 10


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
    await app.until(lambda: _in_engines(app, 8), 20)
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


async def test_killed_router_frees_the_engines(app: App) -> None:
    running = asyncio.create_task(app.run(Job("orphan", max_tokens=480), Job("orphan-2", max_tokens=480)))
    await app.until(lambda: _in_engines(app, 2), 20)
    os.kill(await app.call("pid"), signal.SIGKILL)
    with pytest.raises(Exception, match="died|unavailable|Died"):
        await running
    began = time.monotonic()
    await app.until_engines_idle(30)
    print(f"engines idle after {time.monotonic() - began:.1f} s")


async def _in_engines(app: App, count: int) -> bool:
    return bool(await app.call("in_engines") >= count)
