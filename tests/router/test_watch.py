"""What is measured of a request is what its client sees; nothing that leaves unverified stays unnoticed."""

import pytest

from llm42.metrics import router as metrics
from llm42.metrics.metric import Counter, Histogram
from llm42.protocol import SessionStats
from llm42.router import watch
from llm42.router.watch import Watched


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Seen:
    """Everything that is measured, by metric."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, tuple[str, ...]], float] = {}
        self.observed: dict[str, list[tuple[float, dict[str, str]]]] = {}

    def add(self, metric: Counter, amount: float = 1, **labels: str) -> None:
        key = metric.name, tuple(labels.values())
        self.counted[key] = self.counted.get(key, 0) + amount

    def observe(self, metric: Histogram, value: float, **labels: str) -> None:
        self.observed.setdefault(metric.name, []).append((value, labels))

    def count(self, metric: Counter, *values: str) -> float:
        return self.counted.get((metric.name, values), 0)

    def values(self, metric: Histogram) -> list[float]:
        return [value for value, _ in self.observed.get(metric.name, [])]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    monkeypatch.setattr(Counter, "add", lambda *args, **labels: found.add(*args, **labels))
    monkeypatch.setattr(Histogram, "observe", lambda *args, **labels: found.observe(*args, **labels))
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    return clock


def test_latencies_are_those_of_the_client(seen: Seen, clock: Clock) -> None:
    watched = Watched()
    watched.begin("r", "ordinary", arrived=999.5)
    watched.output("r", 2)
    clock.now += 3.0
    watched.output("r", 5)
    clock.now += 1.0
    watched.output("r", 1)
    clock.now += 7.0  # until vLLM says that it has ended
    watched.end("r", "finished")
    assert seen.values(metrics.FIRST_TOKEN) == [0.5]
    assert seen.values(metrics.REQUEST) == [4.5]
    assert seen.values(metrics.OUTPUT_TOKEN) == [pytest.approx(4.0 / 6)]  # what came first is not waited for
    assert seen.count(metrics.OUTPUT, "ordinary") == 8
    assert seen.count(metrics.REQUESTS, "ordinary", "finished") == 1
    assert all(labels == {"mode": "ordinary"} for found in seen.observed.values() for _, labels in found)


def test_the_first_word_on_how_it_ended_holds(seen: Seen, clock: Clock) -> None:
    watched = Watched()
    watched.begin("r", "deterministic", arrived=1000.0)
    assert (watched.running("deterministic"), watched.running("ordinary")) == (1, 0)
    watched.end("r", "unverifiable")
    watched.end("r", "stopped")  # the frontend aborts what has failed
    watched.output("r", 3)
    assert seen.counted == {(metrics.REQUESTS.name, ("deterministic", "unverifiable")): 1}
    assert seen.observed == {}, "a failed request has no latency"
    assert watched.running("deterministic") == 0


def test_a_request_of_one_piece_has_no_time_per_token(seen: Seen, clock: Clock) -> None:
    watched = Watched()
    watched.begin("r", "ordinary", arrived=1000.0)
    watched.output("r", 4)
    watched.end("r", "finished")
    assert seen.values(metrics.OUTPUT_TOKEN) == []


def test_committed_tokens_are_no_unverified_ones(seen: Seen, clock: Clock) -> None:
    watched, stats = Watched(), SessionStats()
    watched.begin("r", "deterministic", arrived=1000.0)
    watched.verify("r", stats)
    for committed in (1, 9, 20):
        sent, stats.committed = committed - stats.committed, committed
        watched.output("r", sent)
    assert seen.count(metrics.UNVERIFIED) == 0
    assert seen.count(metrics.OUTPUT, "deterministic") == 20


@pytest.mark.parametrize("with_session", [True, False])
def test_what_leaves_beyond_that_is_counted_once(seen: Seen, clock: Clock, with_session: bool) -> None:
    watched, stats = Watched(), SessionStats(committed=4)
    watched.begin("r", "deterministic", arrived=1000.0)
    if with_session:
        watched.verify("r", stats)
    watched.output("r", 4)
    watched.output("r", 3)
    stats.committed += 2  # too late: they have left
    watched.output("r", 2)
    assert seen.count(metrics.UNVERIFIED) == (3 if with_session else 9)


def test_ordinary_tokens_are_nobodys_promise(seen: Seen, clock: Clock) -> None:
    watched = Watched()
    watched.begin("r", "ordinary", arrived=1000.0)
    watched.output("r", 5)
    assert seen.count(metrics.UNVERIFIED) == 0
