"""An engine shares its core with what is no engine: they come first, and nothing is forgotten."""

import pytest
import simpy

from llm42.plan.core import Core, Host
from llm42.plan.step_times import HostTimes
from tests.plan.conftest import STEP_S, plan


def run(env: simpy.Environment, core: Core, seconds: float) -> float:
    """A step, as an engine does it: how long it takes, with what is paid before."""
    began = env.now
    while owed := core.pay():
        env.run(until=env.now + owed)
    env.run(until=env.now + core.step(seconds))
    return float(env.now - began)


def test_a_core_of_its_own() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    assert [run(env, core, 0.25), run(env, core, 0.5)] == [0.25, 0.5]


def test_others_come_first() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    assert core.owe(0.75) == 0.75
    assert [run(env, core, 0.5), run(env, core, 0.5)] == [1.25, 0.5]
    core.step(0.5)
    assert core.owe(0.25) == 0.75, "once the step has ended"


def test_requests_that_come_together_wait_for_each_other() -> None:
    env = simpy.Environment()
    host = Host(env, HostTimes(request_s=0.25, background=0.5), 1)
    assert [host.admit(), host.admit()] == [0.5, 1.0]
    env.run(until=2)
    assert host.admit() == 0.5


def test_who_wants_nothing_waits_for_nothing() -> None:
    core = Core(simpy.Environment(), background=0)
    core.step(0.5)
    assert (core.owe(0.0), core.owe(0.25)) == (0.0, 0.75)


def test_an_idle_core_is_theirs() -> None:
    env = simpy.Environment()
    core = Core(env, background=0)
    core.owe(0.75)
    env.run(until=0.5)
    assert run(env, core, 0.5) == 0.75
    env.run(until=2)
    core.owe(0.25)
    assert run(env, core, 0.5) == 0.75, "what was idle before is no credit"


def test_rounding_is_no_debt() -> None:
    env = simpy.Environment()
    core = Core(env, background=0.1)
    for _ in range(1000):
        core.owe(0.1)
        run(env, core, 0.3)
    assert core.pay() == 0.0


def test_what_is_always_there() -> None:
    env = simpy.Environment()
    assert run(env, Core(env, background=0.5), 0.5) == 1.0


def test_work_spreads_over_all_cores() -> None:
    host = Host(simpy.Environment(), HostTimes(ordinary_token_s=0.125, deterministic_token_s=0.25), 2)
    host.deliver(2, deterministic=False)
    host.deliver(1, deterministic=True)
    assert [core.pay() for core in host.cores] == [0.25, 0.25]


def test_what_is_served_is_slower_by_just_that() -> None:
    load = {"deterministic": 0, "concurrency": 5, "prompt": 1, "output": 50, "duration_s": 20, "warm_up_s": 5}
    report = plan(workload=load, step_times={"host": {"ordinary_token_s": 0.001}}).predict()
    assert report.tokens_per_s == pytest.approx(5 / (STEP_S + 5 * 0.001), rel=0.01)


def test_each_step_is_slower_by_the_same() -> None:
    load = {"deterministic": 0, "concurrency": 5, "prompt": 1, "output": 50, "duration_s": 20, "warm_up_s": 5}
    report = plan(workload=load, step_times={"host": {"step_s": 0.002}}).predict()
    assert report.tokens_per_s == pytest.approx(5 / (STEP_S + 0.002), rel=0.01)
