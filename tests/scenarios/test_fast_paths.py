"""Another fast path behind the same verifier: not a bit moves, and the fingerprint stays.

Each is deployed anew, so all caches are cold; what counts is what the deployment of the other tests has answered.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import TINY
from tests.scenarios.ask import request
from tests.scenarios.conditions import repeated, together
from tests.scenarios.conftest import Ask

REQUESTS = [request(400 + number, length) for number, length in enumerate((600, 33, 300, 64, 150))]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def with_fast_path(engine: dict[str, Any], **fields: Any) -> dict[str, Any]:
    fast_path = TINY["fast_path"]
    return {**TINY, "fast_path": {**fast_path, **fields, "engine": {**fast_path["engine"], **engine}}}


async def unchanged(cluster: Cluster, ask_of: Ask, args: dict[str, Any], *, seeded: bool = True) -> None:
    """The ordinary path, in contrast, is another one, and shows it."""
    asked = [one if seeded else replace(one, seed=None) for one in REQUESTS]
    cluster.deploy(TINY)
    async with ask_of(cluster) as sides:
        for side in (sides.deterministic, sides.ordinary):
            for one in asked:
                await side.alone(one)
    cluster.deploy(args)
    async with ask_of(cluster) as sides:
        await sides.contrast(asked, repeated(1), control="bits")
        await sides.contrast(asked, together(3), control=None)


async def test_chunked_prefill_differs(ray_and_serve: Cluster, ask_of: Ask) -> None:
    """vllm#5952: chunked prefill answers otherwise than unchunked. Chunks of 64 here, against none.

    Greedy only: vLLM winds a seeded request's generator back after a chunk, which no CPU generator can.
    """
    chunked = {"enable_chunked_prefill": True, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    await unchanged(ray_and_serve, ask_of, with_fast_path(chunked), seeded=False)


async def test_answer_varies_without_prefix_cache(ray_and_serve: Cluster, ask_of: Ask) -> None:
    """vllm#23138: on against off."""
    await unchanged(ray_and_serve, ask_of, with_fast_path({"enable_prefix_caching": False}))


async def test_n_gram_speculation_diverges(ray_and_serve: Cluster, ask_of: Ask) -> None:
    """vllm#41758 (n-gram: 20 of 20 diverge), vllm#42517 (MTP: at token 99): speculation answers otherwise.

    A drafter may speculate as it likes. Greedy only: drafting with a seed excludes vLLM's speculation.
    """
    await unchanged(ray_and_serve, ask_of, with_fast_path({"speculative_config": NGRAM}), seeded=False)


async def test_tensor_parallel_differs_from_one_rank(ray_and_serve: Cluster, ask_of: Ask) -> None:
    """vllm#51290 (fused all-reduce), vllm#11204, llm_reproducibility#7 (TP 4 against TP 1).

    Two ranks draft, and one verifies as before. Verifiers of several ranks are another fingerprint.
    """
    await unchanged(ray_and_serve, ask_of, with_fast_path({"tensor_parallel_size": 2}))


async def test_another_precision_differs(ray_and_serve: Cluster, ask_of: Ask) -> None:
    """A quantised or otherwise rounded drafter: float32 here, beside a verifier in bfloat16."""
    await unchanged(ray_and_serve, ask_of, with_fast_path({"dtype": "float32"}))
