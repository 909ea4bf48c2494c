"""drafter_independence: whoever drafts, and however badly, the output is the verifier's, the same to the bit.

The real session on the real replay engine, in this process; only the transport between them is left out.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import pytest_asyncio

from llm42.config import Config
from llm42.protocol import (
    Commit,
    ReplayGrid,
    ReplayRequest,
    Session,
    SessionStats,
    StartDraft,
    StopDraft,
    StopRules,
    Verify,
    VerifyCadence,
)
from llm42.verifier.engine import ReplayEngine

VOCABULARY = 49152
LENGTH = 40
HOPELESS = 12
"""Tokens where no draft is ever right, and each of them takes a pass."""
PROMPTS = [random.Random(length).choices(range(3, VOCABULARY), k=length) for length in (5, 31, 64, 130)]

SHARED = (32, 4, "float32")
"""Window, rows and dtype of the verifier that both tests have."""

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

Drafter = Callable[[Sequence[int], int], Awaitable[list[int]]]
"""All tokens so far, and how many might follow: what does follow, in this drafter's opinion."""


@dataclass(frozen=True)
class Output:
    """``logprobs`` are fp32 bits."""

    tokens: tuple[int, ...]
    logprobs: bytes

    def first(self, count: int) -> "Output":
        return Output(self.tokens[:count], self.logprobs[: 4 * count])


def config(dtype: str, window: int = 32, rows: int = 4) -> Config:
    engine = {"kv_cache_memory_bytes": 32 << 20}
    return Config.model_validate(
        {
            "dtype": dtype,
            "max_model_len": 256,
            "window_size": window,
            "verify_batch_size": rows,
            "verifier": {"engine": engine},
            "fast_path": {"engine": engine},
        }
    )


@asynccontextmanager
async def verifier(path: str, window: int, rows: int, dtype: str = "bfloat16") -> AsyncIterator[ReplayEngine]:
    engine = ReplayEngine(config(dtype, window, rows), path)
    yield engine
    await engine.close()


def named(shape: tuple[int, int, str]) -> str:
    return "-".join(map(str, shape))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(request: pytest.FixtureRequest, tiny_path: str) -> AsyncIterator[ReplayEngine]:
    """One for all tests that ask for the same."""
    async with verifier(tiny_path, *request.param) as engine:
        yield engine


@contextmanager
def real_drafter(tiny_path: str, dtype: str) -> Iterator[Drafter]:
    """vLLM as it comes."""
    from llm42.fastpath.engine import DraftEngine
    from llm42.fastpath.mailbox import Mailbox
    from llm42.fastpath.settings import fastpath_engine_args
    from llm42.internals.engine_core import make_engine_core
    from tests.fastpath.engine_requests import greedy

    engine = DraftEngine(partial(make_engine_core, fastpath_engine_args(config(dtype), tiny_path)))

    async def draft(tokens: Sequence[int], count: int) -> list[int]:
        mailbox = Mailbox(f"{random.random()}", asyncio.get_running_loop())
        engine.open(mailbox)
        engine.submit(mailbox, [greedy("draft", list(tokens), count)])
        drafted: list[int] = []
        while len(drafted) < count:
            for output in await mailbox.take(timeout_s=30):
                drafted += output.new_token_ids
        engine.close(mailbox)
        return drafted

    yield draft
    engine.shutdown(timeout_s=30)


async def at_random(tokens: Sequence[int], count: int) -> list[int]:
    return random.Random(len(tokens)).choices(range(VOCABULARY), k=count)


async def constant(tokens: Sequence[int], count: int) -> list[int]:
    return [7] * count


def adversary(prompt: list[int], canonical: Output, window: int) -> Drafter:
    """Knows the right answer, and gives it except in the last slot of each window."""
    right = [*prompt, *canonical.tokens]

    async def draft(tokens: Sequence[int], count: int) -> list[int]:
        positions = range(len(tokens), len(tokens) + count)
        return [(right[p] + (p % window == window - 1)) % VOCABULARY for p in positions]

    return draft


