"""One stream at a time: how much longer does a deterministic answer take than an ordinary one?

    python benchmarks/stream.py --base-url http://127.0.0.1:8000 [--tokens 256] [--pairs 5] [--json]

Runs against a server that does nothing else. Each pair asks one prompt of its own twice, ordinary and deterministic
in alternating order, streamed, `ignore_eos`, temperature 0. Times are wall-clock seconds at the client.
"""

import argparse
import json
import statistics
import time
from typing import Any

from openai import OpenAI


def stream(client: OpenAI, model: str, prompt: str, tokens: int, deterministic: bool) -> dict[str, float]:
    extra: dict[str, Any] = {"ignore_eos": True, "is_deterministic": deterministic}
    began = time.perf_counter()
    first = last = 0.0
    longest = 0.0
    chunks = client.completions.create(
        model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body=extra
    )
    for _ in chunks:
        now = time.perf_counter() - began
        first = first or now
        longest = max(longest, now - last)
        last = now
    return {"first_token_s": first, "total_s": last, "longest_gap_s": longest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    client = OpenAI(base_url=f"{args.base_url.rstrip('/')}/v1", api_key="none", timeout=600, max_retries=0)
    model = client.models.list().data[0].id
    for deterministic in (False, True):
        stream(client, model, "Warm up.", 16, deterministic)
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for pair in range(args.pairs):
        prompt = f"Story number {pair}. Once upon a time there was a lighthouse keeper who"
        for deterministic in (False, True) if pair % 2 else (True, False):
            runs[deterministic].append(stream(client, model, prompt, args.tokens, deterministic))
    ratios = [d["total_s"] / o["total_s"] for d, o in zip(runs[True], runs[False], strict=True)]
    result = {
        "model": model,
        "tokens": args.tokens,
        "pairs": args.pairs,
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        **{
            f"{name}_{figure}": round(statistics.median(run[figure] for run in runs[deterministic]), 3)
            for name, deterministic in (("ordinary", False), ("deterministic", True))
            for figure in ("first_token_s", "total_s", "longest_gap_s")
        },
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
