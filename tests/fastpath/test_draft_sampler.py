"""Drafts choose as the verifier does, on a real vLLM core; whoever shares the batch with them notices nothing."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llm42.adapters import Adapter
from llm42.config import Config
from llm42.fastpath.engine import DraftEngine
from llm42.fastpath.mailbox import Mailbox
from llm42.fastpath.settings import fastpath_engine_args
from llm42.protocol import GREEDY, Grammar, Question, ReplayRequest, Selection, Steering, pack_tokens
from llm42.sampling import race_margins
from tests.fastpath.conftest import MAX_MODEL_LEN
from tests.fastpath.engine_requests import greedy, prompt

ITEM_S = 60.0
GRAMMAR = Grammar("regex", "[a-z ]{1500}")
SELECTIONS = [
    Selection(1.0, seed=1),
    Selection(0.8, top_p=0.95, top_k=50, seed=2**64 - 1),
    Selection(1.5, top_p=0.9, seed=3),
    Selection(1.2, min_p=0.05, seed=4),
    Selection(1.0, top_k=20, seed=5),
    GREEDY,
    Selection(
        0.9,
        seed=6,
        steering=Steering(
            len(prompt(6)),
            presence_penalty=0.5,
            frequency_penalty=0.3,
            repetition_penalty=1.2,
            logit_bias=((5, 3.0), (100, -50.0)),
            min_tokens=10,
            stops=(0, 2),
            bad_words=((7,), (9, 11)),
        ),
    ),
    Selection(steering=Steering(len(prompt(7)), repetition_penalty=1.5)),
    Selection(1.0, top_p=0.9, seed=7, steering=Steering(len(prompt(8)), grammar=GRAMMAR)),
    Selection(1.5, top_p=0.9, seed=8),  # worked on together with another
]
LENGTHS = [60, 9, 47, 23, 35, 50, 40, 30, 33, 41]
"""Of the drafts: their rows in the batch move when others end."""


def draft(request_id: str, tokens: list[int], max_tokens: int, selection: Selection, *, margins: bool = False) -> Any:
    from llm42.internals.draft_sampler import draft_extra_args

    request = greedy(request_id, tokens, max_tokens)
    request.sampling_params.extra_args = draft_extra_args(selection, margins=margins)
    return request


def ordinary(request_id: str, tokens: list[int], max_tokens: int, **sampling: Any) -> Any:
    from vllm import SamplingParams

    request = greedy(request_id, tokens, max_tokens)
    request.sampling_params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False, **sampling)
    return request


def neighbours() -> list[Any]:
    """Ordinary requests. Two have seeds of vLLM's own, of which one, being penalised, needs its output tokens."""
    return [
        ordinary("greedy", prompt(20), 41, temperature=0.0),
        ordinary("seeded", prompt(21), 52, temperature=1.0, seed=7, top_p=0.95),
        ordinary("penalised", prompt(22), 30, temperature=0.9, seed=8, presence_penalty=1.0),
    ]


@contextmanager
def running(
    make_core: Callable[[dict[str, Any]], Any], config: Config, adapters: Sequence[Adapter] = ()
) -> Iterator[DraftEngine]:
    engine = DraftEngine(partial(make_core, fastpath_engine_args(config, config.model)), adapters=adapters)
    yield engine
    engine.shutdown(20)


async def answers(
    engine: DraftEngine, requests: list[Any], margins: dict[str, list[float]] | None = None
) -> dict[str, tuple[int, ...]]:
    """The tokens by request id; none for a request that was refused. ``margins`` gets those that are told."""
    from llm42.internals.draft_margins import draft_margins

    mailbox = Mailbox("test", asyncio.get_running_loop())
    engine.open(mailbox)
    tokens: dict[str, tuple[int, ...]] = {request.request_id: () for request in requests}
    engine.submit(mailbox, requests)
    left = len(requests)
    while left:
        outputs = await mailbox.take(ITEM_S)
        assert outputs, "nothing came"
        for output in outputs:
            tokens[output.request_id] += tuple(output.new_token_ids)
            if margins is not None:
                margins.setdefault(output.request_id, []).extend(draft_margins(output))
            left -= output.finished
    engine.close(mailbox)
    return tokens