async def generate(
    engine: ReplayEngine, count: int, prompt: list[int], drafter: Drafter | None
) -> tuple[Output, SessionStats]:
    """``count`` tokens. In which order drafts and replies come is drawn at random, but from the prompt."""
    rng = random.Random(len(prompt))
    window = engine.shape.window
    session = Session(prompt, StopRules(count), VerifyCadence(ReplayGrid(window), eager=8), run_ahead=4 * window)
    tokens: list[int] = []
    logprobs = b""
    streams: dict[int, list[int]] = {}
    question: Verify | None = None
    actions = session.start()
    while actions:
        for action in actions:
            match action:
                case StartDraft():
                    streams[action.stream] = [] if drafter is None else await drafter(action.tokens, action.max_tokens)
                case StopDraft(stream=stream):
                    del streams[stream]
                case Verify():
                    question = action
                case Commit():
                    tokens += action.scores.tokens
                    logprobs += action.scores.logprobs
        actions = []
        while not actions and not session.finished:
            stream, unread = next(((s, unread) for s, unread in streams.items() if unread), (0, []))
            if drafter is None and streams:
                actions = session.draft_lost(streams.popitem()[0])
            elif unread and (question is None or rng.random() < 0.7):
                some = rng.randint(1, 12)
                streams[stream] = unread[some:]
                actions = session.drafted(stream, unread[:some])
            else:
                assert question is not None, "the session waits for nothing"
                asked, question = question, None
                reply = await engine.replay(ReplayRequest("test", asked.question))
                actions = session.verified(asked.call, reply)
    assert len(tokens) == count
    return Output(tuple(tokens), logprobs), session.stats


async def generate_all(
    engine: ReplayEngine, count: int, drafters: Sequence[Drafter | None]
) -> tuple[list[Output], list[SessionStats]]:
    """All prompts at once, so that passes are shared; one drafter for each."""
    done = await asyncio.gather(*map(partial(generate, engine, count), PROMPTS, drafters))
    return [output for output, _ in done], [stats for _, stats in done]


@pytest.mark.parametrize(
    "engine",
    [
        SHARED,
        (32, 1, "float32"),
        (64, 2, "float32"),
        pytest.param((32, 4, "bfloat16"), marks=pytest.mark.slow),
        pytest.param((64, 2, "bfloat16"), marks=pytest.mark.slow),
        pytest.param((16, 4, "bfloat16"), marks=pytest.mark.slow),
    ],
    ids=named,
    indirect=True,
)
async def test_drafter_independence(engine: ReplayEngine) -> None:
    canonical, alone = await generate_all(engine, LENGTH, [None] * 4)
    assert {stats.rollbacks for stats in alone} == {0}
    adversaries = [
        adversary(prompt, output, engine.shape.window) for prompt, output in zip(PROMPTS, canonical, strict=True)
    ]
    for name, count, drafters in (
        ("right until the last slot", LENGTH, adversaries),
        ("one of each", HOPELESS, [at_random, None, constant, adversaries[3]]),
    ):
        outputs, stats = await generate_all(engine, count, drafters)
        assert outputs == [output.first(count) for output in canonical], name
        assert sum(each.rollbacks for each in stats) > 0, name


@pytest.fixture(scope="module")
def kept(engine: ReplayEngine) -> Iterator[ExitStack]:
    """What is to end with the engine: a drafter that ended before would take vLLM's process groups from it."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("engine", [SHARED], ids=named, indirect=True)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def test_drafter_independence_of_the_real_drafter(
    engine: ReplayEngine, kept: ExitStack, tiny_path: str, dtype: str
) -> None:
    """And the negative control: had it been trusted, the difference would have shown.

    One prompt after another, so that drafter and verifier never compute at once: vLLM's CPU kernels have scratch
    memory that belongs to the process, and corrupt it when two engines share one.
    """
    canonical, _ = await generate_all(engine, 80, [None] * 4)
    drafter = kept.enter_context(real_drafter(tiny_path, dtype))
    done = [await generate(engine, 80, prompt, drafter) for prompt in PROMPTS]
    trusted = [tuple(await drafter(prompt, 80)) for prompt in PROMPTS]
    assert [output for output, _ in done] == canonical
    stats = [stats for _, stats in done]
    accepted = sum(each.accepted for each in stats) / sum(each.verified for each in stats)
    print(f"{dtype}: {accepted:.0%} accepted, {sum(each.rollbacks for each in stats)} rollbacks")
    assert accepted > 0.5
    if dtype == "bfloat16":  # whose drafts are not float32's
        assert sum(each.rollbacks for each in stats) > 0
        assert trusted != [output.tokens for output in canonical]
