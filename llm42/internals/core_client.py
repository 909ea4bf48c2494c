"""The seam on the router's side: a vLLM ``EngineCoreClient`` that is not an engine.

Relies on vLLM 0.32.0: the methods that ``AsyncLLM`` calls on its core for text generation, and the layout of
``EngineCoreOutput`` and ``LogprobsLists``.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.outputs import LogprobsLists

from llm42.internals.draft_sampler import draft_extra_args
from llm42.protocol import Commit, Finish, Selection, StartDraft, StopRules

_FINISH = {Finish.STOP: FinishReason.STOP, Finish.LENGTH: FinishReason.LENGTH, None: None}


class TextCore(EngineCoreClient):  # type: ignore[misc]
    """What ``AsyncLLM`` needs to know of any core that generates text; subclasses do the work."""

    def __init__(self) -> None:
        self.resources = SimpleNamespace(engine_dead=False)
        self.engine_ranks_managed = [0]

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def reset_mm_cache_async(self) -> None:
        """Text only: there is none."""


def stop_rules(request: EngineCoreRequest) -> StopRules:
    """What ends a request by token ids. Stop strings are the frontend's."""
    params = request.sampling_params
    eos = None if params.ignore_eos else params.eos_token_id
    stop_ids = frozenset(params.stop_token_ids or ()) - {eos}
    return StopRules(params.max_tokens, eos, stop_ids)


def selection(request: EngineCoreRequest) -> Selection:
    """How the request's tokens are chosen. Raises ValueError if it samples without a seed."""
    params = request.sampling_params
    return Selection.of(params.temperature, params.top_p, params.top_k, params.min_p, params.seed)


def choice_of(request: EngineCoreRequest) -> tuple[int, int]:
    """Which choice of its HTTP request it answers: the number of the prompt, and of the sample among its ``n``.

    vLLM numbers prompts at the end of the id, and samples in front of it; sample i has the request's seed + i.
    """
    sample, _, rest = request.request_id.partition("_")
    _, _, prompt = (request.external_req_id or "").rpartition("-")
    return _number(prompt), _number(sample) if rest else 0


def _number(text: str) -> int:
    """0 for what is no number of vLLM's: a client may name its request as it likes."""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def draft_request(
    request: EngineCoreRequest, request_id: str, order: StartDraft, selection: Selection
) -> EngineCoreRequest:
    """The engine request that drafts ``order`` for ``request``: its tokens, and none of its extras.

    vLLM is told to be greedy, and the draft sampler to choose as the verifier will.
    """
    from vllm.sampling_params import RequestOutputKind

    params = request.sampling_params.clone()
    params.temperature, params.top_p, params.top_k, params.min_p, params.seed = 0.0, 1.0, 0, 0.0, None
    vars(params).pop("sampling_type", None)  # cached from the values before
    params.max_tokens = order.max_tokens
    params.logprobs = None
    params.stop = []
    params.extra_args = draft_extra_args(selection)
    params.output_kind = RequestOutputKind.DELTA
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(order.tokens),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=request.arrival_time,
        lora_request=None,
        cache_salt=request.cache_salt,
        data_parallel_rank=None,
        priority=request.priority,
        trace_headers=request.trace_headers,
    )


def commit_output(request: EngineCoreRequest, commit: Commit) -> EngineCoreOutput:
    """A commit as vLLM's own engine would have said it. The frontend cuts it where a stop string ends."""
    wanted = request.sampling_params.logprobs
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=list(commit.tokens),
        new_logprobs=None if wanted is None else _logprobs(commit, 1 + wanted),
        finish_reason=_FINISH[commit.finish],
        stop_reason=commit.stop_token,
    )


def _logprobs(commit: Commit, columns: int) -> LogprobsLists:
    """[tokens, columns]: the chosen token, and (one more column, if greedy) the top one, which is the same."""
    tokens = np.asarray(commit.tokens, dtype=np.int32)
    logprobs = np.frombuffer(commit.logprobs, dtype=np.float32)
    return LogprobsLists(
        np.repeat(tokens[:, None], columns, axis=1),
        np.repeat(logprobs[:, None], columns, axis=1),
        np.asarray(commit.ranks),
    )


def unsupported(params: Any) -> str | None:
    """The first sampling parameter of a deterministic request that the verifier does not compute, if any.

    The middleware has refused these by name already; this is the last gate, on what vLLM made of the request.
    """
    neutral = {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "prompt_logprobs": None,
    }
    for name, value in neutral.items():
        if getattr(params, name) != value:
            return name
    absent = "logit_bias bad_words allowed_token_ids structured_outputs logprob_token_ids thinking_token_budget"
    for name in (*absent.split(), "repetition_detection", "watermarking"):
        if getattr(params, name):
            return name
    most = 1 if params.temperature == 0 else 0
    return "logprobs" if (params.logprobs or 0) not in range(most + 1) else None
