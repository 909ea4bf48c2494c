"""An engine shares its core with what is no engine: turn by turn, and nothing is forgotten."""

import pytest
import simpy

from llm42.plan.core import Core, Host
from llm42.plan.step_times import HostTimes
from tests.plan.conftest import STEP_S, plan


def test_a_core_of_its_own() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    assert core.lengthened(0.25) == 0.25
    env.run(until=0.25)
    assert core.lengthened(0.5) == 0.5


def test_others_get_at_most_as_much() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    core.owe(0.75)
    steps = []
    for _ in range(4):
        steps.append(core.lengthened(0.5))
        env.run(until=env.now + steps[-1])
    assert steps == [1.0, 0.75, 0.5, 0.5], "0.75 in all, 0.5 of them beside the first"


def test_an_idle_core_is_theirs() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    core.owe(0.75)
    env.run(until=0.5)
    assert core.lengthened(0.5) == 0.75
    env.run(until=2)
    core.owe(0.25)
    assert core.lengthened(0.5) == 0.75, "what was idle before is no credit"


def test_what_is_always_there() -> None:
    core = Core(simpy.Environment(), background=0.25)
    assert core.lengthened(0.5) == 0.625


def test_work_spreads_over_all_cores() -> None:
    host = Host(simpy.Environment(), HostTimes(ordinary_token_s=0.125, deterministic_token_s=0.25), 2)
    host.deliver(2, deterministic=False)
    host.deliver(1, deterministic=True)
    assert [core.lengthened(1.0) for core in host.cores] == [1.25, 1.25]


def test_what_is_served_is_slower_by_just_that() -> None:
    load = {"deterministic": 0, "concurrency": 5, "prompt": 1, "output": 50, "duration_s": 20, "warm_up_s": 5}
    report = plan(workload=load, step_times={"host": {"ordinary_token_s": 0.001}}).predict()
    assert report.tokens_per_s == pytest.approx(5 / (STEP_S + 5 * 0.001), rel=0.01)


def test_each_step_is_slower_by_the_same() -> None:
    load = {"deterministic": 0, "concurrency": 5, "prompt": 1, "output": 50, "duration_s": 20, "warm_up_s": 5}
    report = plan(workload=load, step_times={"host": {"step_s": 0.002}}).predict()
    assert report.tokens_per_s == pytest.approx(5 / (STEP_S + 0.002), rel=0.01)
