"""An engine shares its core with what is no engine: they come first, and nothing is forgotten."""

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


def test_others_come_first() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    assert core.owe(0.75) == 0.75
    steps = []
    for _ in range(3):
        steps.append(core.lengthened(0.5))
        assert core.owe(0.25) == steps[-1] + 0.25, "once the step has ended"
        env.run(until=env.now + steps[-1])
    assert steps == [1.25, 0.75, 0.75]


def test_requests_that_come_together_wait_for_each_other() -> None:
    env = simpy.Environment()
    host = Host(env, HostTimes(request_s=0.25, background=0.5), 1)
    assert [host.admit(), host.admit()] == [0.5, 1.0]
    env.run(until=2)
    assert host.admit() == 0.5


def test_who_wants_nothing_waits_for_nothing() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    core.lengthened(0.5)
    assert (core.owe(0.0), core.owe(0.25)) == (0.0, 0.75)


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
    core = Core(simpy.Environment(), background=0.5)
    assert core.lengthened(0.5) == 1.0


def test_work_spreads_over_all_cores() -> None:
    host = Host(simpy.Environment(), HostTimes(ordinary_token_s=0.125, deterministic_token_s=0.25), 2)
    host.deliver(2, deterministic=False)
    host.deliver(1, deterministic=True)
    assert [core.lengthened(1.0) for core in host.cores] == [1.25, 1.25]


def test_what_is_served_is_slower_by_just_that() -> None:
    load = {"deterministic": 0, "concurrency": 5, "prompt": 1, "output": 50, "duration_s": 20, "warm_up_s": 5}
    report = plan(workload=load, step_times={"host": {"ordinary_token_s": 0.001}}).predict()
    # A step more for each 50: of those that come together, the first need not wait for the others.
    assert report.tokens_per_s == pytest.approx(5 / (STEP_S + 5 * 0.001), rel=0.02)


def test_each_step_is_slower_by_the_same() -> None:
    load = {"deterministic": 0, "concurrency": 5, "prompt": 1, "output": 50, "duration_s": 20, "warm_up_s": 5}
    report = plan(workload=load, step_times={"host": {"step_s": 0.002}}).predict()
    assert report.tokens_per_s == pytest.approx(5 / (STEP_S + 0.002), rel=0.01)