@pytest.mark.timeout(500)
async def test_seeded_drafts(config: Config, environment: None) -> None:
    """One engine after another: two that compute in one process would share scratch memory."""
    from llm42.internals.draft_sampler import make_drafting_core
    from llm42.protocol.selection import EXTRA_ARG
    from llm42.verifier.engine import ReplayEngine

    drafts = [
        draft(f"d{i}", prompt(i), length, selection)
        for i, (selection, length) in enumerate(zip(SELECTIONS, LENGTHS, strict=True))
    ]
    with running(make_drafting_core, config) as engine:
        samplers = engine.core.client.collective_rpc(take_out)
        plain = await answers(engine, neighbours())
        engine.core.client.reset_prefix_cache()
        engine.core.client.collective_rpc(put_back, args=samplers)
        assert await answers(engine, neighbours()) == plain
        await compiled(engine)
        others = neighbours()
        mixed = await answers(engine, [drafts[0], others[0], *drafts[1:3], others[1], *drafts[3:], others[2]])
        assert {name: mixed[name] for name in plain} == plain
        drafted = [mixed[f"d{i}"] for i in range(len(drafts))]
        assert [len(tokens) for tokens in drafted] == LENGTHS
        await margins_are_those_of_the_logits(engine, mixed)
        # From the middle: a draft is resumed at an absolute position.
        resumed = draft("resumed", [*prompt(0), *drafted[0][:25]], 35, SELECTIONS[0])
        moved = draft("moved", prompt(0), 60, Selection(1.0, seed=2))
        again = await answers(engine, [moved, resumed])
        assert again["resumed"] == drafted[0][25:]
        assert again["moved"] != drafted[0], "another seed"
        # What is wrong with one draft is its own end.
        bad = [greedy(f"bad{i}", prompt(0), 5) for i in range(4)]
        fields = [1.0, 1.0, 0, 0.0, 1]
        for request, value in zip(bad, ("x", [1.0, 1.0, 2.5, 0.0, 1], [-1.0, *fields[1:]], [*fields, 0]), strict=True):
            request.sampling_params.extra_args = {EXTRA_ARG: value}
        refused = await answers(engine, [*bad, draft("good", prompt(1), 9, SELECTIONS[1])])
        assert refused == {**{f"bad{i}": () for i in range(4)}, "good": drafted[1]}
        # vLLM makes steps wait for the last one's tokens if this is set, or this not empty.
        [(needed, synchronised)] = engine.core.client.collective_rpc(output_tokens)
        assert (needed, synchronised) == (False, [])

    verifier = ReplayEngine(
        Config.model_validate(
            {
                "model": config.model,
                "dtype": config.dtype,
                "max_model_len": MAX_MODEL_LEN,
                "verify_batch_size": 4,
                "verifier": {"engine": {"kv_cache_memory_bytes": 64 << 20}},
            }
        ),
        config.model,
    )
    for i, (selection, tokens) in enumerate(zip(SELECTIONS, drafted, strict=True)):
        asked = pack_tokens([*prompt(i), *tokens[:-1]])
        reply = await verifier.replay(ReplayRequest("test", Question(asked, len(prompt(i)) - 1, selection)))
        assert tuple(reply.scores.tokens) == tokens, selection
    question = Question(pack_tokens([*prompt(0), *drafted[0][:-1]]), len(prompt(0)) - 1, SELECTIONS[2])
    wrong = await verifier.replay(ReplayRequest("test", question))
    assert tuple(wrong.scores.tokens) != drafted[0], "the comparison sees another selection"
    await verifier.close()


async def margins_are_those_of_the_logits(engine: DraftEngine, before: dict[str, tuple[int, ...]]) -> None:
    """Each draft's own, token by token, as bits; and to ask for them changes no token of anybody."""
    assert engine.core.margins is not None
    seen: list[dict[tuple[str, int], torch.Tensor]] = []
    engine.core.client.collective_rpc(record_logits, args=(seen,))
    cases = list(enumerate(zip(SELECTIONS, LENGTHS, strict=True)))
    asking = [draft(f"d{i}", prompt(i), length, selection, margins=True) for i, (selection, length) in cases]
    told: dict[str, list[float]] = {}
    assert await answers(engine, [*asking, *neighbours()], told) == before
    logits = {choice: row for step in seen for choice, row in step.items()}
    for i, (selection, length) in cases:
        margins = told[f"d{i}"]
        assert len(margins) == length
        if selection.steering is not None:
            assert set(margins) == {math.inf}, "not told of steered drafts"
            continue
        rows = [logits[f"test/d{i}", number] for number in range(length)]
        if selection == GREEDY:
            ordered = [row.sort(descending=True).values[:2] for row in rows]
            assert margins == [float(best - second) for best, second in ordered]
        else:
            tokens = [torch.tensor([token]) for token in before[f"d{i}"]]
            first = len(prompt(i)) - 1
            assert margins == [
                float(race_margins(row[None], [selection], [first + number], token))
                for number, (row, token) in enumerate(zip(rows, tokens, strict=True))
            ]
        assert len(set(margins)) > 1
    assert not any(told[request.request_id] for request in neighbours())
    assert not engine._told
    engine.core.client.collective_rpc(stop_recording)


