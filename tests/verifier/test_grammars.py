"""Grammars are compiled once for all that wait, beside everything else, and no more wait than may."""

import asyncio
from collections import Counter

import pytest

from llm42.protocol.errors import GrammarRefused, ReplayFailed, VerifierBusy
from llm42.protocol.steering import Grammar
from llm42.verifier.grammars import Grammars

SLOW, OTHER = Grammar("regex", "slow"), Grammar("regex", "other")


class Worker:
    """Says that a grammar is compiling until it is told what became of it."""

    def __init__(self) -> None:
        self.asked: Counter[Grammar] = Counter()
        self.found: dict[Grammar, list[str]] = {}

    async def prepare(self, grammar: Grammar) -> list[str]:
        self.asked[grammar] += 1
        return self.found.get(grammar, ["compiling", ""])


def waiting(grammars: Grammars, grammar: Grammar, count: int) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(grammars.require(grammar)) for _ in range(count)]


async def test_many_wait_for_one() -> None:
    worker = Worker()
    grammars = Grammars(worker.prepare, 60, most=100)
    tasks = waiting(grammars, SLOW, 100)
    await asyncio.sleep(0.1)
    assert 1 <= worker.asked[SLOW] < 10, "the worker is not asked by each of them"
    tasks[0].cancel()  # whoever began it may leave
    worker.found[SLOW] = ["ready", ""]
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert ended[1:] == [None] * 99
    asked = worker.asked[SLOW]
    await grammars.require(SLOW)
    assert worker.asked[SLOW] == asked, "it is known to be ready"


async def test_no_more_than_may_wait() -> None:
    worker = Worker()
    grammars = Grammars(worker.prepare, 60, most=3)
    tasks = waiting(grammars, SLOW, 3)
    await asyncio.sleep(0)
    with pytest.raises(VerifierBusy, match="3 replays wait"):
        await grammars.require(OTHER)
    assert not worker.asked[OTHER]
    worker.found[SLOW] = worker.found[OTHER] = ["ready", ""]
    await asyncio.gather(*tasks)
    await grammars.require(OTHER)


@pytest.mark.parametrize(("found", "error"), [("refused", GrammarRefused), ("busy", VerifierBusy)])
async def test_what_the_worker_says_is_said_to_all(found: str, error: type[Exception]) -> None:
    worker = Worker()
    worker.found[SLOW] = [found, "because"]
    grammars = Grammars(worker.prepare, 60, most=2)
    ended = await asyncio.gather(*waiting(grammars, SLOW, 2), return_exceptions=True)
    assert [type(one) for one in ended] == [error, error]
    assert str(ended[0]) == "because"


async def test_one_that_takes_too_long_fails_and_may_be_tried_again() -> None:
    worker = Worker()
    grammars = Grammars(worker.prepare, 0.05, most=2)
    ended = await asyncio.gather(*waiting(grammars, SLOW, 2), return_exceptions=True)
    assert [type(one) for one in ended] == [ReplayFailed, ReplayFailed]
    worker.found[SLOW] = ["ready", ""]
    await grammars.require(SLOW)
