"""Batches against a real HTTP server that fails in every way: what can be answered is, and nothing is lost."""

import asyncio
import email.utils
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from llm42.client import BatchError, Defaults, Options, OutputError, Summary, complete_batch, complete_batch_async
from tests.client.runs import DEFAULTS, PROMPTS, lines, run
from tests.client.server import Answer, Fake, error, prompt_of, serving


def test_all_is_answered_in_the_order_of_the_input(output: Path) -> None:
    fake = Fake(latency_s=0.05)
    summary = run(fake, output)
    found = lines(output)
    assert [outcome.index for outcome in found] == list(range(12))
    assert [outcome.custom_id for outcome in found] == [f"request-{number}" for number in range(12)]
    assert all((outcome.verified, outcome.fingerprint, outcome.seed) == (True, "fp-1", 77) for outcome in found)
    assert all(outcome.error is None and outcome.usage is not None for outcome in found)
    assert summary == Summary(12, 12, 0, 12, 36, 24, "fp-1", summary.seconds)
    assert fake.most_at_once == 4
    # The first alone tells the fingerprint, and all others are held to it.
    assert [body.get("expected_fingerprint") for body in fake.bodies] == [None] + ["fp-1"] * 11
    assert all(body["is_deterministic"] is True for body in fake.bodies)


def test_every_bit_of_an_answer_is_kept(output: Path) -> None:
    fake = Fake()
    run(fake, output, ["hi"])
    (outcome,) = lines(output)
    body = fake.bodies[0]
    assert outcome.response is not None
    sent = json.loads(bytes(fake.answer(body).body))
    assert outcome.response.body == {name: value for name, value in sent.items() if name not in ("id", "created")}
    assert outcome.texts == [sent["choices"][0]["text"]]


def test_the_same_batch_gives_the_same_bytes(output: Path, tmp_path: Path) -> None:
    run(Fake(), output)
    run(Fake(latency_s=0.02), tmp_path / "again.jsonl", concurrency=1)
    assert (tmp_path / "again.jsonl").read_bytes() == output.read_bytes()


def test_what_is_done_is_not_asked_again(output: Path) -> None:
    first = run(Fake(), output, PROMPTS[:5])
    before, fake = output.read_bytes(), Fake()
    summary = run(fake, output)
    assert (first.asked, summary.asked, summary.answered) == (5, 7, 12)
    assert sorted(fake.asked()) == sorted(PROMPTS[5:])
    assert {body["expected_fingerprint"] for body in fake.bodies} == {"fp-1"}
    assert output.read_bytes().startswith(before)
    nothing = Fake()
    assert run(nothing, output).asked == 0
    assert nothing.bodies == []


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 408])
def test_a_busy_server_is_asked_again(output: Path, status: int) -> None:
    fake = Fake(disturb=lambda number, _: error(status, "not now") if number % 2 else None)
    summary = run(fake, output, tries=20)
    assert (summary.answered, summary.failed) == (12, 0)
    assert len(fake.bodies) > 12


@pytest.mark.parametrize("form", [lambda: "1", lambda: email.utils.formatdate(time.time() + 2, usegmt=True)])
def test_retry_after_is_honoured(output: Path, form: Callable[[], str]) -> None:
    fake = Fake(disturb=lambda number, _: error(503, "full", retry_after=form()) if number == 1 else None)
    run(fake, output, ["hi"])
    assert len(fake.times) == 2
    assert fake.times[1] - fake.times[0] > 0.9


@pytest.mark.parametrize("value", ["soon", "nan", "-5", "inf", "Mon, 99 Foo"])
def test_a_retry_after_without_sense_is_none(output: Path, value: str) -> None:
    fake = Fake(disturb=lambda number, _: error(503, "full", retry_after=value) if number == 1 else None)
    assert run(fake, output, ["hi"]).answered == 1


def test_too_long_a_wait_ends_the_batch(output: Path) -> None:
    fake = Fake(disturb=lambda number, _: error(503, "tomorrow", retry_after="86400") if number == 3 else None)
    with pytest.raises(BatchError, match="left alone for 86400 s"):
        run(fake, output)
    assert len(lines(output)) >= 2


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_stays_busy_ends_the_batch_and_it_goes_on_later(output: Path, status: int) -> None:
    full: Callable[[int, dict[str, Any]], Answer] = lambda number, _: error(status, "full") if number > 5 else None  # noqa: E731
    with pytest.raises(BatchError, match=f"HTTP {status}: full, 3 times in a row"):
        run(Fake(disturb=full), output)
    done = len(lines(output))
    assert 1 <= done <= 5  # what was under way is given up
    assert run(Fake(), output).asked == 12 - done


