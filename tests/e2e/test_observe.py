"""What a client and an operator learn of one request: its statistics, its line in the log, its trace."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray.serve._private.logging_utils import get_serve_logs_dir

from tests.e2e.client import random_prompt
from tests.e2e.cluster import Cluster
from tests.e2e.collector import Collector, collector
from tests.e2e.conftest import TINY
from tests.e2e.test_what_an_answer_says import LENGTH, SAMPLED, raw
from tests.events import events

SECRET = "xyzzy plugh"
SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def require_plausible(stats: dict[str, int], tokens: int) -> None:
    """Each reply commits what it accepts, and at most one token more."""
    assert stats["committed"] == tokens
    assert stats["accepted"] <= stats["verified"] <= stats["drafted"]
    assert stats["accepted"] <= stats["committed"] <= stats["accepted"] + stats["replays"]
    assert (stats["rolled_back"] == 0) == (stats["rollbacks"] == 0)


def line_of(request_id: str) -> dict[str, str]:
    """The fields of the only line that the router has written of a request."""
    logs = [file.read_text() for file in Path(get_serve_logs_dir()).glob("*Router*.log")]
    lines = [line for log in logs for line in log.splitlines() if request_id in line and " outcome=" in line]
    (line,) = lines
    return dict(pair.split("=", 1) for pair in shlex.split(line.partition(" -- ")[2]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"temperature": 0}, LENGTH),
        ({"n": 2, **SAMPLED}, 2 * LENGTH),
        ({"temperature": 0, "prompt": [random_prompt(3, 20), random_prompt(4, 30)]}, 2 * LENGTH),
    ],
    ids=["one", "samples", "prompts"],
)
async def test_stats_of_an_answer(cluster: Cluster, fields: dict[str, Any], tokens: int, stream: bool) -> None:
    response = await raw(cluster, is_deterministic=True, determinism_stats=True, stream=stream, **fields)
    if stream:
        *others, said = events(response.text)
        assert not any("stats" in event.get("determinism", {}) for event in others)
    else:
        said = response.json()
    assert said["usage"]["completion_tokens"] == tokens
    require_plausible(said["determinism"]["stats"], tokens)


async def test_stats_are_for_those_who_ask(cluster: Cluster) -> None:
    said = await raw(cluster, temperature=0, is_deterministic=True, determinism_stats=False)
    assert "stats" not in said.json()["determinism"]
    refused = await raw(cluster, temperature=0, is_deterministic=False, determinism_stats=True)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "determinism_stats"


@pytest.mark.parametrize("deterministic", [True, False])
async def test_the_line_of_a_request(cluster: Cluster, deterministic: bool) -> None:
    fields = {"temperature": 0, "is_deterministic": deterministic, "prompt": SECRET}
    response = await raw(cluster, **fields)
    said = response.json()
    line = line_of(response.headers["x-request-id"])
    assert said["id"] in line["request_id"]
    mode = "deterministic" if deterministic else "ordinary"
    assert (line["mode"], line["outcome"], line["output_tokens"]) == (mode, "finished", str(LENGTH))
    assert line["prompt_tokens"] == str(said["usage"]["prompt_tokens"])
    assert 0 <= float(line["first_token_s"]) <= float(line["total_s"])
    if deterministic:
        counts = {name: int(line[name]) for name in ("drafted", "verified", "accepted", "committed", "replays")}
        rest = {name: int(line[name]) for name in ("rolled_back", "rollbacks")}
        require_plausible({**counts, **rest}, LENGTH)
        assert line["fingerprint"] == said["system_fingerprint"]
        assert line["verifiers"] == (await cluster.call("Verifier", "describe"))["replica_id"]
        assert line["drafters"] == (await cluster.call("FastPath", "describe")).replica_id
    else:
        assert not {"fingerprint", "verifiers", "committed"} & line.keys()


async def test_a_client_finds_its_own_id(cluster: Cluster) -> None:
    """And nobody its words: test_privacy.py."""
    body = {"model": "tiny", "prompt": SECRET, "max_tokens": 4, "temperature": 0, "is_deterministic": True}
    async with httpx.AsyncClient(trust_env=False, timeout=200) as http:
        headers = {"X-Request-Id": "of-the-client"}
        said = (await http.post(f"{cluster.url}/v1/completions", json=body, headers=headers)).json()
    assert said["id"] == "cmpl-of-the-client"
    assert line_of("of-the-client")["outcome"] == "finished"


@pytest.fixture
def traced(ray_and_serve: Cluster, tiny_path: str) -> Iterator[tuple[Cluster, Collector]]:
    with collector() as spans:
        ray_and_serve.deploy({**TINY, "traces": {"endpoint": spans.url}})
        yield ray_and_serve, spans
        ray_and_serve.clear()


@pytest.mark.slow
async def test_the_trace_of_a_request(traced: tuple[Cluster, Collector]) -> None:
    cluster, spans = traced
    trace_id, span_id = SPAN
    body = {"model": "tiny", "prompt": SECRET, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": True}
    body |= {"is_deterministic": True, "determinism_stats": True}
    async with httpx.AsyncClient(trust_env=False, timeout=200) as http:
        headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}
        said = (await http.post(f"{cluster.url}/v1/completions", json=body, headers=headers)).json()
    stats = said["determinism"]["stats"]
    found = spans.trace(trace_id, "llm42-router", "llm42-verifier")
    (request,) = [span for span in found if span.name == "request"]
    assert request.parent_id.hex() == span_id
    assert said["id"] in request.attributes["llm42.request_id"]
    assert {name: request.attributes[f"llm42.{name}"] for name in stats} == stats
    verifies = [span for span in found if span.name == "verify"]
    assert len(verifies) == stats["replays"]
    assert {span.parent_id for span in verifies} == {request.span_id}
    replays = [span for span in found if span.name == "replay"]
    assert {span.parent_id for span in replays} == {span.span_id for span in verifies}
    assert {span.service for span in replays} == {"llm42-verifier"}
    assert all(span.events == ("first pass",) for span in replays)
    assert sum(span.name == "rollback" for span in found) == stats["rollbacks"]
    assert [span for span in found if span.name == "draft"]
    assert SECRET not in str(found)