def take_out(worker: Any) -> Any:
    """Runs in the worker, which is in this process: vLLM as it comes."""
    return worker.model_runner.input_batch.logitsprocs.non_argmax_invariant.pop()


def put_back(worker: Any, sampler: Any) -> None:
    """Runs in the worker."""
    worker.model_runner.input_batch.logitsprocs.non_argmax_invariant.append(sampler)


def record_logits(worker: Any, seen: list[dict[tuple[str, int], torch.Tensor]]) -> None:
    """Runs in the worker, which is in this process: what each draft that asks for margins is about to choose from."""
    sampler = worker.model_runner.input_batch.logitsprocs.non_argmax_invariant[-1]
    apply = sampler.apply

    def recording(logits: torch.Tensor) -> torch.Tensor:
        asking = {index: one for index, one in sampler._drafts.items() if one.name is not None}
        seen.append({one.choice: logits[index].clone() for index, one in asking.items()})
        return apply(logits)  # type: ignore[no-any-return]

    sampler.apply = recording


def stop_recording(worker: Any) -> None:
    """Runs in the worker."""
    del worker.model_runner.input_batch.logitsprocs.non_argmax_invariant[-1].apply


async def compiled(engine: DraftEngine) -> None:
    """Until then, drafts do not know the grammar."""
    async with asyncio.timeout(60):
        while engine.core.client.collective_rpc(grammar_state, args=(GRAMMAR.fields,)) != ["ready"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def grammar_state(worker: Any, fields: list[Any]) -> str:
    """Runs in the worker."""
    sampler = worker.model_runner.input_batch.logitsprocs.non_argmax_invariant[-1]
    return str(sampler._grammars.prepare(Grammar.of_fields(fields))[0])


def output_tokens(worker: Any) -> tuple[bool, list[Any]]:
    """Runs in the worker."""
    batch = worker.model_runner.input_batch
    return batch.logitsprocs_need_output_token_ids, batch.sampling_metadata.output_token_ids


def test_rows_without_a_valid_choice_and_rows_of_others(environment: None) -> None:
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    from llm42.internals.draft_sampler import DraftSampler, draft_extra_args
    from llm42.internals.grammar_tokenizer import make_grammar_masks

    sampler = DraftSampler(make_grammar_masks(SimpleNamespace(get_vocab_size=lambda: 500)), None)
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    assert sampler.apply(logits) is logits
    assert torch.equal(logits, before)

    drafting = SamplingParams(temperature=0.0, extra_args=draft_extra_args(SELECTIONS[2]))
    added = [(row, drafting, [1, 2], []) for row in (0, 2)] + [(row, SamplingParams(), [1], []) for row in (1, 3)]
    sampler.update_state(BatchUpdate(batch_size=4, removed=[], added=added, moved=[]))
    logits[0, 7], logits[2] = float("nan"), float("-inf")
    sampler.apply(logits)
    assert torch.equal(logits[[1, 3]], before[[1, 3]])
    assert logits[[0, 2]].isfinite().sum(dim=-1).tolist() == [1, 1]

    moved = [(3, 0, MoveDirectionality.UNIDIRECTIONAL), (1, 2, MoveDirectionality.SWAP)]
    sampler.update_state(BatchUpdate(batch_size=3, removed=[0], added=[], moved=moved))
    logits = before.clone()
    sampler.apply(logits)
    assert torch.equal(logits[[0, 2, 3]], before[[0, 2, 3]])
    assert logits[1].isfinite().sum() == 1
