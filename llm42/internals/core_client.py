"""The seam on the router's side: a vLLM ``EngineCoreClient`` that is not an engine.

Relies on vLLM 0.32.0: the methods that ``AsyncLLM`` calls on its core for text generation, and the layout of
``EngineCoreOutput``, ``LogprobsLists`` and ``LogprobsTensors``.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from llm42.internals.draft_sampler import draft_extra_args
from llm42.internals.steering import steering_of
from llm42.internals.structured import grammar_of
from llm42.protocol import Commit, Finish, Scores, Selection, StartDraft, StopRules
from llm42.protocol.errors import NotVerified

_FINISH = {Finish.STOP: FinishReason.STOP, Finish.LENGTH: FinishReason.LENGTH, None: None}


class TextCore(EngineCoreClient):  # type: ignore[misc]
    """What ``AsyncLLM`` needs to know of any core that generates text; subclasses do the work."""

    def __init__(self, adapter_numbers: Mapping[str, int]) -> None:
        self._adapter_numbers = adapter_numbers
        self.resources = SimpleNamespace(engine_dead=False)
        self.engine_ranks_managed = [0]

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_lora_async(self, lora_request: LoRARequest) -> bool:
        """Nothing to do: the engines have loaded theirs. Raises ValueError if this is none of them, by its number."""
        if self._adapter_numbers.get(lora_request.lora_name) != lora_request.lora_int_id:
            raise ValueError(f"the adapter {lora_request.lora_name!r} is not one of this deployment's")
        return True

    async def reset_mm_cache_async(self) -> None:
        """Text only: there is none."""


def stop_rules(request: EngineCoreRequest) -> StopRules:
    """What ends a request by token ids. Stop strings are the frontend's."""
    params = request.sampling_params
    eos = None if params.ignore_eos else params.eos_token_id
    stop_ids = frozenset(params.stop_token_ids or ()) - {eos}
    return StopRules(params.max_tokens, eos, stop_ids)


def selection(request: EngineCoreRequest, structured: Any) -> Selection:
    """How the request's tokens are chosen; ``structured`` is the frontend's ``StructuredOutputsConfig``.

    Raises NotVerified if it asks for what is not verified, and ValueError if it samples without a seed.
    """
    params = request.sampling_params
    _require_supported(params)
    grammar = grammar_of(params, structured, request.reasoning_ended)
    steering = steering_of(params, len(request.prompt_token_ids), grammar)
    return Selection.of(params.temperature, params.top_p, params.top_k, params.min_p, params.seed, steering)


def adapter_of(request: EngineCoreRequest) -> str:
    """The name of the LoRA adapter that it asks for; "" for the model itself."""
    return "" if request.lora_request is None else str(request.lora_request.lora_name)


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
    request: EngineCoreRequest, request_id: str, order: StartDraft, selection: Selection, *, margins: bool = False
) -> EngineCoreRequest:
    """The engine request that drafts ``order`` for ``request``: its tokens, and none of its extras.

    vLLM is told to be greedy, and the draft sampler to choose as the verifier will; with ``margins``, to say by how
    much.
    """
    from vllm.sampling_params import RequestOutputKind

    params = request.sampling_params.clone()
    params.temperature, params.top_p, params.top_k, params.min_p, params.seed = 0.0, 1.0, 0, 0.0, None
    vars(params).pop("sampling_type", None)  # cached from the values before
    params.presence_penalty, params.frequency_penalty, params.repetition_penalty = 0.0, 0.0, 1.0
    params.logit_bias = params.allowed_token_ids = params.structured_outputs = None
    params.bad_words, params._bad_words_token_ids = [], None
    params.min_tokens, params.max_tokens = 0, order.max_tokens
    params.logprobs = params.prompt_logprobs = None
    params.skip_reading_prefix_cache = None  # set where prompt logprobs are asked for
    params.stop = []
    params.extra_args = draft_extra_args(selection, margins=margins)
    params.output_kind = RequestOutputKind.DELTA
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(order.tokens),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=request.arrival_time,
        lora_request=request.lora_request,
        cache_salt=request.cache_salt,
        data_parallel_rank=None,
        priority=request.priority,
        trace_headers=request.trace_headers,
    )


def scores_wanted(request: EngineCoreRequest) -> tuple[int, bool]:
    """How many alternatives its client wants to see with each token, and whether the prompt's tokens as well."""
    params = request.sampling_params
    return max(params.logprobs or 0, params.prompt_logprobs or 0), params.prompt_logprobs is not None


def commit_output(request: EngineCoreRequest, commit: Commit) -> EngineCoreOutput:
    """A commit as vLLM's own engine would have said it. The frontend cuts it where a stop string ends."""
    params, prompt = request.sampling_params, commit.prompt
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=list(commit.scores.tokens),
        new_logprobs=None if params.logprobs is None else LogprobsLists(*_columns(commit.scores, params.logprobs)),
        new_prompt_logprobs_tensors=None
        if prompt is None
        else LogprobsTensors(*map(torch.from_numpy, _columns(prompt, params.prompt_logprobs))),
        finish_reason=_FINISH[commit.finish],
        stop_reason=commit.stop_token,
    )


def _columns(scores: Scores, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids and logprobs [tokens, 1 + top], the token itself first, and its ranks [tokens]."""

    def table(own: np.ndarray, others: bytes) -> np.ndarray:
        alternatives = np.frombuffer(others, dtype=own.dtype).reshape(len(scores), scores.top)
        return np.concatenate([own[:, None], alternatives[:, :top]], axis=1)

    tokens = table(np.asarray(scores.tokens, dtype=np.int32), scores.top_tokens)
    logprobs = table(np.frombuffer(scores.logprobs, dtype=np.float32), scores.top_logprobs)
    return tokens, logprobs, np.asarray(scores.ranks, dtype=np.int32)


def _require_supported(params: Any) -> None:
    """The middleware has refused these by name already; this is the last gate, on what vLLM made of the request."""
    wrong = ["n"] if params.n != 1 else []
    wrong += [name for name in ("logprobs", "prompt_logprobs") if (getattr(params, name) or 0) < 0]
    absent = ("logprob_token_ids", "thinking_token_budget", "repetition_detection", "watermarking")
    wrong += [name for name in absent if getattr(params, name)]
    if wrong:
        raise NotVerified(wrong[0], f"{wrong[0]} is not verified for deterministic requests yet: leave it out")
