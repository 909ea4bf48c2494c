"""The report: one Markdown file that says what was measured, on what, and which promises it keeps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm42.bench import plots, tables
from llm42.bench.errors import BenchError
from llm42.bench.results import Results
from llm42.bench.store import Store
from llm42.bench.suite import SUITES, Suite
from llm42.bench.tables import Table
from llm42.bench.targets import Target, targets

MACHINE = "machine"
REPORT = "report.md"
PLOTS = "plots"

_SECTIONS = {
    "offline": (
        "Offline throughput by deterministic share",
        "Closed loop, {lanes} streams. In brackets: over plain vLLM with as many CPU threads in all (a verifier's "
        "are not free). vLLM with as many threads as our drafting engine alone is beside it. Means of {repeats} "
        "interleaved runs of {requests} requests.",
    ),
    "ttft": (
        "Time to first token",
        "Poisson arrivals, seconds from a request's arrival whether or not it was sent late.",
    ),
    "e2e": ("Time to the last token", "Of the same runs."),
    "neighbours": (
        "Ordinary streams beside deterministic ones",
        "Closed loop. Only the ordinary streams are measured; those beside them go on until they are done.",
    ),
    "recompute": (
        "Recomputed tokens and throughput by the shape of a pass",
        "All deterministic, two streams, drafts on {drift} threads: with one, drafts do not drift on a CPU. One run "
        "each.",
    ),
    "cost": ("Verify cost by tokens in a pass", "Bare replay passes in which every row answers, nothing else running."),
    "spans": (
        "Consistent spans",
        "Greedy outputs of plain vLLM against the canonical ones: the position of the first token that differs.",
    ),
    "cpu": (
        "CPU time of a token",
        "In a closed loop, of all processes of a system. `rest` is Ray, or vLLM's frontend.",
    ),
}
_FIGURES = {"offline": "offline", "ttft": "online", "neighbours": "neighbours", "recompute": "recompute"}
_FIGURES |= {"cost": "verify-cost", "spans": "spans"}


def split_models(store: Store) -> dict[tuple[str, str], Results]:
    """By (model, dtype)."""
    found: dict[tuple[str, str], list[Any]] = {}
    for cell, measured in store:
        found.setdefault((cell.model, cell.dtype), []).append((cell, measured))
    return {model: Results(tuple(cells)) for model, cells in sorted(found.items())}


def calibration_name(model: str, dtype: str) -> str:
    """Of the note that a store keeps."""
    return f"calibration-{Path(model).name}-{dtype}"


@dataclass(frozen=True, slots=True)
class Part:
    """What is known of one model. ``figures`` are paths relative to the report."""

    results: Results
    calibration: dict[str, Any] | None
    figures: Mapping[str, str]


def as_markdown(suite: Suite, machine: Mapping[str, Any], models: Mapping[tuple[str, str], Part]) -> str:
    """``models`` by (name, dtype)."""
    lines = ["# LLM-42 benchmark", "", *_machine(suite, machine)]
    for (model, dtype), part in models.items():
        results, calibration, figures = part.results, part.calibration, part.figures
        lines += ["", f"## {model}, {dtype}"]
        judged = targets(results, calibration)
        if any(target.met is not None for target in judged):
            lines += ["", *_targets(judged)]
        for name, table in _tables(results, calibration).items():
            if table:
                title, text = _SECTIONS[name]
                lines += ["", f"### {title}", "", _filled(text, suite, results), "", *markdown(table)]
                if name in _FIGURES and _FIGURES[name] in figures:
                    lines += ["", f"![{title}]({figures[_FIGURES[name]]})"]
        lines += _failures(results)
    return "\n".join(lines) + "\n"


def markdown(table: Table) -> list[str]:
    rows = [table.header, tuple("---" for _ in table.header), *table.rows]
    return [f"| {' | '.join(row)} |" for row in rows]


def _tables(results: Results, calibration: dict[str, Any] | None) -> dict[str, Table]:
    return {
        "offline": tables.offline(results),
        "ttft": tables.latency(results, tables.first_token),
        "e2e": tables.latency(results, tables.whole_answer),
        "neighbours": tables.neighbours(results),
        "recompute": tables.recompute(results),
        "cost": tables.verify_cost(calibration),
        "spans": tables.spans(results),
        "cpu": tables.cpu(results, calibration),
    }


def _filled(text: str, suite: Suite, results: Results) -> str:
    drift = max((cell.system.threads for cell, _ in results.where("recompute").cells), default=0)
    return text.format(lanes=suite.lanes, repeats=suite.repeats, requests=suite.requests, drift=drift)


def _machine(suite: Suite, machine: Mapping[str, Any]) -> Iterator[str]:
    yield f"`llm42 bench run --suite {suite.name}`, begun {machine['when']}."
    yield ""
    lacking = [flag for flag, there in machine["instructions"].items() if not there]
    yield (
        f"Measured on: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
        + (f"; without {', '.join(lacking)}" if lacking else "")
        + ". "
        + (f"GPUs: {', '.join(machine['gpus'])}." if machine["gpus"] else "No GPU: nothing here says anything of GPUs.")
    )
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    yield f"Python {machine['python']}, {versions}. The load generator ran on the same cores, on any of them."
    yield ""
    yield (
        f"Split of {machine['split']['cores']} CPU threads: {machine['split']['drafting']} for our drafting engine and "
        f"{machine['split']['verifying']} for our verifier, {machine['split']['cores']} for vLLM. W = "
        f"{suite.window_size}, G = {suite.verify_batch_size}. Without a GPU our verifier is pinned to its own cores "
        "where there are enough, and all else of ours to the others. All systems of an experiment are alive at once, "
        "and take turns (ABBA). "
        "Square brackets are 95 % bootstrap intervals over whole runs."
    )


def _targets(found: list[Target]) -> Iterator[str]:
    yield "### Targets"
    yield ""
    yield from markdown(
        Table(
            ("target", "limit", "measured", "", "how"),
            tuple(
                (
                    target.name,
                    f"{'≥' if target.at_least else '≤'} {target.limit:g}",
                    str(target.found) if target.found is not None else "",
                    {True: "met", False: "**missed**", None: "not measured"}[target.met],
                    target.note,
                )
                for target in found
            ),
        )
    )


def _failures(results: Results) -> list[str]:
    found = tables.failures(results)
    if not found:
        return []
    lines = [f"- {cell.experiment}, {cell.system.name}: {count} requests, {why}" for cell, count, why in found]
    return ["", "### Requests that failed", "", "They count in nothing above.", "", *lines]


def write(store: Store) -> dict[str, Any]:
    """Draw the plots and the report into the store's directory; returns what can be said of it in a line."""
    machine = store.noted(MACHINE)
    if machine is None:
        raise BenchError(f"{store.path} does not say where it was measured: it holds no results of ours")
    models = {}
    missed: list[str] = []
    count = 0
    for (model, dtype), results in split_models(store).items():
        calibration = store.noted(calibration_name(model, dtype))
        drawn = plots.draw(results, calibration, store.path / PLOTS, f"{Path(model).name}-{dtype}-")
        figures = {figure: f"{PLOTS}/{path.name}" for figure, path in drawn.items()}
        models[model, dtype] = Part(results, calibration, figures)
        judged = targets(results, calibration)
        missed += [f"{model}, {dtype}: {target.name}" for target in judged if target.met is False]
        count += len(results.cells)
    report = store.path / REPORT
    report.write_text(as_markdown(SUITES[machine["suite"]], machine, models))
    return {"report": str(report), "cells": count, "missed": missed}
