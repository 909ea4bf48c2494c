"""What a response says about itself: everything, in the bytes, and never by mistake."""

import json
from dataclasses import fields
from typing import Any

import pytest
from starlette.types import Message

from llm42.protocol import SessionStats
from llm42.router.answer import Answer
from llm42.router.stamp import PLACEHOLDER, StampError, stamped
from llm42.router.verifiers import Pin

UNSTAMPED: dict[str, Any] = {"choices": [], "system_fingerprint": PLACEHOLDER}


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def sent(answer: Answer | None, *bodies: bytes, streamed: bool = False, status: int = 200) -> list[Message]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    stamping = stamped(send, answer)
    length = [] if streamed else [(b"Content-Length", str(len(bodies[0])).encode())]
    await stamping({"type": "http.response.start", "status": status, "headers": length})
    for index, body in enumerate(bodies, start=1):
        await stamping({"type": "http.response.body", "body": body, "more_body": index < len(bodies)})
    return messages


async def test_a_whole_response() -> None:
    answer = Answer(Pin("abc"), seed=7)
    start, body = await sent(answer, compact(UNSTAMPED))
    said = json.loads(body["body"])
    assert said["system_fingerprint"] == "abc"
    assert said["determinism"] == {"verified": True, "seed": 7}
    headers = dict(start["headers"])
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert b"Content-Length" not in headers
    assert headers[b"x-llm42-verified"] == b"true"


async def test_an_ordinary_response() -> None:
    start, body = await sent(None, compact(UNSTAMPED))
    said = json.loads(body["body"])
    assert (said["system_fingerprint"], said["determinism"]) == (None, {"verified": False})
    assert dict(start["headers"])[b"x-llm42-verified"] == b"false"


async def test_a_stream() -> None:
    answer = Answer(Pin("abc"))
    chunks = [b"data: %s\n\n" % compact(chunk) for chunk in ({"choices": []}, UNSTAMPED)]
    start, first, last = await sent(answer, *chunks, streamed=True)
    assert dict(start["headers"])[b"x-llm42-verified"] == b"true"
    assert first["body"] == chunks[0]
    assert json.loads(last["body"][6:])["determinism"] == {"verified": True}


async def test_stats_are_told_at_the_end_of_all_choices() -> None:
    choices = [SessionStats(drafted=9, verified=8, committed=7, accepted=5, replays=2), SessionStats(committed=3)]
    answer = Answer(Pin("abc"), with_stats=True, stats=choices)
    usage = {"usage": {"completion_tokens": 10}}
    _, whole = await sent(answer, compact({**UNSTAMPED, **usage}))
    stats = json.loads(whole["body"])["determinism"]["stats"]
    expected = {"drafted": 9, "verified": 8, "committed": 10, "accepted": 5, "replays": 2}
    assert expected.items() <= stats.items()
    assert stats.keys() == {field.name for field in fields(SessionStats)}

    chunks = [b"data: %s\n\n" % compact(chunk) for chunk in (UNSTAMPED, {**UNSTAMPED, **usage})]
    _, terminal, last = await sent(answer, *chunks, streamed=True)
    assert json.loads(terminal["body"][6:])["determinism"] == {"verified": True}, "another choice may still grow"
    assert json.loads(last["body"][6:])["determinism"] == {"verified": True, "stats": stats}

    _, unasked = await sent(Answer(Pin("abc"), stats=choices), compact({**UNSTAMPED, **usage}))
    assert json.loads(unasked["body"])["determinism"] == {"verified": True}


async def test_text_cannot_be_mistaken_for_the_field() -> None:
    text = f'"system_fingerprint":"{PLACEHOLDER}"'
    _, body = await sent(Answer(Pin("abc")), compact({"text": text, **UNSTAMPED}))
    assert json.loads(body["body"])["text"] == text


async def test_errors_pass_as_they_are() -> None:
    start, body = await sent(Answer(), b'{"error":{}}', status=503)
    assert body["body"] == b'{"error":{}}'
    assert b"x-llm42-verified" not in dict(start["headers"])


@pytest.mark.parametrize(
    ("answer", "body"), [(Answer(Pin("abc")), compact({"choices": []})), (Answer(), compact(UNSTAMPED))]
)
async def test_no_deterministic_answer_leaves_without_its_origin(answer: Answer, body: bytes) -> None:
    with pytest.raises(StampError):
        await sent(answer, body)
