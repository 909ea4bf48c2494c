"""LoRA adapters on the fast path: a batch of several is what each of them says alone. float32: nothing drifts."""

from dataclasses import replace

import pytest
from vllm.v1.engine import EngineCoreRequest

from llm42.adapters import adapters_of
from llm42.config import Config
from llm42.fastpath.settings import fastpath_engine_args
from llm42.internals.adapters import lora_request
from llm42.models import tiny_adapter
from tests.fastpath.engine_requests import greedy, prompt
from tests.fastpath.test_draft_sampler import answers, running

TOKENS = 12


@pytest.mark.timeout(300)
async def test_nobody_has_the_adapter_of_another(config: Config, environment: None) -> None:
    from llm42.internals.draft_sampler import make_drafting_core

    lisp = tiny_adapter(seed=2, rank=4, modules=("self_attn.v_proj", "lm_head"))
    paths = {"drawl": str(tiny_adapter(seed=1)), "lisp": str(lisp)}
    adapted = config.model_copy(update={"adapters": paths})
    adapters = adapters_of(adapted)

    def asked() -> list[EngineCoreRequest]:
        requests = [greedy(name, prompt(3), TOKENS) for name in ("plain", "drawl", "lisp")]
        for request, adapter in zip(requests[1:], adapters, strict=True):
            request.lora_request = lora_request(adapter)
        return requests

    arguments = fastpath_engine_args(adapted, adapted.model, adapters)
    with running(lambda _: make_drafting_core(arguments, adapters), config, adapters) as engine:
        together = await answers(engine, asked())
        # Of another deploy, whose numbers mean other adapters: vLLM would answer as the one that it has loaded.
        strangers = asked()[1:]
        strangers[0].lora_request = lora_request(replace(adapters[0], number=2))
        strangers[1].lora_request = lora_request(replace(adapters[1], name="stammer", number=3))
        assert await answers(engine, strangers) == {"drawl": (), "lisp": ()}
        alone = [await answers(engine, [request]) for request in asked()]
    assert together == {name: tokens for answer in alone for name, tokens in answer.items()}
    assert len(set(together.values())) == 3
