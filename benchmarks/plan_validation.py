"""Do the predictions of `llm42 plan` hold? Calibrates this machine, predicts, then serves the same load and compares.

    python benchmarks/plan_validation.py --model tiny --lanes 2 4 8 --json

Engines are calibrated two at a time, since two share memory and caches when they serve, and before and after all that
is served: a machine changes, and the mean is what counts. The verifier has a core of its own, the rest
shares that of the drafting engine. What lies between the parts is taken from a lone stream of each mode; what the rest
takes from the drafting engine's core, from an idle server, requests of one token, a lone stream, and the largest load,
all ordinary and all deterministic. Nothing else of the serving runs enters a prediction. Needs the extra `bench` and a
machine that does nothing else.
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
from dataclasses import dataclass, replace
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
        sizes = list(range(1, max(options.lanes) + 1))
        before = calibrated(place, sizes, "before")
        server = Server.start(System("llm42", 1, 1, WINDOW, ROWS), place)
        try:
            seen = asyncio.run(observe(server, before, options))
        finally:
            server.stop()
        found = compare(seen, halfway(before, calibrated(place, sizes, "after")), options)
    if options.json:
        print(json.dumps({"machine": facts(), "loads": found}))
        return
    for load in found:
        print(f"{load['lanes']} clients")
        for name, (predicted, measured) in load["figures"].items():
            print(f"  {name:28} {predicted:8.3f} {measured:8.3f} {predicted / measured - 1:+8.1%}")


@dataclass(frozen=True)
class Observed:
    """What was served, before anything is predicted. CPU times are of all but the verifier, beyond the background."""

    first: dict[bool, float]
    """Median TTFT of a lone stream, by whether it is deterministic, in seconds."""
    background: float
    """Cores that are busy while nobody asks."""
    request_s: float
    """CPU time of an ordinary request for one token."""
    token_s: dict[tuple[bool, int], float]
    """CPU time of a token of longer answers, by mode and clients."""
    loads: dict[int, tuple[list[tuple[float, Answer]], dict[str, float]]]
    """By clients: when each request was sent and what came of it, and what the counters grew by."""


def calibrated(place: Place, batches: Sequence[int], when: str) -> StepTimes:
    """As `llm42 bench calibrate` does, twice at the same time."""

    def one(number: int) -> StepTimes:
        logs = place.logs / when / str(number)
        logs.mkdir(parents=True)
        say = (lambda step: print(f"calibrating: {step}", file=sys.stderr)) if number == 0 else (lambda step: None)
        return calibrate(replace(place, logs=logs), (1, 1), [(WINDOW, ROWS)], batches, hardware(facts()), say).times

    with ThreadPoolExecutor() as pool:
        return next(iter(list(pool.map(one, range(2)))))


def halfway(one: StepTimes, other: StepTimes) -> StepTimes:
    """Each time is the mean of the two."""

    def mean(a: Any, b: Any) -> Any:
        if isinstance(a, dict):
            return {name: mean(a[name], b[name]) for name in a}
        if isinstance(a, list):
            return [mean(*pair) for pair in zip(a, b, strict=True)]
        return (a + b) / 2 if isinstance(a, float) else a

    return StepTimes.model_validate(mean(one.model_dump(mode="json"), other.model_dump(mode="json")))


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


async def observe(server: Server, times: StepTimes, options: argparse.Namespace) -> Observed:
    assert server.metrics is not None
    first, token, loads = {}, {}, {}
    async with connect(server.url, server.model, ours=True, salt="plan") as client:
        await served(client, plan_of(times, options, 2, 0.5, options.seconds / 8))  # what is done once for all
        before = cpu_s(server)
        await asyncio.sleep(IDLE_S)
        background = min(0.99, (cpu_s(server) - before) / IDLE_S)

        async def spent(plan: Plan) -> tuple[float, list[Answer]]:
            began, before = time.perf_counter(), cpu_s(server)
            answers = [answer for _, answer in await served(client, plan)]
            return cpu_s(server) - before - background * (time.perf_counter() - began), answers

        seconds, answers = await spent(plan_of(times, shortened(options), 1, 0.0, options.seconds / 2))
        request = seconds / len(answers)
        for deterministic in (False, True):
            for lanes in (1, max(options.lanes)):
                plan = plan_of(times, options, lanes, float(deterministic), options.seconds / 2)
                seconds, answers = await spent(plan)
                token[deterministic, lanes] = seconds / sum(answer.tokens for answer in answers)
                if lanes == 1:
                    first[deterministic] = statistics.median(answer.first for answer in answers[1:])
        for lanes in options.lanes:
            counters = await asyncio.to_thread(scrape.settled, server.metrics, {}, 0)
            answered = await served(client, plan_of(times, options, lanes, options.share, options.seconds))
            tokens = sum(answer.tokens for _, answer in answered)
            after = await asyncio.to_thread(scrape.settled, server.metrics, counters, tokens)
            loads[lanes] = (answered, scrape.growth(counters, after))
            print(f"{lanes} clients are served", file=sys.stderr)
    return Observed(first, background, request, token, loads)


def compare(seen: Observed, times: StepTimes, options: argparse.Namespace) -> list[dict[str, Any]]:
    host = beside_the_engine(seen, times, options)
    times = times.model_copy(update={"host": host})
    wire = times.wire.model_copy(update=wires(seen, times, options))
    times = times.model_copy(update={"wire": wire})
    print(f"beside the engine: {host}; between the parts: {wire}", file=sys.stderr)
    found = []
    for lanes, (answered, counters) in seen.loads.items():
        plan = plan_of(times, options, lanes, options.share, options.seconds)
        found.append({"lanes": lanes, "figures": figures(plan, plan.predict(), answered, counters)})
    return found


def wires(seen: Observed, times: StepTimes, options: argparse.Namespace) -> dict[str, float]:
    """What a lone request's first token takes beyond its steps, ordinary and deterministic."""
    beyond = {}
    for deterministic, measured in seen.first.items():
        report = plan_of(times, options, 1, float(deterministic), options.seconds).predict()
        predicted = (report.deterministic if deterministic else report.ordinary).ttft_s
        assert predicted is not None
        beyond[deterministic] = measured - predicted.p50
    return {"request_s": max(0.0, beyond[False]), "replay_s": max(0.0, beyond[True] - max(0.0, beyond[False]))}


