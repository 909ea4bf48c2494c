"""The engine's thread, on a real vLLM core in this process."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from llm42.config import Config
from llm42.fastpath.engine import DraftEngine
from llm42.fastpath.errors import EngineDead, StreamEnded
from llm42.fastpath.mailbox import Mailbox
from llm42.fastpath.settings import fastpath_engine_args
from tests.fastpath.conftest import MAX_MODEL_LEN
from tests.fastpath.engine_requests import greedy, prompt

TOKENS = 40
ITEM_S = 20.0


@pytest.fixture(scope="module")
def expected(config: Config, environment: None) -> list[list[int]]:
    """What vLLM's own offline engine answers, one prompt at a time."""
    from vllm import LLM, SamplingParams

    llm = LLM(**fastpath_engine_args(config, config.model))
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    answers = [
        list(llm.generate({"prompt_token_ids": prompt(seed)}, params, use_tqdm=False)[0].outputs[0].token_ids)
        for seed in range(4)
    ]
    llm.llm_engine.engine_core.shutdown()
    return answers


@pytest.fixture(scope="module")
def engine(config: Config, expected: list[list[int]]) -> Iterator[DraftEngine]:
    """After ``expected``: one engine at a time in a process."""
    from llm42.internals.engine_core import make_engine_core

    engine = DraftEngine(partial(make_engine_core, fastpath_engine_args(config, config.model)))
    yield engine
    engine.shutdown(10)


def open_mailbox(engine: DraftEngine, name: str, **options: Any) -> Mailbox:
    mailbox = Mailbox(name, asyncio.get_running_loop(), **options)
    engine.open(mailbox)
    return mailbox


async def read(mailbox: Mailbox, count: int) -> dict[str, tuple[list[int], str]]:
    """Tokens and finish reason by request id, once ``count`` requests have finished."""
    tokens: dict[str, list[int]] = {}
    finished: dict[str, tuple[list[int], str]] = {}
    while len(finished) < count:
        outputs = await mailbox.take(ITEM_S)
        assert outputs, "nothing came"
        for output in outputs:
            assert output.request_id not in finished
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finished:
                finished[output.request_id] = (tokens[output.request_id], str(output.finish_reason))
    return finished


async def until_idle(engine: DraftEngine) -> None:
    async with asyncio.timeout(ITEM_S):
        while engine.in_flight:  # noqa: ASYNC110 - another thread's state
            await asyncio.sleep(0.01)


def scheduler(engine: DraftEngine) -> Any:
    return engine.core.client.engine_core.scheduler


async def test_one_at_a_time_equals_offline_vllm(engine: DraftEngine, expected: list[list[int]]) -> None:
    mailbox = open_mailbox(engine, "alone")
    for seed, answer in enumerate(expected):
        engine.submit(mailbox, [greedy(f"r{seed}", prompt(seed), TOKENS)])
        assert (await read(mailbox, 1))[f"r{seed}"] == (answer, "length")
    assert expected[0] != expected[1]  # else equality would say nothing
    engine.close(mailbox)


async def test_concurrent_requests_all_finish(engine: DraftEngine) -> None:
    mailbox = open_mailbox(engine, "many")
    engine.submit(mailbox, [greedy(f"r{seed}", prompt(seed), TOKENS) for seed in range(8)])
    engine.submit(mailbox, [greedy(f"s{seed}", prompt(seed), 5) for seed in range(8)])
    answers = await read(mailbox, 16)
    assert {len(tokens) for tokens, _ in answers.values()} == {TOKENS, 5}
    await until_idle(engine)
    engine.close(mailbox)


