"""Each key has its own quota, on deterministic answers alone; it is charged as they come, and has to be paid back."""

import json
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llm42.config import Quota
from llm42.metrics.router import Limit
from llm42.router.answer import ANSWER
from llm42.router.middleware import DeterminismMiddleware
from llm42.router.overload import RETRY_AFTER_S
from llm42.router.quota import OverQuota, Quotas, answers_of
from llm42.router.receipts import receipts_route
from llm42.router.refused import Refused
from llm42.router.verifiers import Unverifiable, VerifierPool
from tests.test_receipt import receipt

GREEDY: dict[str, Any] = {"prompt": "x", "temperature": 0, "is_deterministic": True}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def quotas(requests: int | None = None, tokens: int | None = None, keys: int = 2) -> tuple[Quotas, Clock, list[Limit]]:
    clock, refused = Clock(), list[Limit]()
    quota = Quota(deterministic_requests=requests, deterministic_tokens_per_minute=tokens)
    return Quotas(quota, keys, refused.append, clock), clock, refused


def test_places_are_each_key_s_own_and_come_back() -> None:
    made, _, refused = quotas(requests=2)
    with made.admit(0):
        with made.admit(0):
            with pytest.raises(
                OverQuota, match=r"this API key has 2 .*\(router\.quota\.deterministic_requests\)"
            ) as over:
                made.admit(0).__enter__()
            assert over.value.retry_after_s == RETRY_AFTER_S
            with made.admit(1):
                pass
        with made.admit(0):
            pass
    with pytest.raises(RuntimeError, match="on purpose"), made.admit(0, 2):
        raise RuntimeError("on purpose")
    with made.admit(0, 2), pytest.raises(OverQuota):
        made.admit(0).__enter__()
    assert refused == ["requests", "requests"]


def test_more_than_a_key_ever_has_is_no_matter_of_waiting() -> None:
    made, _, refused = quotas(requests=2)
    with pytest.raises(Refused, match="n asks for 3 deterministic answers at once") as never:
        made.admit(0, 3, "n").__enter__()
    assert (never.value.param, never.value.status, refused) == ("n", 400, [])


def test_tokens_are_a_debt_that_time_pays() -> None:
    made, clock, refused = quotas(tokens=60)
    with made.admit(0) as spend:
        spend(100)
        with pytest.raises(OverQuota, match=r"60 tokens .* used up: ask again in 41 s") as over:
            made.admit(0).__enter__()
        assert over.value.retry_after_s == 41
        with made.admit(1):
            pass
    clock.now += 40
    with pytest.raises(OverQuota, match="ask again in 1 s"):
        made.admit(0).__enter__()
    clock.now += 1
    with made.admit(0) as spend:
        spend(1)
    assert refused == ["tokens", "tokens"]


def test_no_more_than_a_minute_s_tokens_are_saved_up() -> None:
    made, clock, _ = quotas(tokens=60)
    clock.now += 3600
    with made.admit(0) as spend:
        spend(60)
    with pytest.raises(OverQuota):
        made.admit(0).__enter__()


def test_without_a_quota_nothing_is_refused() -> None:
    made, _, refused = quotas()
    with made.admit(0, 10_000) as spend, made.admit(0):
        spend(10**9)
        with made.admit(0):
            pass
    assert refused == []


def test_without_keys_all_clients_are_one() -> None:
    made, _, _ = quotas(requests=1, keys=0)
    with made.admit(0), pytest.raises(OverQuota, match="the clients of this server together"):
        made.admit(0).__enter__()


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        ({"messages": []}, (1, "prompt")),
        ({"prompt": "text"}, (1, "prompt")),
        ({"prompt": [1, 2, 3]}, (1, "prompt")),
        ({"prompt": ["a", "b"]}, (2, "prompt")),
        ({"prompt": [[1, 2], [3]], "n": 3}, (6, "n")),
        ({"prompt": [1.0, 2.0]}, (1, "prompt")),
        ({"n": None}, (1, "prompt")),
        ({"n": 0}, (1, "prompt")),
        ({"n": -3, "prompt": []}, (1, "prompt")),
        ({"n": "many"}, (1, "prompt")),
        ({"n": [2]}, (1, "prompt")),
        ({"n": float("inf")}, (1, "prompt")),
    ],
)
def test_answers_of(body: dict[str, Any], answers: tuple[int, str]) -> None:
    assert answers_of(body) == answers


