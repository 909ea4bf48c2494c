"""What the lines of an input mean, and which are refused before anything is sent."""

from typing import Any

import pytest

from llm42.client import Defaults, InputError, Request, make_requests, parse_lines


def made(*objects: Any, **defaults: Any) -> list[Request]:
    return make_requests(objects, Defaults(**defaults))


def test_the_two_forms_of_a_line_ask_the_same() -> None:
    plain, wrapped = made(
        {"custom_id": "a", "prompt": "hi", "max_tokens": 4},
        {
            "custom_id": "b",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "hi", "max_tokens": 4, "stream": False},
        },
    )
    assert plain.body == wrapped.body == {"prompt": "hi", "max_tokens": 4, "is_deterministic": True}
    assert (plain.url, plain.digest) == (wrapped.url, wrapped.digest)
    assert (plain.custom_id, wrapped.custom_id, wrapped.index) == ("a", "b", 1)


def test_ids_and_urls_that_are_not_given() -> None:
    text, chat = made("hi", {"messages": [{"role": "user", "content": "hi"}]})
    assert (text.custom_id, text.url) == ("request-0", "/v1/completions")
    assert (chat.custom_id, chat.url) == ("request-1", "/v1/chat/completions")


def test_defaults_are_for_what_a_request_leaves_open() -> None:
    fields = {"temperature": 0, "max_tokens": 9, "logprobs": 0}
    open_, own, chat = made(
        "hi",
        {"prompt": "hi", "temperature": 0.5, "model": "mine", "max_tokens": 3},
        {"messages": [], "max_completion_tokens": 2},
        fields=fields,
        model="theirs",
    )
    assert open_.body == {"prompt": "hi", **fields, "model": "theirs", "is_deterministic": True}
    assert (own.body["temperature"], own.body["model"], own.body["max_tokens"]) == (0.5, "mine", 3)
    assert "max_tokens" not in chat.body
    assert open_.with_model("other").body["model"] == "theirs"
    assert made("hi")[0].with_model("other").body["model"] == "other"


def test_each_request_gets_a_seed_of_its_own_which_only_its_id_decides() -> None:
    objects = [{"custom_id": str(number), "prompt": "hi"} for number in range(200)]
    seeds = [request.body["seed"] for request in made(*objects, seed=42)]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert [request.body["seed"] for request in made(*reversed(objects), seed=42)] == seeds[::-1]
    assert made(*objects, seed=43)[0].body["seed"] != seeds[0]
    assert made({"prompt": "hi", "seed": 5}, seed=42)[0].body["seed"] == 5
    # Pinned: a batch of today is to be had again next year.
    assert made({"custom_id": "a", "prompt": "hi"}, seed=42)[0].body["seed"] == PINNED


PINNED = 7604695938731834


def test_the_digest_tells_requests_apart_and_ignores_the_order_of_names() -> None:
    one, same, *others = made(
        {"prompt": "hi", "top_p": 0.5, "seed": 1},
        {"seed": 1, "top_p": 0.5, "prompt": "hi"},
        {"prompt": "hi", "top_p": 0.5, "seed": 2},
        {"prompt": "hi", "top_p": 0.5000000000000001, "seed": 1},
        {"messages": "hi", "top_p": 0.5, "seed": 1},
        {"prompt": [1, 2], "top_p": 0.5, "seed": 1},
    )
    assert one.digest == same.digest
    assert len({request.digest for request in [one, *others]}) == 5


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (7, "no JSON object"),
        ({}, "either prompt or messages"),
        ({"prompt": "a", "messages": []}, "either prompt or messages"),
        ({"custom_id": 7, "prompt": "a"}, "custom_id"),
        ({"custom_id": "", "prompt": "a"}, "custom_id"),
        ({"body": "hi"}, "body must be an object"),
        ({"body": {"prompt": "a"}, "max_tokens": 3}, "max_tokens has no meaning beside body"),
        ({"body": {"prompt": "a"}, "method": "GET"}, "method"),
        ({"body": {"prompt": "a"}, "url": "/v1/chat/completions"}, "url must be /v1/completions"),
        ({"body": {"prompt": "a"}, "url": "/v1/embeddings"}, "url"),
        ({"prompt": "a", "is_deterministic": False}, "is_deterministic"),
        ({"prompt": "a", "stream": True}, "stream"),
        ({"prompt": "a", "determinism_stats": True}, "differ from run to run"),
        ({"prompt": "a", "expected_fingerprint": "f"}, "expected_fingerprint"),
        ({"prompt": "a", "temperature": float("nan")}, "JSON"),
        ({"prompt": {1, 2}}, "JSON"),
    ],
)
def test_what_is_no_request(found: Any, says: str) -> None:
    with pytest.raises(InputError, match="request 1 ") as refused:
        made("hi", found)
    assert says in str(refused.value)


def test_defaults_cannot_choose_what_the_batch_settles() -> None:
    with pytest.raises(InputError, match="stream"):
        made("hi", fields={"stream": True})


def test_duplicate_ids_and_nothing_at_all() -> None:
    with pytest.raises(InputError, match=r"requests 0 and 2 .* 'a'"):
        made({"custom_id": "a", "prompt": "x"}, "y", {"custom_id": "a", "prompt": "z"})
    with pytest.raises(InputError, match="same custom_id"):
        made("x", {"custom_id": "request-0", "prompt": "y"})
    with pytest.raises(InputError, match="no requests"):
        made()


def test_lines() -> None:
    assert list(parse_lines([b'{"prompt": "a"}\r\n', b"\n", b'"b"'])) == [{"prompt": "a"}, "b"]
    for line in (b"{", b"\xff\xff", b'{"prompt": NaN}', b"[" * 100_000):
        with pytest.raises(InputError, match="line 3 "):
            list(parse_lines([b"1", b" ", line]))
