"""Steering is vLLM's: against its own sampler's functions, row by row, in the order in which it calls them."""

import pytest
import torch
import xgrammar
from torch import Tensor
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import (
    BUILTIN_LOGITS_PROCESSORS,
    BatchUpdate,
    LogitsProcessors,
    MinPLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from llm42.protocol.steering import Steering
from llm42.sampling.steer import steer
from tests.sampling.steerings import FEATURES, Window, window

PAIRS = [[a, b] for i, a in enumerate(FEATURES) for b in FEATURES[i + 1 :]]


@pytest.mark.parametrize(
    "features", [*([name] for name in FEATURES), *PAIRS, FEATURES[:3], FEATURES], ids=lambda names: "+".join(names)
)
def test_bits_are_vllms(features: list[str]) -> None:
    for seed in range(25):
        it = window(features, seed)
        ours = steer(it.logits, it.steering, it.tokens, it.start, it.masks)
        assert torch.equal(_raw(ours), _raw(of_vllm(it))), seed


def _raw(values: Tensor) -> Tensor:
    # vLLM subtracts 0 from what a penalty does not concern, and so makes 0.0 of some -0.0: no choice sees this.
    return (values + 0.0).view(torch.int32)


def of_vllm(it: Window) -> Tensor:
    """Each row as a request of its own in one batch, with the tokens up to this row."""
    rows, vocabulary = it.logits.shape
    so_far = [it.tokens[: it.start + row + 1].tolist() for row in range(rows)]
    prompts = [tokens[: it.steering.prompt_tokens] for tokens in so_far]
    outputs = [tokens[it.steering.prompt_tokens :] for tokens in so_far]
    device = torch.device("cpu")
    processors = [kind(None, device, False) for kind in BUILTIN_LOGITS_PROCESSORS if kind is not MinPLogitsProcessor]
    added = [(row, _params(it.steering), prompts[row], outputs[row]) for row in range(rows)]
    for processor in processors:
        processor.update_state(BatchUpdate(rows, removed=(), added=added, moved=()))
    logits = it.logits.clone()
    if it.masks is not None:
        xgrammar.apply_token_bitmask_inplace(logits, it.masks)
    metadata = _metadata(it.steering, prompts, outputs, vocabulary, LogitsProcessors(processors))
    return Sampler().apply_logits_processors(logits, metadata, predict_bonus_token=False)


def _params(steering: Steering) -> SamplingParams:
    return SamplingParams(
        max_tokens=None,
        min_tokens=steering.min_tokens,
        stop_token_ids=list(steering.stops),
        logit_bias=dict(steering.logit_bias),
        structured_outputs=None if steering.grammar is None else StructuredOutputsParams(json_object=True),
    )


def _metadata(
    steering: Steering,
    prompts: list[list[int]],
    outputs: list[list[int]],
    vocabulary: int,
    processors: LogitsProcessors,
) -> SamplingMetadata:
    rows = len(prompts)
    longest = max(map(len, prompts))
    not_allowed = None
    if steering.allowed is not None:
        not_allowed = torch.ones(rows, vocabulary, dtype=torch.bool)
        not_allowed[:, list(steering.allowed)] = False
    return SamplingMetadata(
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=(steering.presence_penalty, steering.frequency_penalty, steering.repetition_penalty) == (0, 0, 1),
        prompt_token_ids=torch.tensor([prompt + [vocabulary] * (longest - len(prompt)) for prompt in prompts]),
        frequency_penalties=torch.full((rows,), steering.frequency_penalty),
        presence_penalties=torch.full((rows,), steering.presence_penalty),
        repetition_penalties=torch.full((rows,), steering.repetition_penalty),
        output_token_ids=outputs,
        allowed_token_ids_mask=not_allowed,
        bad_words_token_ids={row: [list(word) for word in steering.bad_words] for row in range(rows)}
        if steering.bad_words
        else {},
        logitsprocs=processors,
    )
