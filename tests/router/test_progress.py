"""Drafts are counted as they fare: positions drafted twice, spans between rollbacks, ages of what waits."""

import pytest

from llm42.metrics import router as metrics
from llm42.protocol import Commit, Scores, SessionStats, StartDraft, Verify
from llm42.protocol.messages import Question
from llm42.router import progress
from llm42.router.progress import Ages, Progress
from tests.router.test_watch import Seen, seen

__all__ = ["seen"]

PROMPT = 10
VERIFY = Verify(1, Question(b"\0" * 4, 0))


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def commit(tokens: int) -> Commit:
    return Commit(Scores([7] * tokens, b"\0" * 4 * tokens, [1] * tokens))


def draft_from(position: int) -> StartDraft:
    return StartDraft(1, [7] * position, 100)


def test_a_draft_that_holds(seen: Seen, clock: Clock) -> None:
    stats = SessionStats()
    watched = Progress(PROMPT, stats)
    watched.acting([draft_from(PROMPT), VERIFY])
    for _ in range(3):
        watched.drafted(2)
        clock.now += 1.0
    assert watched.oldest(clock.now) == 3.0
    watched.acting([VERIFY])
    stats.drafted, stats.verified, stats.accepted, stats.committed = 6, 4, 4, 5
    watched.acting([commit(5)])
    assert seen.values(metrics.RUN_AHEAD) == [0, 6]
    assert seen.values(metrics.AGE) == [3.0]
    assert watched.oldest(clock.now) == 1.0, "of the sixth token, which waits on"
    watched.ended()
    assert watched.oldest(clock.now) == 0.0
    assert seen.observed[metrics.SPAN.name] == [(5, {"end": "request"})]
    assert seen.count(metrics.RECOMPUTED) == 0
    assert [seen.count(counter) for counter in (metrics.DRAFTED, metrics.VERIFIED, metrics.COMMITTED)] == [6, 4, 5]


def test_a_rollback_costs_what_is_drafted_again(seen: Seen, clock: Clock) -> None:
    stats = SessionStats()
    watched = Progress(PROMPT, stats)
    watched.acting([draft_from(PROMPT)])
    watched.drafted(8)
    stats.committed, stats.rollbacks, stats.rolled_back = 3, 1, 5
    watched.acting([commit(3), draft_from(PROMPT + 3), VERIFY])
    assert seen.observed[metrics.SPAN.name] == [(3, {"end": "rollback"})]
    assert seen.values(metrics.RUN_AHEAD) == [0], "the draft begins anew at what is committed"
    assert watched.oldest(clock.now) == 0.0
    watched.drafted(4)
    assert seen.count(metrics.RECOMPUTED) == 4
    watched.drafted(4)
    assert seen.count(metrics.RECOMPUTED) == 5, "positions 13 to 17 had been drafted, 18 to 20 had not"
    assert (seen.count(metrics.ROLLBACKS), seen.count(metrics.ROLLED_BACK)) == (1, 5)


def test_a_draft_behind_the_verifier_does_not_wait(seen: Seen, clock: Clock) -> None:
    stats = SessionStats()
    watched = Progress(PROMPT, stats)
    watched.acting([draft_from(PROMPT), VERIFY])
    stats.committed = 2
    watched.acting([commit(2)])
    watched.drafted(2)
    assert watched.oldest(clock.now) == 0.0
    assert seen.values(metrics.AGE) == []


def test_another_verifier_has_to_build_anew(seen: Seen, clock: Clock) -> None:
    watched = Progress(PROMPT, SessionStats())
    for replica in ("a", "a", "", "a", "b", "b", "a"):
        watched.replayed_by(replica)
    assert seen.count(metrics.REBUILDS) == 2


def test_a_replay_that_does_not_come_back(seen: Seen, clock: Clock) -> None:
    """With or without a fast path: nothing is drafted here."""
    watched = Progress(PROMPT, SessionStats())
    watched.acting([VERIFY])
    clock.now += 5.0
    assert watched.oldest(clock.now) == 5.0
    watched.acting([commit(1)])
    assert watched.oldest(clock.now) == 0.0
    watched.acting([VERIFY])
    clock.now += 2.0
    assert watched.oldest(clock.now) == 2.0
    watched.ended()
    assert watched.oldest(clock.now) == 0.0


def test_the_oldest_of_all_requests(seen: Seen, clock: Clock) -> None:
    ages = Ages(clock.monotonic)
    assert ages.oldest() == 0.0
    first, second = Progress(PROMPT, SessionStats()), Progress(PROMPT, SessionStats())
    for one in (first, second):
        ages.add(one)
        one.drafted(1)
        clock.now += 2.0
    assert ages.oldest() == 4.0
    ages.discard(first)
    assert ages.oldest() == 2.0
