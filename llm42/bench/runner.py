"""Runs what is not there yet: starts systems, puts one load at a time on them, keeps what came of it."""

import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Self

import psutil

from llm42.bench import scrape
from llm42.bench.cell import Cell, Measured, System, as_json
from llm42.bench.errors import BenchError
from llm42.bench.experiment import Experiment
from llm42.bench.load import closed_loop, connect, open_loop
from llm42.bench.server import Place, Server, difference
from llm42.bench.store import Store
from llm42.bench.workload import Length, Mix, Request, arrivals, make_requests

WARM_UP = Mix("warm-up", Length(48), Length(40))
"""More than a window, so that replay has run too."""
FREE_BYTES = 3 << 30
"""Least that must be free before another system is started."""
BESIDE_SEED = 1 << 20


class Runner:
    """``say`` is told what happens. Systems that are started live until they are not needed any more."""

    def __init__(self, store: Store, place: Place, say: Callable[[str], None]) -> None:
        self._store, self._place, self._say = store, place, say
        self._servers: dict[System, Server] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep(set())

    def run(self, wanted: Sequence[Experiment], on_cell: Callable[[Cell], None]) -> None:
        """Raises BenchError."""
        for experiment in wanted:
            left = [cell for cell in experiment.cells if cell not in self._store]
            if not left:
                continue
            # A deployment of another shape for each cell: one at a time, for want of memory.
            together = len({cell.system for cell in left if cell.system.ours}) <= 1
            if together:
                self._need({cell.system for cell in left})
            for cell in left:
                if not together:
                    self._need({cell.system})
                on_cell(cell)
                self._store.add(cell, self._measure(cell))

    def _need(self, systems: set[System]) -> None:
        if systems <= self._servers.keys():
            return  # what was started for others idles: that costs memory, and a restart costs a minute
        if any(system.ours and system not in self._servers for system in systems):
            self._keep(systems)
        for system in sorted(systems - self._servers.keys(), key=lambda system: system.name):
            free = psutil.virtual_memory().available
            if free < FREE_BYTES:
                raise BenchError(
                    f"{free / 2**30:.1f} GiB of memory are free, too few to start {system.name} beside "
                    f"{[other.name for other in self._servers]}: end other programs, and run the same command again"
                )
            began = time.monotonic()
            server = self._servers[system] = Server.start(system, self._place)
            asyncio.run(_warm(server))
            self._say(f"{system.name} is up after {time.monotonic() - began:.0f} s")

    def _keep(self, systems: set[System]) -> None:
        for system in [system for system in self._servers if system not in systems]:
            self._servers.pop(system).stop()

    def _measure(self, cell: Cell) -> Measured:
        server = self._servers[cell.system]
        server.require_alive()
        before = scrape.settled(server.metrics, {}, 0) if cell.scrape and server.metrics else {}
        rate = cell.load * self._capacity(cell) if cell.load else 0.0
        measured = asyncio.run(measure(cell, server, rate))
        server.require_alive()
        if measured.failures:
            self._say(f"{cell.system.name}: {len(measured.failures)} failed, first: {measured.failures[0]}")
        if not measured.chosen():
            raise BenchError(f"no request was answered by {cell.system.name}; its log is {server.job.log}")
        if cell.scrape and server.metrics:
            tokens = sum(answer.tokens for answer in measured.answers)
            after = scrape.settled(server.metrics, before, tokens)
            measured = replace(measured, counters=scrape.growth(before, after))
        return measured

    def _capacity(self, cell: Cell) -> float:
        """Requests a second of the same sizes that our deployment answers if all are deterministic."""
        rates = [
            len(measured.chosen()) / measured.seconds
            for other, measured in self._store
            if (other.experiment, other.model, other.share) == ("saturation", cell.model, 1.0)
            and (other.dtype, other.mix) == (cell.dtype, cell.mix)
        ]
        if not rates:
            raise BenchError("the capacity is not known: run the experiment `saturation` first")
        return statistics.median(rates)


async def measure(cell: Cell, server: Server, rate: float) -> Measured:
    """Put the load of ``cell`` on ``server``; ``rate`` are arrivals a second, of an open loop."""
    requests = make_requests(cell.mix, cell.requests, cell.share, cell.seed)
    salt = hashlib.sha256(json.dumps(as_json(cell), sort_keys=True).encode()).hexdigest()[:16]
    async with connect(
        server.url, server.model, ours=cell.system.ours, salt=salt, token_ids=cell.keep_tokens
    ) as client:
        cpu, began = server.cpu(), time.perf_counter()
        if cell.load:
            answers = await open_loop(client, requests, arrivals(cell.requests, rate, cell.seed))
        else:
            answers = await closed_loop(client, requests, cell.lanes, _beside(cell), cell.beside)
        seconds = time.perf_counter() - began
        spent = difference(cpu, server.cpu())
    answers.sort(key=lambda answer: answer.number)
    return Measured(seconds, answers, spent, server.memory(), rate=rate)


def _beside(cell: Cell) -> Iterator[Request]:
    """Without end, and never the same twice."""
    for turn in count():
        yield from make_requests(cell.mix, 64, cell.beside_share, BESIDE_SEED + 1000 * cell.seed + turn)


async def _warm(server: Server) -> None:
    async with connect(server.url, server.model, ours=server.system.ours, salt="warm-up") as client:
        for lanes in (1, 4):
            answers = await closed_loop(client, make_requests(WARM_UP, 2 * lanes, 0.5, lanes), lanes, iter(()), 0)
            for answer in answers:
                if answer.error is not None:
                    raise BenchError(
                        f"{server.system.name} does not answer ({answer.error}); its log is {server.job.log}"
                    )
