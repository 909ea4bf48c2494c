"""Requests for the tests."""

import random
import time
from typing import Any


def prompt(seed: int, length: int = 24) -> list[int]:
    """Some token ids, the same for the same seed; for a negative one, an id that no model has."""
    if seed < 0:
        return [10**6]
    return random.Random(seed).choices(range(10, 40_000), k=length)


def greedy(request_id: str, tokens: list[int], max_tokens: int) -> Any:
    """A greedy ``EngineCoreRequest`` that stops only for its length."""
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=tokens,
        mm_features=None,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