def beside_the_engine(seen: Observed, times: StepTimes, options: argparse.Namespace) -> HostTimes:
    """CPU time beyond the drafting engine's steps. Of a token, what falls with the number of streams is a step's."""
    if gpus():
        return HostTimes()

    def beyond(spent: float, options: argparse.Namespace, lanes: int, share: float) -> float:
        report = plan_of(times, options, lanes, share, options.seconds).predict()
        return spent - report.fast_path_busy / report.tokens_per_s

    # A lone request costs itself, and each of its tokens a step and a token.
    lone, most = beyond(seen.token_s[False, 1], options, 1, 0.0), max(options.lanes)
    first = beyond(seen.request_s, shortened(options), 1, 0.0)
    request = max(0.0, (first - lone) / (1 - 1 / options.output))
    token = {
        mode: beyond(seen.token_s[mode, most], options, most, float(mode)) - request / options.output
        for mode in (False, True)
    }
    step = (lone - request / options.output - token[False]) / (1 - 1 / most) if most > 1 else 0.0
    step = max(0.0, step)
    ordinary, deterministic = (max(0.0, token[mode] - step / most) for mode in (False, True))
    return HostTimes(
        background=seen.background,
        request_s=request,
        step_s=step,
        ordinary_token_s=ordinary,
        deterministic_token_s=deterministic,
    )


def cpu_s(server: Server) -> float:
    """CPU time so far, of the server's processes but the verifier. This one, the client, finds room on its core."""
    return sum(seconds for role, seconds in server.cpu().items() if role != "verifier")


def shortened(options: argparse.Namespace) -> argparse.Namespace:
    """The same requests, for one token each."""
    return argparse.Namespace(**{**vars(options), "output": 1})


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