async def ask(made: Quotas, body: dict[str, Any], spends: int = 0) -> httpx.Response:
    """Of an app that charges ``spends`` tokens, if the request is deterministic."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answer = ANSWER.get()
        if answer is None:
            await Response("ordinary")(scope, receive, send)
            return
        answer.spend(spends)
        answer.pin.fingerprint = "F"
        document = '{"system_fingerprint":"llm42-to-be-stamped"}'
        await Response(document, media_type="application/json")(scope, receive, send)

    async def nobody() -> str:
        raise AssertionError("a verifier was asked")

    middleware = DeterminismMiddleware(app, "seeded", {}, nobody, made, 64)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=middleware), base_url="http://router") as client:
        return await client.post("/v1/completions", content=json.dumps(body))


async def test_a_request_over_quota_is_a_429_and_ordinary_ones_go_on() -> None:
    made, clock, _ = quotas(tokens=60, keys=0)
    assert (await ask(made, GREEDY, spends=90)).json()["determinism"] == {"verified": True}
    # Before any verifier is asked for its fingerprint.
    refused = await ask(made, {**GREEDY, "expected_fingerprint": "F"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "31")
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_exceeded", 429, None)
    assert "deterministic_tokens_per_minute" in error["message"]
    assert (await ask(made, {**GREEDY, "is_deterministic": False})).text == "ordinary"
    clock.now += 31
    assert (await ask(made, GREEDY)).status_code == 200


async def test_a_request_holds_as_many_places_as_it_has_answers_and_gives_them_back() -> None:
    made, _, refused = quotas(requests=4, keys=0)
    sampling = {**GREEDY, "temperature": 1, "prompt": ["a", "b"]}
    assert (await ask(made, {**sampling, "n": 2})).status_code == 200
    never = await ask(made, {**sampling, "n": 3})
    assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
    with made.admit(0):
        assert (await ask(made, {**sampling, "n": 2})).status_code == 429
        assert (await ask(made, sampling)).status_code == 200
    assert (await ask(made, {**sampling, "n": 2})).status_code == 200
    assert refused == ["requests"]


async def test_to_replay_a_receipt_costs_what_the_answer_did() -> None:
    made, clock, _ = quotas(tokens=60, keys=0)

    described = {"fingerprint": receipt().fingerprint, "max_model_len": 64}

    async def describe() -> dict[str, Any]:
        return described

    async def replay(*_: Any) -> None:
        raise Unverifiable("none is there")

    route = receipts_route(cast(VerifierPool, SimpleNamespace(describe=describe, replay=replay)), made)
    transport = httpx.ASGITransport(app=Starlette(routes=[route]))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        # What is not replayed costs nothing: another pool's receipt, or one that no context holds.
        for change, status in (({"fingerprint": "another"}, 412), ({"max_model_len": 42}, 400)):
            described = {**described, **change}
            refused = await client.post("/v1/receipts/verify", content=receipt().model_dump_json())
            assert refused.status_code == status
            described = {"fingerprint": receipt().fingerprint, "max_model_len": 64}
        for tokens, status in ((43, 503), (43, 503), (43, 429)):
            response = await client.post("/v1/receipts/verify", content=receipt().model_dump_json())
            assert (len(receipt().tokens), response.status_code) == (tokens, status)
        assert response.json()["error"]["type"] == "rate_limit_exceeded"
        assert response.headers["retry-after"] == "27"
        clock.now += 27
        assert (await client.post("/v1/receipts/verify", content=b"{")).status_code == 400