async def test_abort_frees_and_is_final(engine: DraftEngine) -> None:
    mailbox = open_mailbox(engine, "abort")
    engine.submit(mailbox, [greedy("long", prompt(1), 400), greedy("short", prompt(2), TOKENS)])
    assert await mailbox.take(ITEM_S)
    assert scheduler(engine).get_kv_cache_usage() > 0
    engine.abort(mailbox, ["long", "never heard of"])
    assert set(await read(mailbox, 1)) == {"short"}
    await until_idle(engine)
    assert await mailbox.take(0.3) == []
    assert not scheduler(engine).has_unfinished_requests()
    assert scheduler(engine).get_kv_cache_usage() == 0
    engine.close(mailbox)


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [1, 2, 10**6],
        [1, -1],
        [7] * MAX_MODEL_LEN,
    ],
    ids=["empty", "id past the vocabulary", "negative id", "too long"],
)
async def test_bad_request_fails_alone(engine: DraftEngine, bad: list[int]) -> None:
    mailbox = open_mailbox(engine, "bad")
    engine.submit(mailbox, [greedy("good", prompt(1), 5), greedy("bad", bad, 5), greedy("too", prompt(2), 5)])
    answers = await read(mailbox, 3)
    assert {name: reason for name, (_, reason) in answers.items()} == {
        "good": "length",
        "bad": "error",
        "too": "length",
    }
    assert answers["bad"][0] == []
    engine.check()
    engine.close(mailbox)


async def test_longest_prompt_that_fits(engine: DraftEngine) -> None:
    mailbox = open_mailbox(engine, "full")
    engine.submit(mailbox, [greedy("r", prompt(3, MAX_MODEL_LEN - 1), 5)])
    tokens, reason = (await read(mailbox, 1))["r"]
    assert (len(tokens), reason) == (1, "length")
    engine.close(mailbox)


async def test_seeded_sampling_of_many_long_prompts_at_once(engine: DraftEngine) -> None:
    """More than one step's budget. Prefilled in parts, a seeded request would end the engine on a CPU."""
    mailbox = open_mailbox(engine, "seeded")
    requests = [greedy(f"r{i}", prompt(10 + i, MAX_MODEL_LEN - 8), 4) for i in range(12)]
    for request in requests:
        request.sampling_params.temperature, request.sampling_params.seed = 1.0, 3
    engine.submit(mailbox, requests)
    finished = await read(mailbox, len(requests))
    assert {(len(tokens), reason) for tokens, reason in finished.values()} == {(4, "length")}
    engine.check()
    engine.close(mailbox)


async def test_streams_are_isolated(engine: DraftEngine) -> None:
    """Two routers may use the same ids; one that goes away takes only its own requests along."""
    left, right = open_mailbox(engine, "a"), open_mailbox(engine, "b")
    engine.submit(left, [greedy("r", prompt(0), 400)])
    engine.submit(right, [greedy("r", prompt(1), TOKENS)])
    assert await left.take(ITEM_S)
    engine.close(left)
    tokens, _ = (await read(right, 1))["r"]
    assert engine.in_flight == 0, "it would go on for ten times as long"
    assert len(tokens) == TOKENS
    engine.submit(left, [greedy("late", prompt(0), 400)])
    engine.submit(right, [greedy("r", prompt(1), 5)])  # the same id again
    await read(right, 1)
    await until_idle(engine)
    engine.close(right)


async def test_unread_stream_is_dropped(engine: DraftEngine) -> None:
    deaf, other = open_mailbox(engine, "deaf", capacity=8), open_mailbox(engine, "other")
    engine.submit(deaf, [greedy("r", prompt(0), 400)])
    engine.submit(other, [greedy("r", prompt(1), TOKENS)])
    await read(other, 1)
    await until_idle(engine)
    assert len(await deaf.take(ITEM_S)) == 8
    with pytest.raises(StreamEnded):
        await deaf.take(ITEM_S)
    engine.close(other)


async def test_idle_engine_sleeps(engine: DraftEngine) -> None:
    await until_idle(engine)
    await asyncio.sleep(0.1)
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.1


async def test_zz_engine_death_ends_every_stream(engine: DraftEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last: the engine is gone afterwards."""
    mailboxes = [open_mailbox(engine, name) for name in "ab"]
    for mailbox in mailboxes:
        engine.submit(mailbox, [greedy("r", prompt(0), 400)])
        assert await mailbox.take(ITEM_S)

    def explode() -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(engine.core.client.engine_core, "step_fn", explode)
    for mailbox in mailboxes:
        with pytest.raises(EngineDead, match="out of luck"):
            await read(mailbox, 1)
    with pytest.raises(EngineDead, match="out of luck"):
        engine.check()
    with pytest.raises(EngineDead):
        engine.submit(mailboxes[0], [greedy("r", prompt(0), 5)])
    with pytest.raises(EngineDead):
        open_mailbox(engine, "c")
    for mailbox in mailboxes:
        engine.close(mailbox)