def test_a_request_that_breaks_the_server_fails_alone(output: Path) -> None:
    fake = Fake(disturb=lambda _, body: error(500, "boom") if prompt_of(body) == PROMPTS[4] else None)
    summary = run(fake, output)
    assert (summary.answered, summary.failed) == (11, 1)
    assert fake.asked()[PROMPTS[4]] == 3
    failed = lines(output)[4]
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == (500, "HTTP 500: boom")
    assert (failed.verified, failed.response, failed.texts) == (False, None, [])


def test_a_request_that_takes_too_long_fails_alone(output: Path) -> None:
    class Slow(Fake):
        async def complete(self, request: Any) -> Response:
            body = await request.json()
            await asyncio.sleep(5 if prompt_of(body) == PROMPTS[0] else 0)
            return await super().complete(request)

    summary = run(Slow(), output, timeout_s=0.3)
    assert (summary.answered, summary.failed) == (11, 1)
    failure = lines(output)[0].error
    assert failure is not None
    assert failure.code == "timeout"


def test_a_refused_request_fails_alone_and_is_not_repeated(output: Path) -> None:
    fake = Fake(disturb=lambda number, _: error(400, "n is \x1b[31m2", "n") if number in (1, 6) else None)
    summary = run(fake, output)
    assert (summary.answered, summary.failed, len(fake.bodies)) == (10, 2, 12)
    failure = lines(output)[0].error
    assert failure is not None
    assert (failure.code, failure.param, failure.message) == (400, "n", "n is \N{REPLACEMENT CHARACTER}[31m2")
    # It was the first: so the second told the fingerprint.
    assert [body.get("expected_fingerprint") for body in fake.bodies] == [None, None] + ["fp-1"] * 10
    again = Fake()
    assert run(again, output).failed == 0
    assert len(again.bodies) == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Response(b"{", media_type="application/json"), "verified"),
        (Response(b"[" * 100_000), "verified"),
        (Response(b"[]"), "verified"),
        (PlainTextResponse("hello"), "verified"),
        (PlainTextResponse("Path not found", 404), "right address"),
        (error(404, "Not Found: POST /completions"), "right address"),
        (RedirectResponse("http://127.0.0.1:1/"), "right address"),
        (JSONResponse({"detail": "no"}, 401), "Give the right key"),
        (error(403, "no"), "Give the right key"),
        (PlainTextResponse("teapot", 418), "HTTP 418: teapot"),
    ],
)
def test_what_no_other_request_would_escape_ends_the_batch(output: Path, answer: Response, says: str) -> None:
    fake = Fake(disturb=lambda number, _: answer)
    with pytest.raises(BatchError, match=says):
        run(fake, output)
    assert len(fake.bodies) == 1


def test_a_server_that_is_not_there(output: Path) -> None:
    with serving(Fake()) as url:
        pass
    for named in (DEFAULTS, Defaults()):
        with pytest.raises(BatchError, match="cannot reach"):
            complete_batch(PROMPTS, Options(url, tries=2), named)
    for wrong in ("ftp://127.0.0.1", "127.0.0.1:8000", "http://[::1"):
        with pytest.raises(BatchError, match="cannot be asked"):
            complete_batch(PROMPTS, Options(wrong), DEFAULTS)


def test_duplicate_ids_send_nothing(output: Path) -> None:
    fake = Fake()
    with pytest.raises(BatchError, match="same custom_id"):
        run(fake, output, [{"custom_id": "a", "prompt": "x"}, {"custom_id": "a", "prompt": "y"}])
    assert fake.bodies == []


def test_a_changed_request_is_not_answered_by_the_old_answer(output: Path) -> None:
    run(Fake(), output)
    before, fake = output.read_bytes(), Fake()
    with pytest.raises(OutputError, match="'request-3', but that request has changed"):
        run(fake, output, [*PROMPTS[:3], "another", *PROMPTS[4:]])
    assert (fake.bodies, output.read_bytes()) == ([], before)
    kept = [line for line in output.read_bytes().splitlines(keepends=True) if b'"request-3"' not in line]
    output.write_bytes(b"".join(kept))
    assert run(fake, output, [*PROMPTS[:3], "another", *PROMPTS[4:]]).asked == 1


async def test_from_python() -> None:
    fake = Fake()
    chat = {"custom_id": "mine", "messages": [{"role": "user", "content": "half \ud83d"}]}
    with serving(fake) as url:
        first, second = await complete_batch_async(["hi", chat], Options(url, api_key="k"), Defaults(seed=1))
    assert (first.custom_id, second.custom_id) == ("request-0", "mine")
    assert len(first.texts[0]) == len(second.texts[0]) == 14
    assert {body["model"] for body in fake.bodies} == {"tide"}
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer k"}
    assert fake.bodies[1]["messages"][0]["content"] == "half \ud83d"
    assert first.seed == fake.bodies[0]["seed"] != fake.bodies[1]["seed"]


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"tries": 0}, {"timeout_s": float("nan")}])
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Options("http://127.0.0.1", **wrong)
