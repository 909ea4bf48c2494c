"""How fast is replay, and where does its time go? Against vLLM's own prefill with prompt logprobs.

Both score every position of the same random prompts, with the same model, dtype and threads, in one process:

    python benchmarks/replay.py --model tiny --dtype float32 --json

`share_in_model` is the time in forward and LM head over all time from the first request to the last answer.
`rate_vs_vllm` is tokens per second over vLLM's.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from typing import Any

from llm42.config import Config
from llm42.environment import OFFLINE_ENV
from llm42.models import resolve_model
from llm42.protocol import Question
from llm42.protocol.messages import ReplayRequest, pack_tokens
from llm42.verifier.passes import PassInput, PassOutput
from llm42.verifier.settings import verifier_env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--verify-batch-size", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="per prompt")
    parser.add_argument("--repeats", type=int, default=3, help="alternating; medians are reported")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = Config.model_validate(
        {
            "model": options.model,
            "dtype": options.dtype,
            "max_model_len": max(options.tokens + 32, 512),
            "verify_batch_size": options.verify_batch_size,
            "verifier": {"engine": {"kv_cache_memory_bytes": 512 << 20}},
        }
    )
    os.environ.update({**OFFLINE_ENV, **verifier_env(config)})
    result = asyncio.run(measure(config, options))
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


async def measure(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from llm42.verifier.engine import ReplayEngine

    path = resolve_model(config.model)
    engine = ReplayEngine(config, path)
    baseline = Baseline(config, path)
    rng = np.random.default_rng(0)
    rounds = []
    for _ in range(options.repeats + 1):
        prompts = rng.integers(0, 49152, (options.prompts, options.tokens)).tolist()
        rounds.append((await replay_rate(engine, prompts), baseline.rate(prompts)))
    rounds = rounds[1:]  # the first warms both up
    replayed, shares = zip(*(ours for ours, _ in rounds), strict=True)
    vllm = statistics.median(theirs for _, theirs in rounds)
    await engine.close()
    return {
        "model": config.model,
        "dtype": config.dtype,
        "verify_batch_size": config.verify_batch_size,
        "window_size": config.window_size,
        "prompts": options.prompts,
        "tokens": options.tokens,
        "replay_tokens_per_s": round(statistics.median(replayed), 1),
        "vllm_tokens_per_s": round(vllm, 1),
        "rate_vs_vllm": round(statistics.median(replayed) / vllm, 3),
        "share_in_model": round(statistics.median(share["model"] for share in shares), 3),
        "share_in_select": round(statistics.median(share["select"] for share in shares), 3),
    }


async def replay_rate(engine: Any, prompts: list[list[int]]) -> tuple[float, dict[str, float]]:
    """Tokens per second, and shares of the elapsed time."""
    spent: list[list[float]] = []
    run = engine._model.run

    async def timed(given: PassInput) -> PassOutput:
        output: PassOutput = await run(given)
        spent.append(output.seconds)
        return output

    engine._model.run = timed
    began = time.perf_counter()
    await asyncio.gather(
        *(engine.replay(ReplayRequest("bench", Question(pack_tokens(tokens), 0))) for tokens in prompts)
    )
    elapsed = time.perf_counter() - began
    engine._model.run = run
    in_model, in_head, in_select = (sum(part) / elapsed for part in zip(*spent, strict=True))
    return sum(map(len, prompts)) / elapsed, {"model": in_model + in_head, "select": in_select}


class Baseline:
    """vLLM's own engine with its defaults, scoring prompts."""

    def __init__(self, config: Config, model_path: str) -> None:
        from llm42.internals.engine_core import make_engine_core

        self._client = make_engine_core(
            {
                "model": model_path,
                "dtype": config.dtype,
                "max_model_len": config.max_model_len,
                "kv_cache_memory_bytes": 512 << 20,
                "enforce_eager": True,
                "disable_log_stats": True,
            }
        ).client
        self._asked = 0

    def rate(self, prompts: list[list[int]]) -> float:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        began = time.perf_counter()
        for tokens in prompts:
            self._asked += 1
            params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
            self._client.add_request(
                EngineCoreRequest(
                    request_id=str(self._asked),
                    prompt_token_ids=tokens,
                    mm_features=None,
                    sampling_params=params,
                    pooling_params=None,
                    arrival_time=time.time(),
                    lora_request=None,
                    cache_salt=None,
                    data_parallel_rank=None,
                )
            )
        left = len(prompts)
        while left:
            left -= sum(output.finish_reason is not None for output in self._client.get_output().outputs)
        return sum(map(len, prompts)) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
