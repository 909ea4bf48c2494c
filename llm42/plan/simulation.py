"""Runs a plan: real sessions, cadence, scheduler and window cache; a simulated model, wires and clock."""

import random
from collections.abc import Callable, Generator

import simpy

from llm42.plan.core import Host
from llm42.plan.drift import Drift, Script
from llm42.plan.fast_path import FastPathEngine
from llm42.plan.fleet import Fleet
from llm42.plan.ledger import Ledger, Served
from llm42.plan.report import Report
from llm42.plan.router import Router
from llm42.plan.step_times import StepTimes
from llm42.plan.verifier import VerifierEngine
from llm42.plan.workload import Arrival, Workload

SLICES = 100


class Simulation:
    """One run. All requests are served to their end, and all their committed tokens compared with the script."""

    def __init__(self, times: StepTimes, workload: Workload, fleet: Fleet, drift: Drift) -> None:
        self._workload = workload
        self._fleet = fleet
        self._drift = drift
        self._env = env = simpy.Environment()
        self.ledger = ledger = Ledger(workload.warm_up_s, workload.duration_s)
        host = Host(env, times.host, fleet.fast_paths)
        fast_paths = [FastPathEngine(env, fleet, times, core, ledger) for core in host.cores]
        verifiers = [VerifierEngine(env, str(i), fleet, times, ledger) for i in range(fleet.verifiers)]
        self._router = Router(env, fleet, times, host, fast_paths, verifiers, ledger, random.Random(workload.seed))
        self._arrivals = workload.arrivals()
        self._drained = env.event()

    def run(self, on_progress: Callable[[float], None] = lambda share: None) -> Report:
        """``on_progress`` hears how much of the duration has passed, of 1.

        Raises RuntimeError if a request has no end, or another one than its script's.
        """
        self._env.process(self._count("begin", self.ledger.begin))
        self._env.process(self._count("end", self.ledger.end))
        if self._workload.rate is not None:
            self._env.process(self._open())
        else:
            for _ in range(self._workload.concurrency or 0):
                self._ask(next(self._arrivals), again=True)
        for part in range(1, SLICES + 1):
            self._env.run(until=self.ledger.end * part / SLICES)
            on_progress(part / SLICES)
        # Later than anything at the end itself: the backlog must have been counted.
        self._env.run(until=self._env.timeout(0))
        if self.ledger.in_flight:
            self._env.run(until=self._drained)
        return Report.of(self.ledger, self._fleet)

    def _open(self) -> Generator[simpy.Event, None, None]:
        for arrival in self._arrivals:
            yield self._env.timeout(arrival.after_s)
            if self._env.now >= self.ledger.end:
                return
            self._ask(arrival, again=False)

    def _ask(self, arrival: Arrival, *, again: bool) -> None:
        """``again``: its client asks the next one once it has ended."""
        prompt = min(arrival.prompt, self._fleet.context - 1)
        output = min(arrival.output, self._fleet.context - prompt)
        script = Script.of(prompt, output, self._drift, f"{self._workload.seed}/{arrival.number}/tokens")
        request = Served(arrival.deterministic, self._env.now)
        self.ledger.requests.append(request)
        self.ledger.in_flight += 1

        def done() -> None:
            self.ledger.in_flight -= 1
            if self._env.now < self.ledger.end:
                if again:
                    self._ask(next(self._arrivals), again=True)
            elif not self.ledger.in_flight:
                self._drained.succeed()

        self._router.serve(arrival.number, script, request, done)

    def _count(self, name: str, when: float) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(when)
        self.ledger.backlog[name] = self.ledger.in_flight
