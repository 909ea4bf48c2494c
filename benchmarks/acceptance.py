"""How many drafted tokens does the verifier confirm, greedy and sampled?

    python benchmarks/acceptance.py --base-url http://127.0.0.1:8000 --metrics-url http://127.0.0.1:PORT/metrics

Runs against a server that does nothing else. The metrics are those of the node's Ray, whose session directory names
the port in `prom_metrics_service_discovery.json`. Acceptance is accepted / (drafted and verified) tokens of a mode.
"""

import argparse
import asyncio
import json
from typing import Any

import httpx
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
}
COUNTERS = {
    "verified": "ray_llm42_tokens_verified",
    "accepted": "ray_llm42_tokens_accepted",
    "committed": "ray_llm42_tokens_committed",
    "rollbacks": "ray_llm42_rollbacks",
}
SETTLED_S = 25.0
"""Counters arrive at Ray's metrics port with delay: two of its reporting intervals, and a little more."""


async def counters(url: str) -> dict[str, float]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        text = (await http.get(url)).text
    found = dict.fromkeys(COUNTERS, 0.0)
    for family in text_string_to_metric_families(text):
        for name, metric in COUNTERS.items():
            if family.name == metric:
                found[name] = sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
    return found


async def ask_all(client: AsyncOpenAI, model: str, args: argparse.Namespace, fields: dict[str, Any]) -> None:
    room = asyncio.Semaphore(args.concurrency)

    async def ask(number: int) -> None:
        async with room:
            await client.completions.create(
                model=model,
                prompt=f"Story number {number}. Once upon a time there was a lighthouse keeper who",
                max_tokens=args.tokens,
                seed=number,
                extra_body={"is_deterministic": True, "ignore_eos": True},
                **fields,
            )

    await asyncio.gather(*map(ask, range(args.prompts)))


async def measure(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    client = AsyncOpenAI(base_url=f"{args.base_url.rstrip('/')}/v1", api_key="none", timeout=600, max_retries=0)
    model = (await client.models.list()).data[0].id
    found = {}
    for mode, fields in MODES.items():
        before = await counters(args.metrics_url)
        await ask_all(client, model, args, fields)
        await asyncio.sleep(SETTLED_S)
        after = await counters(args.metrics_url)
        spent = {name: after[name] - before[name] for name in COUNTERS}
        found[mode] = {**spent, "acceptance": round(spent["accepted"] / max(1.0, spent["verified"]), 4)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--metrics-url", required=True)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    if args.json:
        print(json.dumps(found))
        return
    for mode, values in found.items():
        print(f"{mode:8} " + "  ".join(f"{name} {value:g}" for name, value in values.items()))


if __name__ == "__main__":
    main()
