"""The client against a real HTTP server that streams, stalls and fails as told."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from llm42.bench.load import closed_loop, connect, open_loop
from llm42.bench.workload import Length, Mix, Request, make_requests
from tests.bench.streaming import FIRST_S, STEP_S, Behaviour, app
from tests.check.server import serving_app

MIX = Mix("fixed", Length(8), Length(6))


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
def url(behaviour: Behaviour) -> Iterator[str]:
    with serving_app(app(behaviour)) as url:
        yield url


async def ask(url: str, requests: list[Request], lanes: int, **options: Any) -> list[Any]:
    async with connect(url, "tide", **{"ours": True, "salt": "s", **options}) as client:
        return await closed_loop(client, requests, lanes, iter(()), 0)


async def test_an_answer_is_timed_and_counted(url: str, behaviour: Behaviour) -> None:
    (answer,) = await ask(url, make_requests(MIX, 1, 1.0, 0), 1, token_ids=True)
    assert answer.error is None
    assert (answer.number, answer.deterministic, answer.prompt_tokens, answer.tokens) == (0, True, 8, 6)
    assert answer.token_ids == [0, 1, 2, 3, 4, 5]
    assert FIRST_S <= answer.first < answer.total
    assert answer.total >= FIRST_S + 5 * STEP_S
    assert STEP_S <= answer.gap < answer.total - answer.first  # not the wait for the first token
    (body,) = behaviour.bodies
    assert body["ignore_eos"]
    assert body["temperature"] == 0
    assert body["stream"]
    assert body["cache_salt"] == "s"


async def test_only_our_servers_are_told_what_is_deterministic(url: str, behaviour: Behaviour) -> None:
    requests = make_requests(MIX, 2, 0.5, 0)
    await ask(url, requests, 1)
    await ask(url, requests, 1, ours=False)
    assert [body.get("is_deterministic") for body in behaviour.bodies] == [
        *(request.deterministic for request in requests),
        None,
        None,
    ]


async def test_a_closed_loop_keeps_its_lanes_full(url: str, behaviour: Behaviour) -> None:
    answers = await ask(url, make_requests(MIX, 9, 0.0, 0), 3)
    assert sorted(answer.number for answer in answers) == list(range(9))
    assert behaviour.most == 3


async def test_neighbours_go_on_until_the_measured_are_done_and_count_in_nothing(
    url: str, behaviour: Behaviour
) -> None:
    async with connect(url, "tide", ours=True, salt="s") as client:
        beside = cycle(make_requests(MIX, 1, 1.0, 9))
        answers = await closed_loop(client, make_requests(MIX, 4, 0.0, 0), 2, beside, 2)
    assert len(answers) == 4
    assert behaviour.most == 4
    flagged = sum(body["is_deterministic"] for body in behaviour.bodies)
    assert len(behaviour.bodies) - flagged == 4
    assert flagged >= 4


async def test_an_open_loop_waits_for_nobody_and_counts_from_the_arrival(url: str, behaviour: Behaviour) -> None:
    async with connect(url, "tide", ours=True, salt="s") as client:
        answers = await open_loop(client, make_requests(MIX, 5, 0.0, 0), [0.0] * 4 + [0.3])
    assert [answer.number for answer in answers] == list(range(5))
    assert behaviour.most == 4
    # Were it counted from the beginning, the last one's would be above 0.3.
    assert all(FIRST_S <= answer.first < 0.3 for answer in answers)


@pytest.mark.parametrize(
    ("fail", "lose", "why"),
    [
        ("at once", 0, "HTTP 503: .*too many wait"),
        ("later", 0, "the verifiers are gone"),
        ("", 2, "4 tokens came, 6 were asked for"),
    ],
)
async def test_what_fails_says_why(url: str, behaviour: Behaviour, fail: str, lose: int, why: str) -> None:
    behaviour.fail, behaviour.lose = fail, lose
    answers = await ask(url, make_requests(MIX, 3, 0.0, 0), 2)
    assert len(answers) == 3
    for answer in answers:
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(answer.error)


async def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    (answer,) = await ask("http://127.0.0.1:9", make_requests(MIX, 1, 0.0, 0), 1)
    assert "Cannot connect" in str(answer.error)
