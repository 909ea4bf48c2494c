"""The whole verifier in this process: many requests at once, scarce pages, faults. Bits, not tolerances."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from llm42.internals.replay import ReplayPass
from llm42.protocol.errors import FingerprintMismatch, ReplayFailed, ReplayImpossible, ReplayRefused, VerifierBusy
from llm42.protocol.messages import Question, ReplayReply, ReplayRequest, Scores, pack_tokens
from llm42.protocol.selection import GREEDY, Selection
from llm42.protocol.steering import Grammar, Steering
from llm42.sampling import Selected, choices, select
from llm42.sampling.grammar_compiler import GrammarBusy
from llm42.verifier.engine import MAX_FAILURES, ReplayEngine
from tests.verifier.conftest import CONTEXT, WINDOW, verifier_config
from tests.verifier.lab import evict_all, random_tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True)
class Answer:
    """What a client can see of a reply."""

    tokens: tuple[int, ...]
    logprobs: bytes
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, reply: ReplayReply) -> "Answer":
        scores = reply.scores
        return cls(tuple(scores.tokens), scores.logprobs, tuple(scores.ranks))


def request(tokens: list[int], start: int) -> ReplayRequest:
    return ReplayRequest("test", Question(pack_tokens(tokens), start))


async def ask(engine: ReplayEngine, tokens: list[int], start: int) -> Answer:
    return Answer.of(await engine.replay(request(tokens, start)))


@pytest.fixture(autouse=True)
def no_page_leaks(engine: ReplayEngine) -> Iterator[None]:
    assert engine._pool.free == engine._pool.capacity
    yield
    assert engine._pool.free == engine._pool.capacity
    assert len(engine._scheduler) == 0


async def test_reply(engine: ReplayEngine) -> None:
    tokens = random_tokens(100)
    reply = await engine.replay(replace(request(tokens, 60), fingerprint=engine.fingerprint))
    assert reply.fingerprint == engine.fingerprint
    assert reply.answers(Question(pack_tokens(tokens), 60))
    assert len(reply.scores) == 40
    assert reply.idle_rows == engine.shape.rows


async def test_cold_hot_and_rebuilt_cache(engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full logits of the asked rows, as bits."""
    seen: list[bytes] = []

    def recording(logits: torch.Tensor, *rest: Any) -> Selected:
        seen.append(logits.contiguous().view(torch.uint8).numpy().tobytes())
        return select(logits, *rest)

    monkeypatch.setattr(choices, "select", recording)
    tokens = random_tokens(400)

    async def logits(tokens: list[int], *, hits: int) -> tuple[Answer, list[bytes]]:
        seen.clear()
        before = engine._scheduler.hits
        answer = await ask(engine, tokens, 390)
        assert engine._scheduler.hits - before == hits
        return answer, list(seen)

    cold = await logits(tokens, hits=0)
    assert await logits(tokens, hits=12) == cold
    evict_all(engine)
    assert await logits(tokens, hits=0) == cold
    # Half of the prefix from another conversation that shares it.
    evict_all(engine)
    await ask(engine, tokens[:200] + random_tokens(50), 249)
    assert await logits(tokens, hits=6) == cold
    other = [*tokens[:10], tokens[10] ^ 1, *tokens[11:]]
    assert await logits(other, hits=0) != cold


async def test_many_at_once_equal_one_at_a_time(engine: ReplayEngine) -> None:
    shared = random_tokens(150)
    cases = [(shared[: 30 * i] + random_tokens(40 + 13 * i), 7 * i) for i in range(4)]
    cases += [(shared + random_tokens(9 * i + 1), 149 + i) for i in range(4)]
    alone = []
    for tokens, start in cases:
        evict_all(engine)
        alone.append(await ask(engine, tokens, start))
    evict_all(engine)
    for _ in range(2):
        assert await asyncio.gather(*(ask(engine, tokens, start) for tokens, start in cases)) == alone
    assert len(set(alone)) == len(alone)


