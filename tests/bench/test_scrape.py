from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from llm42.bench import scrape
from llm42.bench.errors import BenchError
from llm42.metrics.reporter import INTERVAL_S
from tests.check.server import serving_app

EXPOSITION = """
# TYPE ray_llm42_verify_slots_total counter
ray_llm42_verify_slots_total{kind="padding",replica="a"} 10.0
ray_llm42_verify_slots_total{kind="padding",replica="b"} 5.0
ray_llm42_verify_slots_total{kind="answered",replica="a"} 30.0
# TYPE ray_llm42_output_tokens_total counter
ray_llm42_output_tokens_total{mode="ordinary"} %d
# TYPE ray_llm42_verify_pass_seconds histogram
ray_llm42_verify_pass_seconds_bucket{le="+Inf"} 4
ray_llm42_verify_pass_seconds_count 4
ray_llm42_verify_pass_seconds_sum 2.5
# TYPE ray_node_cpu gauge
ray_node_cpu 3.0
"""


def test_values_are_summed_and_told_apart_by_kind() -> None:
    found = scrape.parse(EXPOSITION % 7)
    assert found["verify_slots_total"] == 45
    assert found["verify_slots_total:padding"] == 15
    assert found["verify_pass_seconds_sum"] == 2.5
    assert not any("node_cpu" in name or "bucket" in name for name in found)
    assert scrape.growth({"a": 1.0, "b": 2.0}, {"a": 4.0, "b": 2.0, "c": 1.0}) == {"a": 3.0, "c": 1.0}


@pytest.fixture
def late() -> Iterator[str]:
    """The tokens arrive at the third scrape."""
    count = 0

    async def metrics(_: Request) -> PlainTextResponse:
        nonlocal count
        count += 1
        return PlainTextResponse(EXPOSITION % (100 if count > 2 else 40))

    with serving_app(Starlette(routes=[Route("/metrics", metrics)])) as url:
        yield f"{url}/metrics"


def test_it_waits_for_what_comes_late(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    before = {"output_tokens_total": 40.0}
    assert scrape.settled(late, before, 60)["output_tokens_total"] == 100
    assert slept[0] > scrape.REPORT_MS / 1e3 + INTERVAL_S, "of all processes, not of the first that reports"


def test_it_does_not_wait_for_ever(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "POLL_S", 0.01)
    monkeypatch.setattr(scrape, "REPORT_MS", 0)
    monkeypatch.setattr(scrape, "SLACK_S", 0.0)
    monkeypatch.setattr(scrape, "SETTLED_S", 0.2)
    with pytest.raises(BenchError, match="60 of 61 tokens"):
        scrape.settled(late, {"output_tokens_total": 40.0}, 61)
