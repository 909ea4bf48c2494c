"""A batch against a fake server, as the tests of this folder run it."""

import asyncio
from pathlib import Path
from typing import Any

from llm42.client import Batch, Defaults, Options, Outcome, Store, Summary, make_requests
from tests.client.server import Fake, serving

PROMPTS = [f"prompt {number}" for number in range(12)]
DEFAULTS = Defaults(model="tide", fields={"temperature": 0})


def run(fake: Fake, output: Path, prompts: list[Any] = PROMPTS, **options: Any) -> Summary:
    with serving(fake) as url, Store(output) as store:
        batch = Batch(
            make_requests(prompts, DEFAULTS), store, Options(url, **{"concurrency": 4, "tries": 3, **options})
        )
        asyncio.run(batch.run())
        return batch.summary


def lines(output: Path) -> list[Outcome]:
    return [Outcome.parse(line) for line in output.read_bytes().splitlines()]