STEERED = Steering(
    prompt_tokens=20,
    frequency_penalty=0.5,
    repetition_penalty=1.3,
    logit_bias=((5, 3.0),),
    min_tokens=60,
    stops=(0, 17),
    bad_words=((5, 6), (9,)),
)
SELECTIONS = {
    "greedy": GREEDY,
    "drawn": Selection(temperature=0.8, top_p=0.95, top_k=50, seed=7),
    "steered": Selection(temperature=1.5, seed=7, steering=STEERED),
}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
async def test_how_a_text_is_split_into_calls_does_not_matter(engine: ReplayEngine, selection: Selection) -> None:
    """Nor which slots are chosen for at once, where in that a call begins, and who else is in the LM head."""
    tokens, other = random_tokens(130), random_tokens(70)

    async def replay_part(first: int, end: int) -> Scores:
        question = Question(pack_tokens(tokens[:end]), first, selection, top=2)
        return (await engine.replay(ReplayRequest("test", question))).scores

    whole = await replay_part(0, 130)
    for first, end in ((0, 1), (0, 33), (7, 9), (8, 16), (31, 64), (64, 96), (65, 129), (75, 85), (129, 130)):
        assert await replay_part(first, end) == whole[first:end]
    beside = [replay_part(first, end) for first, end in ((3, 6), (40, 51), (98, 128))]
    *found, _ = await asyncio.gather(*beside, ask(engine, other, 65))
    assert found == [whole[3:6], whole[40:51], whole[98:128]]
    assert await replay_part(8, 16) != whole[9:17]


async def test_prompts_are_scored_alike_however_long_they_are(engine: ReplayEngine) -> None:
    """Given tokens end anywhere in what is chosen for at once."""
    tokens = random_tokens(100)

    async def scored(length: int) -> Scores:
        question = Question(pack_tokens(tokens[:length]), 0, given=length - 1)
        return (await engine.replay(ReplayRequest("test", question))).scores

    whole = await scored(100)
    assert whole.tokens[:99] == tokens[1:]
    for length in (2, 9, 33, 43, 97):
        assert (await scored(length))[: length - 1] == whole[: length - 1]
    assert (await scored(43)).tokens[42] != tokens[43], "the last one is chosen"


async def test_scarce_pages_only_queue(engine: ReplayEngine) -> None:
    cases = [(random_tokens(CONTEXT - 30 * i), CONTEXT - 30 * i - 1) for i in range(4)]
    alone = [await ask(engine, tokens, start) for tokens, start in cases]
    evict_all(engine)
    held = engine._pool.take(engine._pool.free - 20)
    try:
        assert await asyncio.gather(*(ask(engine, tokens, start) for tokens, start in cases)) == alone
    finally:
        engine._pool.release(held)


async def test_busy(engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine._scheduler, "_max_queued", 3)
    tokens = random_tokens(200)
    outcomes = await asyncio.gather(*(ask(engine, tokens, 199) for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Answer] * 3 + [VerifierBusy] * 2


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request([1, 2], 2), ReplayRefused),
        (request([1, 2], -1), ReplayRefused),
        (request([], 0), ReplayRefused),
        (request([1, 49152], 0), ReplayRefused),
        (request([-1], 0), ReplayRefused),
        (replace(request([1], 0), question=Question(pack_tokens([1]), 0, top=49152)), ReplayRefused),
        (replace(request([1], 0), fingerprint="another"), FingerprintMismatch),
    ],
)
async def test_refusals(engine: ReplayEngine, bad: ReplayRequest, error: type[Exception]) -> None:
    with pytest.raises(error):
        await engine.replay(bad)


@pytest.mark.parametrize(
    "question", [request([1] * (CONTEXT + 1), 0).question, Question(pack_tokens([1]), 0, adapter="sql")]
)
async def test_what_another_deploy_may_have_is_refused_for_good_only_to_who_wants_this_one(
    engine: ReplayEngine, question: Question
) -> None:
    for fingerprint, error in ((None, FingerprintMismatch), (engine.fingerprint, ReplayRefused)):
        with pytest.raises(error):
            await engine.replay(ReplayRequest("test", question, fingerprint=fingerprint))


