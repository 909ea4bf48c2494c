"""The order of things: which systems live when, and what is put on them. Servers are real, but hold no model."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from llm42.bench.cell import Measured, System
from llm42.bench.errors import BenchError
from llm42.bench.experiment import experiments
from llm42.bench.runner import Runner
from llm42.bench.server import Place
from llm42.bench.store import Store
from tests.bench.records import SUITE
from tests.bench.streaming import Behaviour, app
from tests.check.server import serving_app

PLACE = Place("tiny", "float32", 256, False, Path("/nowhere"))
SMALL = replace(SUITE, pairs=2, repeats=1, shares=(0.0, 1.0), online_shares=(0.0, 1.0), lone=SUITE.steady)


@dataclass
class StandIn:
    """What a runner needs of a server. Counters are not read: there are none."""

    system: System
    url: str
    log: list[tuple[str, str]]
    behaviour: Behaviour
    model: str = "tide"
    metrics: str | None = None
    seconds: float = 0.0
    job: Any = field(default_factory=lambda: type("Job", (), {"log": "the.log"}))

    def cpu(self) -> dict[str, float]:
        self.seconds += 1.0
        return {"engine": self.seconds}

    def memory(self) -> int:
        return 1 << 20

    def require_alive(self) -> None:
        pass

    def stop(self) -> None:
        self.log.append(("stop", self.system.name))


@dataclass
class World:
    log: list[tuple[str, str]] = field(default_factory=list)
    servers: dict[System, StandIn] = field(default_factory=dict)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    with ExitStack() as stack:

        def start(system: System, place: Place) -> StandIn:
            world.log.append(("start", system.name))
            behaviour = Behaviour(first_s=0, step_s=0)
            url = stack.enter_context(serving_app(app(behaviour)))
            world.servers[system] = StandIn(system, url, world.log, behaviour)
            return world.servers[system]

        monkeypatch.setattr("llm42.bench.runner.Server.start", start)
        yield world


def test_systems_live_as_long_as_they_are_compared(tmp_path: Path, world: World) -> None:
    store, made = Store(tmp_path), experiments(SMALL, SMALL.subjects[0], 2)
    with Runner(store, PLACE, lambda _: None) as runner:
        runner.run(made, lambda cell: None)
    ours, others = "llm42-1+1t-W32-G2", ["invariant-2t", "serial-2t", "vllm-1t", "vllm-2t"]
    frugal, shapes = f"{ours}-window", ["llm42-2+1t-W16-G4", "llm42-2+1t-W32-G4"]
    started = [name for what, name in world.log if what == "start"]
    assert sorted(started) == sorted([ours, frugal, *others, *shapes])  # each once
    # A deployment of another shape or cadence is alone.
    assert world.log[:2] == [("start", frugal), ("stop", frugal)]
    first = world.log.index(("start", shapes[0]))
    assert {name for what, name in world.log[:first] if what == "stop"} == {ours, frugal, *others}
    assert world.log[first:] == [(what, shape) for shape in shapes for what in ("start", "stop")]
    assert all(cell in store for experiment in made for cell in experiment.cells)
    assert not any(measured.failures for _, measured in store)


def test_arrivals_come_at_a_share_of_what_was_measured(tmp_path: Path, world: World) -> None:
    store = Store(tmp_path)
    made = {experiment.name: experiment for experiment in experiments(SMALL, SMALL.subjects[0], 2)}
    with Runner(store, PLACE, lambda _: None) as runner:
        with pytest.raises(BenchError, match="run the experiment `saturation` first"):
            runner.run([made["online"]], lambda cell: None)
        runner.run([made["saturation"], made["online"]], lambda cell: None)
    (capacity,) = (measured for cell, measured in store if cell.experiment == "saturation" and cell.share == 1.0)
    (rate,) = {measured.rate for cell, measured in store if cell.experiment == "online"}
    assert rate == pytest.approx(0.7 * len(capacity.answers) / capacity.seconds)


def test_one_repeat_asks_all_conditions_the_same_and_no_cache_helps(tmp_path: Path, world: World) -> None:
    made = {experiment.name: experiment for experiment in experiments(SMALL, SMALL.subjects[0], 2)}
    with Runner(Store(tmp_path), PLACE, lambda _: None) as runner:
        runner.run([made["offline"]], lambda cell: None)
    asked: dict[str, dict[str, list[Any]]] = {}
    for system, server in world.servers.items():
        for body in server.behaviour.bodies:
            if body["cache_salt"] != "warm-up":
                asked.setdefault(f"{system.name} {body['cache_salt']}", {}).setdefault("prompts", []).append(
                    body["prompt"]
                )
    assert len(asked) == len(made["offline"].cells)
    assert len({str(sorted(found["prompts"])) for found in asked.values()}) == 1


def test_a_system_that_answers_nothing_ends_the_run_and_everything_is_stopped(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = Store(tmp_path), experiments(SMALL, SMALL.subjects[0], 2)

    def on_cell(_: object) -> None:
        for server in world.servers.values():
            server.behaviour.fail = "at once"

    with (
        pytest.raises(BenchError, match=r"no request was answered by llm42-1\+1t-W32-G2-window; its log is the\.log"),
        Runner(store, PLACE, lambda _: None) as runner,
    ):
        runner.run(made, on_cell)
    assert not list(store)
    assert sorted(name for what, name in world.log if what == "start") == sorted(
        name for what, name in world.log if what == "stop"
    )


def test_memory_is_looked_after(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm42.bench.runner.FREE_BYTES", 1 << 60)
    made = experiments(SMALL, SMALL.subjects[0], 2)
    with (
        pytest.raises(BenchError, match="GiB of memory are free, too few to start"),
        Runner(Store(tmp_path), PLACE, lambda _: None) as runner,
    ):
        runner.run(made, lambda cell: None)
    assert world.log == []


def test_cpu_is_that_of_the_load(tmp_path: Path, world: World) -> None:
    store = Store(tmp_path)
    (lone,) = (made for made in experiments(SMALL, SMALL.subjects[0], 2) if made.name == "lone")
    with Runner(store, PLACE, lambda _: None) as runner:
        runner.run([lone], lambda cell: None)
    found: list[Measured] = [measured for _, measured in store]
    assert [measured.cpu for measured in found] == [{"engine": 1.0}] * 4
