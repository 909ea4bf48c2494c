"""What the project has promised itself, and whether this run saw it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from llm42.bench.cell import Measured
from llm42.bench.results import Results
from llm42.bench.statistics import Estimate, Run, percentile, ratio

LOAD = 0.7
LOADS = {"saturation": "", "limit": ", window boundaries only"}
"""Experiments that tell what a token costs, and how their targets are called."""


def mean(run: Run) -> float:
    return float(np.mean(run))


median, p95 = partial(percentile, percent=50), partial(percentile, percent=95)


@dataclass(frozen=True, slots=True)
class Target:
    """``found`` should be at most (or at least) ``limit``. ``note`` says how it was measured, or why it was not."""

    name: str
    limit: float
    found: Estimate | None
    note: str
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        if self.found is None:
            return None
        return self.found.value >= self.limit if self.at_least else self.found.value <= self.limit


def targets(results: Results, calibration: dict[str, Any] | None) -> list[Target]:
    """All of them, whatever was measured."""
    close = [target for name in LOADS for target in (_cpu(results, calibration, name), _padding(results, name))]
    return [*_neighbours(results), *_online(results), _lone(results), *close]


def throughput_ratio(results: Results, base: Results) -> Estimate | None:
    """Of the means of whole runs."""
    pairs = [([one.throughput], [other.throughput]) for one, other in results.paired(base)]
    return _ratio(pairs, mean)


def first_tokens(measured: Measured, numbers: set[int]) -> list[float]:
    return [answer.first for answer in measured.chosen() if answer.number in numbers]


def bare_cpu(calibration: dict[str, Any], measured: Measured, lanes: int, shape: tuple[int, int]) -> dict[str, float]:
    """CPU seconds that a committed token takes at least: its decode step and prompt, one slot of a replay pass of
    ``shape`` (W, G), and its share of the prompt's slots."""
    cpu = calibration["cpu"]
    decode = {int(size): seconds for size, seconds in cpu["draft"]["decode_s"].items()}
    size = min(decode, key=lambda known: abs(known - lanes))
    replay = next(times for times in cpu["replay"] if (times["window"], times["rows"]) == shape)
    window, rows = shape
    answers = measured.chosen()
    prompt = sum(answer.prompt_tokens for answer in answers) / max(1, sum(answer.tokens for answer in answers))
    silent = replay["pass_s"] / (window * rows)
    return {
        "decode": decode[size] / size,
        "prompt": prompt * cpu["draft"]["prefill_token_s"],
        "replay slot": silent + replay["asked_row_s"] / window,
        "prompt's replay": prompt * silent,
    }


def slots(counters: dict[str, float], kind: str) -> float:
    """Share of the slots of all replay passes."""
    return counters.get(f"verify_slots_total:{kind}", 0.0) / max(1.0, counters.get("verify_slots_total", 0.0))


def _ratio(pairs: Sequence[tuple[Run, Run]], statistic: Any) -> Estimate | None:
    pairs = [pair for pair in pairs if len(pair[0]) and len(pair[1])]
    return ratio([one for one, _ in pairs], [other for _, other in pairs], statistic) if pairs else None


def _neighbours(results: Results) -> Iterator[Target]:
    lanes = [cell.beside for cell, _ in results.where("neighbours").cells]
    half = max(lanes, default=0)
    ours = [results.where("neighbours", beside=half, beside_share=share) for share in (1.0, 0.0)]
    yield Target(
        "ordinary throughput, the other half of the streams deterministic, over none",
        0.97,
        throughput_ratio(*(Results(tuple(c for c in one.cells if c[0].system.ours)) for one in ours)),
        f"closed loop, {half} streams measured beside {half} others",
        at_least=True,
    )


def _online(results: Results) -> Iterator[Target]:
    half, none = (results.where("online", load=LOAD, share=share) for share in (0.5, 0.0))
    none = Results(tuple(pair for pair in none.cells if pair[0].system.ours))
    pairs: list[tuple[Run, Run]] = []
    for mixed, plain in half.paired(none):
        ordinary = {answer.number for answer in mixed.answers if not answer.deterministic}
        pairs.append((first_tokens(mixed, ordinary), first_tokens(plain, ordinary)))
    how = f"the same requests of a Poisson stream at {LOAD:.0%} load, {len(pairs)} pairs"
    yield Target("ordinary TTFT, median, half of the stream deterministic, over none", 1.10, _ratio(pairs, median), how)
    yield Target("ordinary TTFT, P95, half of the stream deterministic, over none", 1.10, _ratio(pairs, p95), how)
    whole = results.where("online", load=LOAD, share=1.0)
    firsts: list[tuple[Run, Run]] = [
        ([answer.first for answer in one.chosen()], [answer.first for answer in other.chosen()])
        for one, other in whole.paired(none)
    ]
    how = f"Poisson at {LOAD:.0%} of what the deployment answers if all is deterministic, {len(firsts)} pairs"
    yield Target("TTFT, P95, all deterministic over all ordinary", 1.5, _ratio(firsts, p95), how)


def _lone(results: Results) -> Target:
    pairs: list[tuple[Run, Run]] = [
        ([answer.total for answer in one.chosen()], [answer.total for answer in other.chosen()])
        for one, other in results.where("lone", share=1.0).paired(results.where("lone", share=0.0))
    ]
    tokens = max((answer.tokens for answer in results.where("lone").answers()), default=0)
    how = f"{tokens} tokens, nothing else on the server, {len(pairs)} pairs, medians"
    return Target("a lone stream's time, deterministic over ordinary", 1.10, _ratio(pairs, median), how)


def _cpu(results: Results, calibration: dict[str, Any] | None, experiment: str) -> Target:
    name = f"CPU seconds of a committed token over the sum of its parts, each bare{LOADS[experiment]}"
    runs = results.where(experiment, share=1.0)
    if not runs or calibration is None:
        return Target(name, 1.10, None, f"needs the experiment `{experiment}` and a calibration")
    cell = runs.cells[0][0]
    shape = (cell.system.window_size, cell.system.verify_batch_size)
    pairs: list[tuple[Run, Run]] = [
        ([measured.cpu_per_token], [sum(bare_cpu(calibration, measured, cell.lanes, shape).values())])
        for measured in runs.measured
    ]
    found = _ratio(pairs, mean)
    engines = sum(measured.cpu.get(role, 0.0) for measured in runs.measured for role in ("fast path", "verifier"))
    whole = sum(sum(measured.cpu.values()) for measured in runs.measured)
    note = (
        f"{cell.lanes} streams, all processes counted, router, Ray and serving included; the two engines alone are "
        f"{engines / whole:.0%} of it"
    )
    return Target(name, 1.10, found, note)


def _padding(results: Results, experiment: str) -> Target:
    runs = results.where(experiment, share=1.0)
    shares = [[slots(measured.counters, "padding")] for measured in runs.measured if measured.counters]
    found = _ratio([(share, [1.0]) for share in shares], mean)
    lanes = runs.cells[0][0].lanes if runs else 0
    name = f"padding, share of all slots of replay passes{LOADS[experiment]}"
    return Target(name, 0.10, found, f"{lanes} deterministic streams")