async def test_who_is_condemned_answers_nobody_who_waited_for_a_grammar(
    engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Question(pack_tokens([1]), 0, Selection(steering=Steering(1, grammar=Grammar("regex", "[a-z]+"))))
    assert await engine.replay(ReplayRequest("test", asked))

    async def condemned_meanwhile(grammar: Grammar) -> None:
        monkeypatch.setattr(engine, "_stopped", "planted")

    monkeypatch.setattr(engine._grammars, "require", condemned_meanwhile)
    with pytest.raises(ReplayFailed, match="planted"):
        await engine.replay(ReplayRequest("test", asked))


async def test_the_whole_context_can_be_replayed(engine: ReplayEngine) -> None:
    assert len((await ask(engine, random_tokens(CONTEXT), CONTEXT - 1)).tokens) == 1


async def test_an_invalid_choice_fails_only_its_request(engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in slot 3 of the first row of a pass: what comes before is answered, and what does not depend on it."""
    tokens, other = random_tokens(10), random_tokens(10)
    reference = await ask(engine, other, 0)
    forward, passes = ReplayPass.forward, 0

    def poisoned(self: ReplayPass, *given: Any) -> torch.Tensor:
        nonlocal passes
        passes += 1
        hidden = forward(self, *given)
        if passes == 1:
            hidden[0, 3, 7] = float("nan")
        return hidden

    whole = await ask(engine, tokens, 0)
    monkeypatch.setattr(ReplayPass, "forward", poisoned)
    cut, fine = await asyncio.gather(ask(engine, tokens, 0), ask(engine, other, 0))
    assert (cut.tokens, cut.logprobs) == (whole.tokens[:3], whole.logprobs[:12])
    assert fine == reference
    passes = 0
    failed, fine = await asyncio.gather(ask(engine, tokens, 3), ask(engine, other, 0), return_exceptions=True)
    assert isinstance(failed, ReplayImpossible)
    assert "position 3" in str(failed)
    assert fine == reference
    passes = 0
    assert len((await ask(engine, tokens, 4)).tokens) == 6, "a slot that nobody asked for does not matter"


async def test_a_failing_pass_fails_its_requests_and_publishes_nothing(
    engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_tokens(3 * WINDOW)
    reference = await ask(engine, tokens, 2 * WINDOW)
    evict_all(engine)

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(ReplayPass, "forward", broken)
        with pytest.raises(ReplayFailed, match="planted"):
            await ask(engine, tokens, 2 * WINDOW)
    engine.check_health()
    before = engine._scheduler.hits
    assert await ask(engine, tokens, 2 * WINDOW) == reference
    assert engine._scheduler.hits == before


async def test_a_verifier_whose_passes_keep_failing_is_unhealthy(
    engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(ReplayPass, "forward", broken)
        for _ in range(MAX_FAILURES):
            engine.check_health()
            with pytest.raises(ReplayFailed, match="planted"):
                await ask(engine, [1, 2, 3], 0)
    with pytest.raises(RuntimeError, match=r"in a row have failed.*planted"):
        engine.check_health()
    with pytest.raises(ReplayFailed, match="in a row"):
        await ask(engine, [1, 2, 3], 0)
    engine._stopped, engine._failures, engine._loop = None, 0, None  # this engine serves the other tests too


async def test_cancelled_callers_free_their_pages(engine: ReplayEngine) -> None:
    tasks = [asyncio.create_task(ask(engine, random_tokens(400), 399)) for _ in range(6)]
    await asyncio.sleep(0.02)
    for task in tasks[:5]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[:5]] == [asyncio.CancelledError] * 5
    assert isinstance(outcomes[5], Answer)
    await ask(engine, [1], 0)  # the pass that used the last of them has ended


@pytest.mark.parametrize("engine", ["float32"], indirect=True)
async def test_another_process_has_the_same_fingerprint_and_bits(engine: ReplayEngine, tiny_path: str) -> None:
    """A second verifier, behind vLLM's multiprocess client: other buffers, other addresses, another path."""
    cases = [(random_tokens(90 + 70 * i), 50 * i) for i in range(5)]
    second = ReplayEngine(verifier_config("float32"), tiny_path, multiprocess=True)
    try:
        assert second.fingerprint == engine.fingerprint
        here = await asyncio.gather(*(ask(engine, tokens, start) for tokens, start in cases))
        there = await asyncio.gather(*(ask(second, tokens, start) for tokens, start in cases))
        assert here == there
        tokens, start = cases[0]
        assert await ask(second, [tokens[0] ^ 1, *tokens[1:]], start) != here[0]
    finally:
        await second.close()
    with pytest.raises(RuntimeError, match="closed"):
        second.check_health()
    with pytest.raises(ReplayFailed, match="closed"):
        await second.replay(request([1], 0))


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ValueError("planted"), ReplayImpossible),
        (TypeError("planted"), ReplayImpossible),
        (IndexError("planted"), ReplayImpossible),
        (KeyError("planted"), ReplayImpossible),
        (OverflowError("planted"), ReplayImpossible),
        (GrammarBusy("planted"), ReplayFailed),
    ],
)
async def test_a_request_that_cannot_be_chosen_for_fails_alone(
    engine: ReplayEngine, monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[Exception]
) -> None:
    """However often it comes: its neighbours in the pass are answered, and the verifier stays well."""
    tokens = random_tokens(20)
    reference = await ask(engine, tokens, 0)

    def choosing(logits: torch.Tensor, *rest: Any) -> Selected:
        if rest[3] == 3:  # that many alternatives
            raise raised
        return select(logits, *rest)

    monkeypatch.setattr(choices, "select", choosing)
    poison = ReplayRequest("poison", Question(pack_tokens(random_tokens(20)), 0, top=3))
    for _ in range(MAX_FAILURES + 1):
        failed, fine = await asyncio.gather(engine.replay(poison), ask(engine, tokens, 0), return_exceptions=True)
        assert type(failed) is error
        assert "planted" in str(failed)
        assert fine == reference
    engine.check_health()
