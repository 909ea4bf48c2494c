"""Do the predictions of `llm42 plan` hold? Calibrates this machine, predicts, then serves the same load and compares.

    python benchmarks/plan_validation.py --model tiny --lanes 2 4 8 --json

Both engines are calibrated at the same time, since they share memory and caches when they serve. The verifier has a
core of its own, the rest shares that of the drafting engine. What lies between the parts is taken from a lone stream of
each mode; what the rest takes from the drafting engine's core, from an idle server and from loads that are all ordinary
and all deterministic. Nothing else of the serving runs enters a prediction. Needs the extra `bench` and a machine that
does nothing else.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from llm42.bench import scrape
from llm42.bench.calibrate import calibrate
from llm42.bench.cell import Answer, System
from llm42.bench.load import Client, connect
from llm42.bench.machine import facts, gpus, hardware
from llm42.bench.server import Place, Server
from llm42.bench.workload import FIRST_ID, LAST_ID, Request
from llm42.plan.plan import Plan
from llm42.plan.report import Report
from llm42.plan.step_times import HostTimes, StepTimes
from llm42.plan.workload import Arrival

ROWS, WINDOW = 4, 32
LONE = 6
"""Requests of each mode, one after the other, that tell what lies between the parts."""
IDLE_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--lanes", type=int, nargs="+", default=[2, 4, 8], help="clients of each load")
    parser.add_argument("--share", type=float, default=0.5, help="of deterministic requests")
    parser.add_argument("--prompt", type=int, default=96)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=40, help="of each load, a quarter of which is not counted")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llm42-plan-") as logs:
        place = Place(options.model, options.dtype, 1024, bool(gpus()), Path(logs))
        times = calibrated(place, list(range(1, max(options.lanes) + 1)))
        server = Server.start(System("llm42", 1, 1, WINDOW, ROWS), place)
        try:
            found = asyncio.run(compare(server, times, options))
        finally:
            server.stop()
    if options.json:
        print(json.dumps({"machine": facts(), "loads": found}))
        return
    for load in found:
        print(f"{load['lanes']} clients")
        for name, (predicted, measured) in load["figures"].items():
            print(f"  {name:28} {predicted:8.3f} {measured:8.3f} {predicted / measured - 1:+8.1%}")


def calibrated(place: Place, batches: Sequence[int]) -> StepTimes:
    """As `llm42 bench calibrate` does, twice at the same time."""

    def one(number: int) -> StepTimes:
        logs = place.logs / str(number)
        logs.mkdir()
        say = (lambda step: print(f"calibrating: {step}", file=sys.stderr)) if number == 0 else (lambda step: None)
        return calibrate(replace(place, logs=logs), (1, 1), [(WINDOW, ROWS)], batches, hardware(facts()), say).times

    with ThreadPoolExecutor() as pool:
        return next(iter(list(pool.map(one, range(2)))))


def plan_of(times: StepTimes, options: argparse.Namespace, lanes: int, share: float, seconds: float) -> Plan:
    return Plan.model_validate(
        {
            "step_times": times,
            "workload": {
                "concurrency": lanes,
                "prompt": options.prompt,
                "output": options.output,
                "deterministic": share,
                "duration_s": seconds,
                "warm_up_s": seconds / 4,
            },
            "fleet": {
                "window_size": WINDOW,
                "verify_batch_size": ROWS,
                "max_model_len": 1024,
                "chunked_prefill": gpus() != [],
            },
        }
    )


async def compare(server: Server, times: StepTimes, options: argparse.Namespace) -> list[dict[str, Any]]:
    assert server.metrics is not None
    found = []
    async with connect(server.url, server.model, ours=True, salt="plan") as client:
        wire = times.wire.model_copy(update=await wires(client, times, options))
        host = await beside_the_engine(server, client, times, options)
        print(f"between the parts: {wire}; beside the engine: {host}", file=sys.stderr)
        times = times.model_copy(update={"wire": wire, "host": host})
        for lanes in options.lanes:
            plan = plan_of(times, options, lanes, options.share, options.seconds)
            predicted = plan.predict()
            before = scrape.read(server.metrics)
            measured = await served(client, plan)
            tokens = sum(answer.tokens for _, answer in measured)
            counted = scrape.growth(before, await asyncio.to_thread(scrape.settled, server.metrics, before, tokens))
            found.append({"lanes": lanes, "figures": figures(plan, predicted, measured, counted)})
            print(f"{lanes} clients: {found[-1]}", file=sys.stderr)
    return found


async def wires(client: Client, times: StepTimes, options: argparse.Namespace) -> dict[str, float]:
    """What a lone request's first token takes beyond its steps, ordinary and deterministic."""
    beyond = {}
    for share in (0.0, 1.0):
        plan = plan_of(times, options, 1, share, 60)
        report = plan.predict()
        predicted = (report.deterministic if share else report.ordinary).ttft_s
        assert predicted is not None
        first = []
        for arrival in islice(plan.workload.arrivals(), LONE):
            answer = await client.ask(arrival.number, request_of(arrival, 10_000), time.perf_counter())
            first.append(answer.first)
        beyond[share] = statistics.median(first[1:]) - predicted.p50
    return {"request_s": max(0.0, beyond[0.0]), "replay_s": max(0.0, beyond[1.0] - max(0.0, beyond[0.0]))}


