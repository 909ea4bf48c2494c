"""What is measured of a request is what its client sees; nothing that leaves unverified stays unnoticed."""

import logging
from http import HTTPStatus

import pytest

from llm42 import logs
from llm42.metrics import router as metrics
from llm42.metrics.metric import Counter, Histogram
from llm42.protocol import SessionStats
from llm42.router import watch
from llm42.router.verifiers import Pin
from llm42.router.watch import Watched, Work


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


def work(stats: SessionStats) -> Work:
    return Work(stats, Pin("f" * 64), {"v2", "v1"}, {"d1"})


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
    watched.begin("r", "ordinary", arrived=999.5, prompt_tokens=3)
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
    watched.begin("r", "deterministic", arrived=1000.0, prompt_tokens=3)
    assert (watched.running("deterministic"), watched.running("ordinary")) == (1, 0)
    watched.end("r", "unverifiable")
    watched.end("r", "stopped")  # the frontend aborts what has failed
    watched.output("r", 3)
    assert seen.counted == {(metrics.REQUESTS.name, ("deterministic", "unverifiable")): 1}
    assert seen.observed == {}, "a failed request has no latency"
    assert watched.running("deterministic") == 0


def test_a_request_of_one_piece_has_no_time_per_token(seen: Seen, clock: Clock) -> None:
    watched = Watched()
    watched.begin("r", "ordinary", arrived=1000.0, prompt_tokens=3)
    watched.output("r", 4)
    watched.end("r", "finished")
    assert seen.values(metrics.OUTPUT_TOKEN) == []


def test_committed_tokens_are_no_unverified_ones(seen: Seen, clock: Clock) -> None:
    watched, stats = Watched(), SessionStats()
    watched.begin("r", "deterministic", arrived=1000.0, prompt_tokens=3)
    watched.verify("r", work(stats))
    for committed in (1, 9, 20):
        sent, stats.committed = committed - stats.committed, committed
        watched.output("r", sent)
    assert seen.count(metrics.UNVERIFIED) == 0
    assert seen.count(metrics.OUTPUT, "deterministic") == 20


@pytest.mark.parametrize("with_session", [True, False])
def test_what_leaves_beyond_that_is_counted_once(seen: Seen, clock: Clock, with_session: bool) -> None:
    watched, stats = Watched(), SessionStats(committed=4)
    watched.begin("r", "deterministic", arrived=1000.0, prompt_tokens=3)
    if with_session:
        watched.verify("r", work(stats))
    watched.output("r", 4)
    watched.output("r", 3)
    stats.committed += 2  # too late: they have left
    watched.output("r", 2)
    assert seen.count(metrics.UNVERIFIED) == (3 if with_session else 9)


def test_ordinary_tokens_are_nobodys_promise(seen: Seen, clock: Clock) -> None:
    watched = Watched()
    watched.begin("r", "ordinary", arrived=1000.0, prompt_tokens=3)
    watched.output("r", 5)
    assert seen.count(metrics.UNVERIFIED) == 0


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What is logged of requests; Serve's logger does not pass it on to others by itself."""
    monkeypatch.setattr(logs.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logs.logger, "propagate", False)
    caplog.set_level(logging.INFO, logs.logger.name)
    return caplog


def test_one_line_says_how_a_deterministic_request_went(
    seen: Seen, clock: Clock, lines: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    stats = SessionStats(drafted=30, verified=28, accepted=20, rolled_back=8, replays=3, rollbacks=1)
    watched.begin("cmpl-1-0-ab", "deterministic", arrived=999.5, prompt_tokens=40)
    watched.verify("cmpl-1-0-ab", work(stats))
    stats.committed = 23
    watched.output("cmpl-1-0-ab", 23)
    clock.now += 1.25
    watched.end("cmpl-1-0-ab", "finished")
    watched.end("cmpl-1-0-ab", "stopped")
    assert lines.messages == [
        "request_id=cmpl-1-0-ab mode=deterministic outcome=finished prompt_tokens=40 output_tokens=23 "
        "first_token_s=0.5 total_s=1.75 drafted=30 verified=28 committed=23 accepted=20 rolled_back=8 replays=3 "
        f"rollbacks=1 fingerprint={'f' * 64} verifiers=v1,v2 drafters=d1"
    ]


def test_the_line_of_a_failure_has_its_status(seen: Seen, clock: Clock, lines: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.begin("r", "ordinary", arrived=1000.0, prompt_tokens=3)
    watched.end("r", "error", HTTPStatus.SERVICE_UNAVAILABLE)
    assert lines.messages == [
        "request_id=r mode=ordinary outcome=error status=503 prompt_tokens=3 output_tokens=0 total_s=0.0"
    ]
