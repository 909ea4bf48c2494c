"""One prompt, a thousand completions, a busy server: how many different ones are there?

    python -m tests.scenarios.thousand [--count 1000] [--json FILE]

Serves the test model on this machine, and sends waves of 1 to 24 requests, quiet phases and bursts, of

- the prompt, deterministic: ``count`` completions, half of them greedy, half with one seed, every third streamed;
- the prompt, ordinary: as many, in the same way: the control;
- neighbours, deterministic and ordinary, with prompts of many lengths that no cache has seen.

Two completions differ if any token, bit of a logprob or character of the text does. Exits with 1 unless there is
exactly one deterministic completion of each kind, and more than one ordinary.
"""

import argparse
import asyncio
import json
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import tests.conftest  # noqa: F401 - the environment of an engine process
from llm42.models.tiny import tiny_model
from tests.e2e.client import Answer, random_prompt
from tests.e2e.cluster import Cluster, ray_cluster
from tests.e2e.conftest import TINY
from tests.scenarios.ask import Request, Side
from tests.scenarios.conditions import fresh_prompt

LARGEST_WAVE = 24
NEIGHBOURS = 0.15
"""Their share of all requests."""
SIDES = {True: "deterministic", False: "ordinary"}
METRICS = ("rollbacks_total", "tokens_committed_total", "tokens_rolled_back_total")

Item = tuple[bool, str]
"""Whether deterministic; and which kind of request."""


@dataclass(frozen=True)
class Plan:
    """``count`` completions of the prompt on either side, half of either kind."""

    count: int = 1000
    prompt_tokens: int = 250
    max_tokens: int = 32
    seed: int = 24

    @property
    def kinds(self) -> dict[str, Request]:
        prompt = tuple(random_prompt(self.seed, self.prompt_tokens))
        return {"greedy": Request(prompt, self.max_tokens), "seeded": Request(prompt, self.max_tokens, self.seed)}

    def waves(self) -> Iterator[list[Item]]:
        """All requests: half of the waves are quiet, with one or two, the others bursts."""
        rng = random.Random(self.seed)
        items = [(flag, kind) for flag in SIDES for kind in self.kinds for _ in range(self.count // len(self.kinds))]
        neighbours = int(len(items) * NEIGHBOURS / (1 - NEIGHBOURS))
        items += [(number % 2 == 0, "neighbour") for number in range(neighbours)]
        rng.shuffle(items)
        while items:
            size = rng.choice((1, 2, rng.randint(3, LARGEST_WAVE), LARGEST_WAVE))
            yield items[:size]
            del items[:size]


def neighbour(rng: random.Random) -> Request:
    seed = rng.choice((None, rng.getrandbits(32)))
    return Request(fresh_prompt(rng.choice((1, 10, 70, 300, 700))), rng.choice((1, 8, 40)), seed)


async def run(plan: Plan, url: str, progress: Progress) -> tuple[dict[Item, Counter[Answer]], set[str | None]]:
    """What was answered, by side and kind; and the fingerprints that answered."""
    rng = random.Random(plan.seed)
    answers: dict[Item, Counter[Answer]] = {(flag, kind): Counter() for flag in SIDES for kind in plan.kinds}
    fingerprints: set[str | None] = set()
    sides = {flag: Side(url, deterministic=flag, first={}, fingerprints=fingerprints) for flag in SIDES}
    waves = list(plan.waves())
    task = progress.add_task("completions", total=sum(map(len, waves)), unique="")

    async def ask(flag: bool, kind: str, stream: bool) -> None:
        if kind == "neighbour":
            await sides[flag].ask(neighbour(rng))
        else:
            answers[flag, kind][await sides[flag].ask(plan.kinds[kind], stream=stream)] += 1
        most = {name: max(len(answers[flag, kind]) for kind in plan.kinds) for flag, name in SIDES.items()}
        progress.update(task, advance=1, unique=", ".join(f"{count} {name}" for name, count in most.items()))

    async with sides[True].openai, sides[False].openai:
        for wave in waves:
            async with asyncio.TaskGroup() as group:
                for number, (flag, kind) in enumerate(wave):
                    group.create_task(ask(flag, kind, stream=number % 3 == 0))
    return answers, fingerprints


def figures(answers: Counter[Answer]) -> dict[str, int | None]:
    """``first_flip`` is the earliest token at which two completions part, from 0."""
    sequences = list({answer.token_ids for answer in answers})
    flips = [
        next(at for at, tokens in enumerate(zip(*pair, strict=True)) if len(set(tokens)) > 1)
        for pair in pairwise(sequences)
    ]
    return {
        "completions": answers.total(),
        "unique": len(answers),
        "unique_tokens": len(sequences),
        "most_common": max(answers.values()),
        "first_flip": min(flips, default=None),
    }


def table(report: dict[str, Any]) -> Table:
    shown = Table(title=f"{report['plan']['count']} completions of one prompt, {report['seconds']:.0f} s")
    for column in ("", "", "completions", "unique", "unique in tokens", "most common", "first flip at token"):
        shown.add_column(column, justify="right" if column else "left")
    for side in SIDES.values():
        for kind, row in report[side].items():
            shown.add_row(side, kind, *("-" if value is None else str(value) for value in row.values()))
    return shown


async def measure(plan: Plan, cluster: Cluster, console: Console) -> dict[str, Any]:
    columns = (
        BarColumn(16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("unique: {task.fields[unique]}"),
    )
    began = time.monotonic()
    with Progress(*columns, console=console) as progress:
        answers, fingerprints = await run(plan, cluster.url, progress)
    seconds = time.monotonic() - began
    await asyncio.sleep(3)  # metrics arrive some seconds late
    metrics = await cluster.metrics()
    waves = [len(wave) for wave in plan.waves()]
    return {
        "plan": asdict(plan),
        "model": "tiny",
        "dtype": TINY["dtype"],
        "waves": len(waves),
        "quiet_waves": sum(size <= 2 for size in waves),
        "requests": sum(waves),
        "seconds": round(seconds, 1),
        "fingerprints": sorted(map(str, fingerprints)),
        "metrics": {name: metrics.get(f"ray_llm42_{name}", 0.0) for name in METRICS},
        "machine": {"platform": platform.machine(), "cpus": psutil.cpu_count(), "torch": version("torch")},
        **{name: {kind: figures(answers[flag, kind]) for kind in plan.kinds} for flag, name in SIDES.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=Plan.count)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    tiny_model()
    with ray_cluster() as cluster:
        with console.status("serving the test model"):
            cluster.deploy(TINY)
        report = asyncio.run(measure(Plan(arguments.count), cluster, console))
    console.print(table(report))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    one = all(row["unique"] == 1 for row in report["deterministic"].values()) and len(report["fingerprints"]) == 1
    control = any(row["unique"] > 1 for row in report["ordinary"].values())
    if not one:
        console.print("[red]deterministic completions differ")
    if not control:
        console.print("[red]ordinary completions do not differ: this run proves nothing")
    return 0 if one and control else 1


if __name__ == "__main__":
    sys.exit(main())
