"""The figures as tables: headers and rows of text, which the report prints and the plots redraw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llm42.bench.cell import Answer, Cell, System
from llm42.bench.results import Results
from llm42.bench.statistics import estimate, percentile
from llm42.bench.targets import LOADS, bare_cpu, mean, median, p95, slots

MS = 1e3
KINDS = {"vllm": "vLLM", "serial": "vLLM, max_num_seqs=1", "invariant": "vLLM, batch-invariant"}


@dataclass(frozen=True, slots=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __bool__(self) -> bool:
        return bool(self.rows)


def label(system: System, share: float | None = None) -> str:
    """What a condition is called in tables and plots."""
    if not system.ours:
        return f"{KINDS[system.kind]} ({system.threads} thread{'s' if system.threads > 1 else ''})"
    name = "LLM-42" if system.cadence == "adaptive" else f"LLM-42 ({system.cadence})"
    return name if share is None else f"{name}, {share:.0%} det."


def mean_throughput(results: Results) -> float:
    return mean([measured.throughput for measured in results.measured])


def offline(results: Results) -> Table:
    """Output tokens a second by share, and over plain vLLM with as many threads in all."""
    found = results.where("offline")
    mixes = {cell.mix.name: cell.mix for cell, _ in found.cells}
    base = next(iter(found.systems("vllm")), None)
    rows = []
    for system, share in conditions(found):
        row = [label(system, share)]
        for mix in mixes.values():
            here = found.where("offline", system=system, share=share, mix=mix)
            plain = None if base is None else found.where("offline", system=base, mix=mix)
            row.append(_over(here, plain) if here else "")
        rows.append(tuple(row))
    return Table(("tokens/s (over vLLM)", *map(str, mixes.values())), tuple(rows))


def _over(here: Results, base: Results | None) -> str:
    speed = mean_throughput(here)
    return f"{speed:.1f} ({speed / mean_throughput(base):.2f})" if base else f"{speed:.1f}"


def latency(results: Results, of: Callable[[Answer], float]) -> Table:
    """Median, P95 (with bootstrap intervals) and P99 in milliseconds, by load and share."""
    rows = []
    found = results.where("online")
    for load in sorted({cell.load for cell, _ in found.cells}):
        for system, share in conditions(found):
            for kind in (False, True):
                runs = [
                    [of(answer) * MS for answer in measured.chosen(kind)]
                    for measured in found.where("online", load=load, system=system, share=share).measured
                ]
                runs = [run for run in runs if run]
                if not runs:
                    continue
                pooled = [value for run in runs for value in run]
                figures = (str(estimate(runs, median)), str(estimate(runs, p95)), f"{percentile(pooled, 99):.3g}")
                which = "deterministic" if kind else "ordinary"
                rows.append((f"{load:.0%}", label(system, share), which, str(len(pooled)), *figures))
    return Table(("load", "system", "requests", "n", "median, ms", "P95, ms", "P99, ms"), tuple(rows))


def neighbours(results: Results) -> Table:
    """Ordinary throughput beside other streams."""
    rows = []
    found = results.where("neighbours")
    for beside in sorted({cell.beside for cell, _ in found.cells}):
        for system in dict.fromkeys(cell.system for cell, _ in found.cells if cell.beside == beside):
            for share in (0.0, 1.0):
                here = found.where("neighbours", beside=beside, beside_share=share, system=system)
                if not here:
                    continue
                cell = here.cells[0][0]
                speed = estimate([[measured.throughput] for measured in here.measured], mean)
                kind = "deterministic" if share else "ordinary"
                rows.append((label(system), str(cell.lanes), f"{beside} {kind}", str(len(here.cells)), str(speed)))
    return Table(("system", "ordinary streams", "beside", "runs", "ordinary tokens/s"), tuple(rows))


def recompute(results: Results) -> Table:
    """By the shape of a pass, all deterministic, drafts that drift."""
    rows = []
    for cell, measured in results.where("recompute").cells:
        grown = measured.counters
        drafted = max(1.0, grown.get("tokens_drafted_total", 0.0))
        rows.append(
            (
                str(cell.system.window_size),
                str(cell.system.verify_batch_size),
                f"{measured.throughput:.1f}",
                f"{grown.get('tokens_recomputed_total', 0.0) / drafted:.1%}",
                f"{grown.get('tokens_accepted_total', 0.0) / max(1.0, grown.get('tokens_verified_total', 0.0)):.1%}",
                f"{grown.get('rollbacks_total', 0.0):.0f}",
                f"{slots(grown, 'padding'):.0%}",
            )
        )
    header = ("W", "G", "tokens/s", "recomputed", "accepted", "rollbacks", "padding")
    return Table(header, tuple(rows))


def verify_cost(calibration: dict[str, Any] | None) -> Table:
    """Of a bare replay pass in which every row answers."""
    rows = []
    for times in sorted((calibration or {"times": {"replay": []}})["times"]["replay"], key=pass_tokens):
        seconds = times["pass_s"] + times["rows"] * times["asked_row_s"]
        tokens = pass_tokens(times)
        shape = (str(tokens), str(times["window"]), str(times["rows"]))
        rows.append((*shape, f"{seconds * MS:.1f}", f"{seconds * MS / tokens:.3f}"))
    return Table(("tokens in a pass", "W", "G", "pass, ms", "ms a token"), tuple(rows))


def pass_tokens(times: dict[str, Any]) -> int:
    return int(times["rows"] * times["window"])


def agreement(results: Results) -> dict[str, list[tuple[int, bool]]]:
    """Of each ordinary output: tokens that agree with the canonical one, and whether all do."""
    canonical = {answer.number: answer.token_ids for answer in results.where("spans", share=1.0).answers()}
    found = {}
    for cell, measured in results.where("spans", share=0.0).cells:
        name = f"{label(cell.system)}, {'alone' if cell.lanes == 1 else f'{cell.lanes} at a time'}"
        found[name] = [
            _agreeing(answer.token_ids, canonical[answer.number])
            for answer in measured.chosen()
            if answer.number in canonical
        ]
    return found


def _agreeing(tokens: Sequence[int], canonical: Sequence[int]) -> tuple[int, bool]:
    for place, (token, wanted) in enumerate(zip(tokens, canonical, strict=True)):
        if token != wanted:
            return place, False
    return len(canonical), True


def spans(results: Results) -> Table:
    rows = [
        (
            name,
            str(len(found)),
            f"{percentile([length for length, _ in found], 50):.0f}",
            str(min(length for length, _ in found)),
            f"{sum(whole for _, whole in found) / len(found):.0%}",
        )
        for name, found in agreement(results).items()
        if found
    ]
    return Table(("ordinary outputs", "n", "agreeing tokens, median", "least", "never diverge"), tuple(rows))


def cpu(results: Results, calibration: dict[str, Any] | None) -> Table:
    """CPU milliseconds of an output token under load, by process, and what its parts take bare."""
    rows: list[tuple[str, ...]] = []
    roles = ("fast path", "verifier", "router", "engine", "rest")
    for experiment in LOADS:
        found = results.where(experiment)
        for system, share in conditions(found):
            here = found.where(experiment, system=system, share=share)
            tokens = sum(answer.tokens for answer in here.answers())
            spent = [sum(measured.cpu.get(role, 0.0) for measured in here.measured) / tokens * MS for role in roles]
            streams = str(here.cells[0][0].lanes)
            figures = (f"{ms:.2f}" if ms else "" for ms in spent)
            rows.append((label(system, share), streams, *figures, f"{sum(spent):.2f}"))
        whole = found.where(experiment, share=1.0)
        if whole and calibration is not None:
            cell, measured = whole.cells[0]
            shape = (cell.system.window_size, cell.system.verify_batch_size)
            bare = bare_cpu(calibration, measured, cell.lanes, shape)
            parts = ", ".join(f"{name} {seconds * MS:.2f}" for name, seconds in bare.items())
            rows.append((f"bare: {parts}", str(cell.lanes), *[""] * len(roles), f"{sum(bare.values()) * MS:.2f}"))
    return Table(("CPU ms a token", "streams", *roles, "all"), tuple(rows))


def conditions(results: Results) -> list[tuple[System, float]]:
    """(system, share), vLLM first."""

    def order(condition: tuple[System, float]) -> tuple[Any, ...]:
        system, share = condition
        return system.ours, list(KINDS).index(system.kind) if not system.ours else 0, -system.threads, share

    return sorted({(cell.system, cell.share) for cell, _ in results.cells}, key=order)


def first_token(answer: Answer) -> float:
    return answer.first


def whole_answer(answer: Answer) -> float:
    return answer.total


def failures(results: Results) -> list[tuple[Cell, int, str]]:
    """Cells with requests that failed: how many, and the first reason."""
    return [
        (cell, len(measured.failures), measured.failures[0]) for cell, measured in results.cells if measured.failures
    ]