async def beside_the_engine(server: Server, client: Client, times: StepTimes, options: argparse.Namespace) -> HostTimes:
    """CPU time beyond the drafting engine's steps, without the verifier's: of an idle server, and for a token where all
    are ordinary, or none is."""
    if gpus():
        return HostTimes()
    before = cpu_s(server)
    await asyncio.sleep(IDLE_S)
    background = min(0.99, (cpu_s(server) - before) / IDLE_S)
    spent: dict[bool, float] = {}
    for deterministic in (False, True):
        plan = plan_of(times, options, max(options.lanes), float(deterministic), options.seconds / 2)
        report = plan.predict()
        computing = report.fast_path_busy / report.tokens_per_s
        began, before = time.perf_counter(), cpu_s(server)
        tokens = sum(answer.tokens for _, answer in await served(client, plan))
        beyond = cpu_s(server) - before - background * (time.perf_counter() - began)
        spent[deterministic] = max(0.0, beyond / tokens - computing)
    return HostTimes(background=background, ordinary_token_s=spent[False], deterministic_token_s=spent[True])


def cpu_s(server: Server) -> float:
    """CPU time so far, of the server's processes but the verifier, and of this one: it is the client."""
    return sum(seconds for role, seconds in server.cpu().items() if role != "verifier") + time.process_time()


async def served(client: Client, plan: Plan) -> list[tuple[float, Answer]]:
    """The plan's own requests in a closed loop: when each was sent, in seconds from the start, and what came of it."""
    arrivals = plan.workload.arrivals()
    began = time.perf_counter()
    found: list[tuple[float, Answer]] = []

    async def lane() -> None:
        while (sent := time.perf_counter()) < began + plan.workload.duration_s:
            arrival = next(arrivals)
            answer = await client.ask(arrival.number, request_of(arrival, int(began)), sent)
            if answer.error is not None:
                raise RuntimeError(f"request {arrival.number} failed: {answer.error}")
            found.append((sent - began, answer))

    async with asyncio.TaskGroup() as group:
        for _ in range(plan.workload.concurrency or 0):
            group.create_task(lane())
    return found


def request_of(arrival: Arrival, salt: int) -> Request:
    """No two prompts have a common prefix."""
    prompt = random.Random(f"{salt}/{arrival.number}").choices(range(FIRST_ID, LAST_ID), k=arrival.prompt)
    return Request(tuple(prompt), arrival.output, arrival.deterministic)


def figures(
    plan: Plan, predicted: Report, measured: list[tuple[float, Answer]], counted: dict[str, float]
) -> dict[str, tuple[float, float]]:
    """Predicted and measured, by name."""
    begin, end = plan.workload.warm_up_s, plan.workload.duration_s
    sent = sum(answer.tokens * overlap(at + answer.first, at + answer.total, begin, end) for at, answer in measured)
    found = {"tokens / s": (predicted.tokens_per_s, sent / (end - begin))}
    for mode, traffic in (("ordinary", predicted.ordinary), ("deterministic", predicted.deterministic)):
        flagged = mode == "deterministic"
        answers = [answer for at, answer in measured if begin <= at and answer.deterministic == flagged]
        if traffic.ttft_s is None or traffic.e2e_s is None or not answers:
            continue
        first, total = sorted(answer.first for answer in answers), sorted(answer.total for answer in answers)
        found[f"{mode}: P50 TTFT, s"] = (traffic.ttft_s.p50, statistics.median(first))
        found[f"{mode}: P95 TTFT, s"] = (traffic.ttft_s.p95, first[int(0.95 * len(first))])
        found[f"{mode}: P50 end to end, s"] = (traffic.e2e_s.p50, statistics.median(total))
        found[f"{mode}: P95 end to end, s"] = (traffic.e2e_s.p95, total[int(0.95 * len(total))])
    committed = counted["tokens_committed_total"]
    answering = counted.get("verify_rows_total:full", 0.0) + counted.get("verify_rows_total:partial", 0.0)
    found["answering slots / token"] = (predicted.answering_slots, answering * WINDOW / committed)
    found["slots / token"] = (predicted.slots, counted["verify_slots_total"] / committed)
    return found


def overlap(first: float, last: float, begin: float, end: float) -> float:
    """Share of the time from ``first`` to ``last`` that lies between ``begin`` and ``end``."""
    if last <= first:
        return float(begin <= first < end)
    return max(0.0, min(last, end) - max(first, begin)) / (last - first)


if __name__ == "__main__":
    main()
